"""Which proposals a group gives, and what each is made from and measured on (UniSkill, disjoint roles of the rollouts)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import comb

from gongfu.core.records import Trajectory
from gongfu.methods.uniskill.records import Group, Pair
from gongfu.rollout.collector import lost


def make_pairs(group: Group, *, references: int, rng: random.Random, shared: bool = False) -> list[Pair]:
    """One pair for every rollout that can be a source; none unless at least two of the group succeeded and two failed.

    Every rollout is a source. Its opposite is drawn from the other outcome, then up to `references` successes and as many
    failures from what is left (1 = the paper's single pair, 0 = all that is left); a side may hold fewer, never none.

    With `shared` references the group is divided once: up to `references` of each outcome (0 = half of them) measure every
    proposal, and sources and opposites are drawn from the others, at least one of each outcome. So a text that several sources
    led to is measured once, and texts of a group differ by what they say, not by what they are measured on.

    Rollouts that were lost or have no turn play no part. Neither the order of the group's rollouts nor that of the groups
    matters when every group has its own generator:

        make_pairs(group, references=0, rng=rng_for(seed, purpose="pairs", step=k, task=group.trajectories[0].group))

    Raises ValueError for a negative number of references.
    """
    if references < 0:
        raise ValueError(f"the number of references must be 0 (all) or more, got {references}")
    played = sorted((t for t in group.trajectories if t.turns and not lost(t)), key=_number)
    successes = [t for t in played if t.success]
    failures = [t for t in played if not t.success]
    if min(len(successes), len(failures)) < 2:
        return []
    if shared:
        return _divided(successes, failures, references, rng)
    pairs = []
    for source in played:
        opposite = rng.choice(failures if source.success else successes)
        pairs.append(
            Pair(
                source,
                opposite,
                _draw(successes, (source, opposite), references, rng),
                _draw(failures, (source, opposite), references, rng),
            )
        )
    return pairs


def _divided(
    successes: Sequence[Trajectory], failures: Sequence[Trajectory], references: int, rng: random.Random
) -> list[Pair]:
    """Pairs on the same references."""
    for_both: list[tuple[Trajectory, ...]] = []
    others: list[list[Trajectory]] = []
    for side in (successes, failures):
        drawn = {t.id for t in rng.sample(side, min(references or len(side) // 2, len(side) - 1))}
        for_both.append(tuple(t for t in side if t.id in drawn))
        others.append([t for t in side if t.id not in drawn])
    sources = sorted([*others[0], *others[1]], key=_number)
    return [Pair(source, rng.choice(others[source.success]), *for_both) for source in sources]


def eligible_probability(p: float, group_size: int) -> float:
    """Probability that a group gives proposals, if its rollouts succeed independently with probability `p`: at least 2 + 2.

    >>> round(eligible_probability(0.5, 8), 4)
    0.9297
    """
    return sum(comb(group_size, k) * p**k * (1 - p) ** (group_size - k) for k in range(2, group_size - 1))


def _draw(
    side: Sequence[Trajectory], seen: tuple[Trajectory, Trajectory], references: int, rng: random.Random
) -> tuple[Trajectory, ...]:
    left = [t for t in side if t.id not in (seen[0].id, seen[1].id)]
    return tuple(rng.sample(left, min(references, len(left)))) if references else tuple(left)


def _number(trajectory: Trajectory) -> tuple[int, str]:
    """Ids of a group differ in the rollout's number at their end: shorter first puts 2 before 10."""
    return len(trajectory.id), trajectory.id
