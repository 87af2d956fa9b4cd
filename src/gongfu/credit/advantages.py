"""Advantages without a critic: what each step or token is worth against the other rollouts of its task.

The group estimators take `returns`, one sequence of step returns a trajectory (a single value when an episode is paid as a
whole), and `groups`, one group name a trajectory; they give one advantage for each step return.

`statistics` names the unit of the group's mean and deviation. "trajectory": each episode weighs 1, spread evenly over its
steps. "step": each step weighs 1, so long episodes pull the mean (what step-wise implementations do).

Two rules hold everywhere. A group whose returns are all equal, or that holds one trajectory, has advantage exactly 0: the
test is max - min in double precision, because R - mean of equal numbers is rounding noise that a division by the deviation
would blow up. And sums are correctly rounded (`math.fsum`), so the order of the batch changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gongfu.credit.batch import CreditError

Std = Literal["unbiased", "population", "none"]
Statistics = Literal["trajectory", "step"]
Array = NDArray[np.float64]


def step_returns(rewards: Sequence[float] | Array, gamma: float) -> Array:
    """Discounted return of every step of one episode, G_t = Σ_{k>=t} γ^(k-t) r_k (GiGPO, arXiv 2505.10978).

    >>> step_returns([0.0, 0.0, 10.0], 0.95).round(4).tolist()
    [9.025, 9.5, 10.0]
    """
    returns = np.array(rewards, dtype=np.float64)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def zero_variance(returns: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> NDArray[np.bool_]:
    """For each trajectory: does its group teach nothing (all returns equal, or one trajectory only)?"""
    dead = np.zeros(len(groups), dtype=np.bool_)
    for group in _groups(returns, groups):
        dead[group.members] = group.dead
    return dead


def grpo(
    returns: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    *,
    std: Std,
    statistics: Statistics,
    epsilon: float = 1e-6,
) -> list[Array]:
    """Group-relative advantage (R - mean) / (std + ε), DeepSeekMath (arXiv 2402.03300) section 4.1.2.

    `std`: "unbiased" divides the squares by n - 1, "population" by n (n units of `statistics`), "none" leaves R - mean.
    """
    _known("std", std, Std)
    result = _arrays(returns)
    for group in _groups(returns, groups):
        mean, variance = group.moments(statistics, unbiased=std == "unbiased")
        scale = 1.0 if std == "none" else math.sqrt(variance) + epsilon
        for i in group.members:
            result[i] = np.zeros_like(result[i]) if group.dead else (result[i] - mean) / scale
    return result


def dr_grpo(returns: Sequence[Sequence[float]], groups: Sequence[Hashable], *, statistics: Statistics) -> list[Array]:
    """Centred return R - mean of Dr. GRPO (arXiv 2503.20783 section 3.2); its loss is "seq-mean-token-sum-norm"."""
    return grpo(returns, groups, std="none", statistics=statistics)


def rloo(returns: Sequence[Sequence[float]], groups: Sequence[Hashable], *, statistics: Statistics) -> list[Array]:
    """Leave-one-out advantage R_i - mean_{j≠i} R_j (arXiv 2402.14740), = n/(n-1) (R_i - mean) for one return an episode.

    "trajectory" leaves out the whole episode, "step" only the step itself.
    """
    result = _arrays(returns)
    for group in _groups(returns, groups):
        mean, _ = group.moments(statistics, unbiased=False)
        n = group.units(statistics)
        for i in group.members:
            if group.dead:
                result[i] = np.zeros_like(result[i])
                continue
            own = math.fsum(result[i]) / len(result[i]) if statistics == "trajectory" else result[i]
            result[i] = result[i] - (n * mean - own) / (n - 1)
    return result


def reinforce_plus_plus(
    scores: Sequence[float],
    kl: Sequence[Sequence[float]],
    *,
    beta: float,
    gamma: float = 1.0,
    std: Std = "unbiased",
    epsilon: float = 1e-8,
) -> list[Array]:
    """Token advantages of REINFORCE++ (arXiv 2501.03262): KL in the reward, no group, whitened over the whole batch.

    Token reward r_t = -β kl_t + 1{t = last} R with kl_t = log π_old - log π_ref of each scored token (k1, a constant);
    advantage = whitened G_t = Σ_{k>=t} γ^(k-t) r_k. One entry of `scores` and of `kl` a trajectory; `kl` lists the scored
    tokens of all its turns, so the return runs on across the observations between them.
    """
    if len(scores) != len(kl):
        raise CreditError(f"{len(scores)} scores but KL values of {len(kl)} trajectories")
    rewards = [-beta * values for values in _arrays(kl)]
    for i, score in enumerate(scores):
        rewards[i][-1] += score
    returns = [step_returns(values, gamma) for values in _arrays(rewards)]
    return whiten(returns, std=std, epsilon=epsilon)


def reinforce_plus_plus_baseline(
    returns: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    *,
    tokens: Sequence[Sequence[int]],
    statistics: Statistics,
    std: Std = "unbiased",
    epsilon: float = 1e-8,
) -> list[Array]:
    """REINFORCE++-baseline (arXiv 2501.03262): R - group mean, then whitened over all tokens of the batch.

    `tokens` gives the scored tokens of every step. Zero-variance groups count in the whitening, as published, but keep
    advantage exactly 0; without that rule the global mean would pay them for nothing.
    """
    centred = grpo(returns, groups, std="none", statistics=statistics)
    whitened = whiten(centred, std=std, epsilon=epsilon, counts=tokens)
    dead = zero_variance(returns, groups)
    return [np.zeros_like(values) if dead[i] else values for i, values in enumerate(whitened)]


def whiten(
    values: Sequence[Sequence[float] | Array],
    *,
    std: Std = "unbiased",
    epsilon: float = 1e-8,
    counts: Sequence[Sequence[int]] | None = None,
) -> list[Array]:
    """(x - mean) / (std + ε) over all values of the batch; `counts` says how often each one occurs (default once).

    All values equal: exactly 0. `std` = "none" only subtracts the mean.
    """
    _known("std", std, Std)
    result = _arrays(values)
    weights = [np.ones_like(v) for v in result] if counts is None else _arrays(counts)
    if [len(v) for v in result] != [len(w) for w in weights]:
        raise CreditError("whitening needs one token count for each value")
    x, w = np.concatenate(result), np.concatenate(weights)
    if (w < 0).any() or not w.any():
        raise CreditError("whitening needs token counts that are not negative, and at least one token")
    used = x[w > 0]
    if used.max() == used.min():
        return [np.zeros_like(v) for v in result]
    mean, variance = _moments(x, w, unbiased=std == "unbiased")
    scale = 1.0 if std == "none" else math.sqrt(variance) + epsilon
    return [(v - mean) / scale for v in result]


@dataclass(frozen=True, slots=True)
class _Group:
    """Trajectories that share a baseline; `x` holds all their returns, `lengths` the number of steps of each."""

    members: list[int]
    x: Array
    lengths: list[int]

    @property
    def dead(self) -> bool:
        return len(self.members) == 1 or bool(self.x.max() == self.x.min())

    def units(self, statistics: Statistics) -> int:
        return len(self.members) if statistics == "trajectory" else len(self.x)

    def moments(self, statistics: Statistics, *, unbiased: bool) -> tuple[float, float]:
        """Mean and variance of the returns with each unit weighing 1."""
        _known("statistics", statistics, Statistics)
        lengths = np.repeat(self.lengths, self.lengths)
        return _moments(self.x, 1 / lengths if statistics == "trajectory" else np.ones_like(self.x), unbiased=unbiased)


def _moments(x: Array, weights: Array, *, unbiased: bool) -> tuple[float, float]:
    total = math.fsum(weights)
    mean = math.fsum(weights * x) / total
    freedom = total - 1 if unbiased else total
    return mean, math.fsum(weights * (x - mean) ** 2) / freedom if freedom > 0 else 0.0


def _groups(returns: Sequence[Sequence[float]], groups: Sequence[Hashable]) -> list[_Group]:
    if len(returns) != len(groups):
        raise CreditError(f"{len(returns)} trajectories but {len(groups)} group names")
    members: dict[Hashable, list[int]] = {}
    for i, name in enumerate(groups):
        members.setdefault(name, []).append(i)
    arrays = _arrays(returns)
    return [_Group(m, np.concatenate([arrays[i] for i in m]), [len(arrays[i]) for i in m]) for m in members.values()]


def _arrays(values: Sequence[Sequence[float] | Array]) -> list[Array]:
    """Fresh float64 arrays. Raises CreditError for one that is empty or holds NaN or infinity."""
    arrays = [np.array(v, dtype=np.float64) for v in values]
    for i, array in enumerate(arrays):
        if array.ndim != 1 or not len(array):
            raise CreditError(f"trajectory {i} of the batch needs a flat, non-empty list of values, got shape {array.shape}")
        if not np.isfinite(array).all():
            raise CreditError(f"trajectory {i} of the batch has a value that is not finite: {array.tolist()}")
    return arrays


def _known(name: str, value: str, kind: Any) -> None:
    if value not in kind.__args__:
        raise CreditError(f"unknown {name} {value!r}; known: {', '.join(kind.__args__)}")
