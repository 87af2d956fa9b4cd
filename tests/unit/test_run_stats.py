import math

import numpy as np
import pytest

from gongfu.run.stats import mean_over_seeds, paired_bootstrap, sign_test, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, n, low, high):
    """Newcombe 1998 (Statistics in Medicine 17), table I, method 3."""
    assert tuple(round(bound, 4) for bound in wilson(successes, n)) == (low, high)


def test_wilson_by_hand():
    """1 of 2 with z = 1 (68.27 %): centre 1/2, half width sqrt(1/8 + 1/16) / 1.5 = 1 / sqrt(12)."""
    assert wilson(1, 2, confidence=math.erf(1 / math.sqrt(2))) == pytest.approx((0.5 - 12**-0.5, 0.5 + 12**-0.5))


def test_wilson_is_symmetric_and_closed_at_the_ends():
    low, high = wilson(14, 17)
    assert wilson(3, 17) == pytest.approx((1 - high, 1 - low))
    assert wilson(0, 7)[0] == 0.0
    assert wilson(7, 7)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_what_is_no_share(successes, n):
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n)


def test_sign_test_by_hand():
    """9 against 1: 2 (1 + 10) / 1024; 3 against 3: 2 (1 + 6 + 15 + 20) / 64 > 1, so 1."""
    a, b = [0] * 9 + [1] + [1, 0], [1] * 9 + [0] + [1, 0]
    result = sign_test(a, b)
    assert (result.better, result.worse, result.ties, result.p) == (9, 1, 2, 22 / 1024)
    assert sign_test(b, a).p == 22 / 1024
    assert sign_test([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]).p == 1.0
    assert sign_test([1, 1], [1, 1]).p == 1.0


def test_sign_test_gives_the_published_value():
    """Fagerland, Lydersen & Laake 2013 (BMC Med Res Methodol 13:91): 1 and 7 discordant pairs, exact p = 0.0703."""
    assert round(sign_test([1] + [0] * 7, [0] + [1] * 7).p, 4) == 0.0703


def test_sign_test_is_exact_for_many_pairs():
    assert sign_test([0.0] * 900, [0.5] * 900).p == 2.0**-899


def test_paired_bootstrap_by_hand():
    """Differences 0 and 1: the mean of two draws is 0, 1/2, 1 with 1/4, 1/2, 1/4, which decides its quantiles."""
    wide = paired_bootstrap([1, 0], [1, 1], seed=0)
    assert (wide.mean, wide.low, wide.high) == (0.5, 0.0, 1.0)
    narrow = paired_bootstrap([1, 0], [1, 1], seed=0, confidence=0.4)
    assert (narrow.low, narrow.high) == (0.5, 0.5)


def test_pairing_removes_what_the_tasks_differ_in():
    """Tasks of very different difficulty, b always better by 0.1: the interval has no width."""
    a = [k / 10 for k in range(9)]
    interval = paired_bootstrap(a, [x + 0.1 for x in a], seed=1)
    assert (interval.low, interval.high) == pytest.approx((0.1, 0.1))


def test_bootstrap_agrees_with_the_normal_interval_for_many_tasks():
    values = np.random.default_rng(5).normal(0.3, 1.0, 400)
    interval = paired_bootstrap(np.zeros(400).tolist(), values.tolist(), seed=2)
    half = 1.96 * values.std() / 20
    assert interval.low == pytest.approx(values.mean() - half, abs=0.006)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.006)


def test_bootstrap_repeats_itself_by_seed():
    a, b = [0, 1, 0, 1, 0, 0.5, 0.2], [1, 1, 0, 0, 1, 0.3, 0.9]
    assert paired_bootstrap(a, b, seed=3) == paired_bootstrap(a, b, seed=3)
    assert paired_bootstrap(a, b, seed=3) != paired_bootstrap(a, b, seed=4)


def test_mean_over_seeds():
    """Three seeds: the extreme means 0.2 and 0.8 have probability 1/27 = 3.7 % each, more than 2.5 %."""
    interval = mean_over_seeds([0.2, 0.5, 0.8], seed=0)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.5, 0.2, 0.8))
    one = mean_over_seeds([0.4], seed=0)
    assert one.mean == 0.4 and math.isnan(one.low) and math.isnan(one.high)


def test_wrong_input_is_refused():
    for compare in (sign_test, lambda a, b: paired_bootstrap(a, b, seed=0)):
        with pytest.raises(ValueError, match="got 1 and 2"):
            compare([1], [1, 2])
    with pytest.raises(ValueError, match="finite"):
        mean_over_seeds([0.1, math.nan], seed=0)
    with pytest.raises(ValueError, match="at least one"):
        mean_over_seeds([], seed=0)
    with pytest.raises(ValueError, match="confidence"):
        wilson(1, 2, confidence=95)
