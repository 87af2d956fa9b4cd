"""How sure a number is: intervals for shares and means, and paired comparisons of two policies on the same tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class SignTest:
    """How often b beat a, a beat b, and the two-sided p-value of such a split if both were equally good."""

    better: int
    worse: int
    ties: int
    p: float


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a share (Wilson 1927; method 3 of Newcombe 1998): also right near 0 and 1 and for few samples.

    >>> [round(bound, 4) for bound in wilson(81, 263)]
    [0.2553, 0.3662]
    """
    if not 0 <= successes <= n:
        raise ValueError(f"a share needs 0 <= successes <= n, got {successes} of {n}")
    z2 = NormalDist().inv_cdf(0.5 + _checked(confidence) / 2) ** 2
    if n == 0:
        return 0.0, 1.0  # nothing was seen, so nothing is known
    share = successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # At the ends the bounds are 0 and 1 exactly; the formula would miss them by a rounding error.
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half)


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], *, seed: int, resamples: int = 10_000, confidence: float = 0.95
) -> Interval:
    """Mean of b - a over tasks that both played, with a percentile bootstrap interval (Efron & Tibshirani 1993, ch. 13).

    Tasks are drawn, never single values: a[i] and b[i] belong to the same task (average its rollouts first).
    """
    difference = np.asarray(b, dtype=np.float64) - np.asarray(_same_length(a, b), dtype=np.float64)
    return _bootstrap(difference, seed, resamples, confidence)


def mean_over_seeds(values: Sequence[float], *, seed: int, resamples: int = 10_000, confidence: float = 0.95) -> Interval:
    """Mean of one number per training seed, with a percentile bootstrap interval.

    With fewer than about 8 seeds this interval is too narrow; with one its bounds are NaN, as nothing is known.
    """
    if len(values) == 1:
        return Interval(float(values[0]), math.nan, math.nan)
    return _bootstrap(np.asarray(values, dtype=np.float64), seed, resamples, confidence)


def sign_test(a: Sequence[float], b: Sequence[float]) -> SignTest:
    """Exact paired sign test of b against a, ties left out; for 0/1 values this is the exact McNemar test (1947).

    >>> sign_test([0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1])
    SignTest(better=5, worse=0, ties=1, p=0.0625)
    """
    _same_length(a, b)
    better = sum(y > x for x, y in zip(a, b, strict=True))
    worse = sum(y < x for x, y in zip(a, b, strict=True))
    n = better + worse
    # Whole numbers until the one division: exact for any n.
    tail = sum(math.comb(n, k) for k in range(min(better, worse) + 1))
    return SignTest(better, worse, len(a) - n, min(1.0, 2 * tail / 2**n))


def _bootstrap(values: NDArray[np.float64], seed: int, resamples: int, confidence: float) -> Interval:
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"a bootstrap needs at least one value and only finite ones, got {values.tolist()[:10]}")
    outside = (1 - _checked(confidence)) / 2
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, 1000):  # in blocks: 10,000 resamples of 10,000 tasks at once would be 800 MB
        stop = min(start + 1000, resamples)
        means[start:stop] = values[generator.integers(values.size, size=(stop - start, values.size))].mean(axis=1)
    low, high = np.quantile(means, [outside, 1 - outside])
    return Interval(float(values.mean()), float(low), float(high))


def _same_length(a: Sequence[float], b: Sequence[float]) -> Sequence[float]:
    if len(a) != len(b):
        raise ValueError(f"a paired comparison needs as many values on both sides, got {len(a)} and {len(b)}")
    return a


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies between 0 and 1, got {confidence}")
    return confidence
