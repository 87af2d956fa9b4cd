"""Which rollouts play which part."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from gongfu.core.seeds import rng_for
from gongfu.methods.uniskill.pairing import make_pairs
from gongfu.methods.uniskill.records import Group
from uniskill_cases import group_of, rollout


def pairs_of(group: Group, references: int = 0, seed: int = 0, *, shared: bool = False):
    return make_pairs(group, references=references, rng=rng_for(seed, purpose="pairs", task="g"), shared=shared)


def parts(pairs):
    return [
        (p.source.id, p.opposite.id, [t.id for t in p.successes], [t.id for t in p.failures])
        for p in sorted(pairs, key=lambda p: p.source.id)
    ]


@pytest.mark.parametrize("references", [0, 1, 2])
@pytest.mark.parametrize(("successes", "failures"), [(2, 2), (2, 6), (3, 2), (4, 4)])
def test_the_parts_are_disjoint_and_of_the_right_outcome(successes, failures, references):
    for pair in pairs_of(group_of(successes, failures), references):
        everyone = [pair.source, pair.opposite, *pair.successes, *pair.failures]
        assert len({t.id for t in everyone}) == len(everyone)
        assert pair.source.success != pair.opposite.success
        assert all(t.success for t in pair.successes) and not any(t.success for t in pair.failures)
        left = (successes - 1, failures - 1)
        wanted = left if references == 0 else tuple(min(references, n) for n in left)
        assert (len(pair.successes), len(pair.failures)) == wanted


@pytest.mark.parametrize("references", [0, 1, 2, 9])
@pytest.mark.parametrize(("successes", "failures"), [(2, 2), (2, 6), (3, 2), (4, 4)])
def test_shared_references_measure_what_the_other_rollouts_lead_to(successes, failures, references):
    pairs = pairs_of(group_of(successes, failures), references, shared=True)
    assert all((pair.successes, pair.failures) == (pairs[0].successes, pairs[0].failures) for pair in pairs)
    measuring = [t.id for t in (*pairs[0].successes, *pairs[0].failures)]
    wanted = tuple(min(references or n // 2, n - 1) for n in (successes, failures))
    assert (len(pairs[0].successes), len(pairs[0].failures)) == wanted
    assert all(t.success for t in pairs[0].successes) and not any(t.success for t in pairs[0].failures)
    assert len({pair.source.id for pair in pairs}) == len(pairs) == successes + failures - sum(wanted)
    for pair in pairs:
        assert pair.source.success != pair.opposite.success
        assert not {pair.source.id, pair.opposite.id} & set(measuring)


def test_shared_references_are_drawn():
    drawn = {tuple(t.id for t in pairs_of(group_of(4, 4), 2, seed, shared=True)[0].successes) for seed in range(100)}
    assert len(drawn) == 6  # every two of four


@pytest.mark.parametrize("shared", [False, True])
def test_the_order_of_the_rollouts_changes_nothing(shared):
    group = group_of(6, 6)
    shuffled = list(group.trajectories)
    random.Random(1).shuffle(shuffled)
    assert parts(pairs_of(replace(group, trajectories=shuffled), 2, shared=shared)) == parts(pairs_of(group, 2, shared=shared))
    assert [p.source.id for p in pairs_of(replace(group, trajectories=shuffled))] == [t.id for t in group.trajectories]


def test_another_seed_draws_others():
    assert parts(pairs_of(group_of(4, 4), 1, seed=0)) != parts(pairs_of(group_of(4, 4), 1, seed=1))


def test_the_draws_are_uniform():
    """Every failure is the opposite of rollout 0, and its reference, about as often as any other: 4 sigma of 2000 draws."""
    opposites, references = Counter(), Counter()
    for seed in range(2000):
        pair = pairs_of(group_of(2, 4), 1, seed)[0]
        opposites[pair.opposite.id] += 1
        references[pair.failures[0].id] += 1
    for counts in (opposites, references):
        assert len(counts) == 4
        assert all(abs(n - 500) < 4 * (2000 * 3 / 16) ** 0.5 for n in counts.values())


@pytest.mark.parametrize(
    "unusable", [rollout(9, False, stop="error"), rollout(9, False, stop="timeout"), rollout(9, False, "")]
)
def test_a_rollout_that_was_lost_or_took_no_turn_plays_no_part(unusable):
    assert pairs_of(group_of(4, 1, unusable)) == []
    pairs = pairs_of(group_of(2, 2, unusable))
    assert len(pairs) == 4
    assert not any(unusable.id in str(part) for part in parts(pairs))


def test_a_negative_number_of_references():
    with pytest.raises(ValueError, match="must be 0"):
        pairs_of(group_of(2, 2), -1)
