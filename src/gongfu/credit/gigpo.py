"""GiGPO: group-in-group policy optimisation (arXiv 2505.10978). A step is compared with other visits of its state.

Episode term A^E: GRPO over the rollouts of a task. Step term A^S: the discounted return of a step against those of all steps of
the task's rollouts that stood in the same state (the anchor), found after the rollouts at no extra cost. A = A^E + ω A^S.
Role-Agent (arXiv 2606.10917) compares the states of the whole batch and weighs the episode: A = A^S + α A^E.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from gongfu.credit.advantages import Array, Statistics, Std, grpo
from gongfu.credit.batch import CreditError
from gongfu.credit.similarity import clusters


def gigpo(
    episodes: Sequence[Sequence[float]],
    steps: Sequence[Sequence[float]],
    anchors: Sequence[Sequence[Hashable]],
    groups: Sequence[Hashable],
    *,
    omega: float,
    alpha: float = 1.0,
    scopes: Sequence[Hashable] | None = None,
    std: Std,
    statistics: Statistics,
    epsilon: float = 1e-6,
) -> list[Array]:
    """α A^E + ω A^S for every step (eq. 7 to 10 there), shaped like `steps`.

    `episodes`: what each step of a trajectory counts for its episode (the episode's score; less its own penalty). `steps`:
    discounted returns R_t. `anchors`: the state of every step; states of different `scopes` (one a trajectory, default: its
    group) are never compared. `std` is F of both terms ("none": F = 1), `statistics` the unit of the episode term.
    """
    whole = grpo(episodes, groups, std=std, statistics=statistics, epsilon=epsilon)
    local = step_advantages(steps, anchors, groups if scopes is None else scopes, std=std, epsilon=epsilon)
    return [alpha * e + omega * s for e, s in zip(whole, local, strict=True)]


def step_advantages(
    steps: Sequence[Sequence[float]],
    anchors: Sequence[Sequence[Hashable]],
    groups: Sequence[Hashable],
    *,
    std: Std,
    epsilon: float = 1e-6,
) -> list[Array]:
    """A^S: (R - mean) / (std + ε) within every anchor group, each step weighing 1; 0 where it has one step or equal returns."""
    result = [np.zeros(len(values)) for values in steps]
    for cell in anchor_groups(anchors, groups, [len(values) for values in steps]):
        returns = [float(steps[i][t]) for i, t in cell]
        if max(returns) == min(returns):
            continue
        mean = math.fsum(returns) / len(returns)
        freedom = len(returns) - (std == "unbiased")
        deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in returns) / freedom)
        scale = 1.0 if std == "none" else deviation + epsilon
        for (i, t), value in zip(cell, returns, strict=True):
            result[i][t] = (value - mean) / scale
    return result


def anchor_groups(
    anchors: Sequence[Sequence[Hashable]], groups: Sequence[Hashable], lengths: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """The (trajectory, step) pairs of every anchor group. Raises CreditError when a trajectory has not one anchor a step."""
    if not len(anchors) == len(groups) == len(lengths):
        raise CreditError(f"{len(lengths)} trajectories, but anchors of {len(anchors)} and {len(groups)} group names")
    cells: dict[Hashable, list[tuple[int, int]]] = {}
    for i, (states, group, length) in enumerate(zip(anchors, groups, lengths, strict=True)):
        if len(states) != length:
            raise CreditError(f"trajectory {i} has {length} steps but {len(states)} anchors")
        for t, state in enumerate(states):
            cells.setdefault((group, state), []).append((i, t))
    return list(cells.values())


def merge_similar(states: Sequence[Sequence[str]], groups: Sequence[Hashable], threshold: float) -> list[list[int]]:
    """Anchors from texts: those of a group that are at least `threshold` alike (through others, too) become one state."""
    found: list[list[int]] = [[] for _ in states]
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    for trajectories in members.values():
        numbers = iter(clusters([text for i in trajectories for text in states[i]], threshold))
        for i in trajectories:
            found[i] = [next(numbers) for _ in states[i]]
    return found
