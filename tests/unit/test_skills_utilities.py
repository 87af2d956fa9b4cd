import numpy as np
import pytest

from gongfu.skills.utilities import newcombe


@pytest.mark.parametrize(
    ("with_", "without", "low", "high"),
    [  # Newcombe 1998, Statistics in Medicine 17:873-890, table II, method 10
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0000),
        # one arm or both untried: all that is possible. Wilson of 3/4 is 0.3006 .. 0.9544
        ((3, 4), (0, 0), 0.3006 - 1, 0.9544),
        ((0, 0), (3, 4), -0.9544, 1 - 0.3006),
        ((0, 0), (0, 0), -1, 1),
    ],
)
def test_intervals_are_the_published_ones(with_, without, low, high):
    (s, n), (t, m) = with_, without
    _, got_low, got_high = newcombe(*(np.array([x]) for x in (n, s, m, t)))
    assert (got_low[0], got_high[0]) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
