"""Which edits enter the bank, and the one word that says why not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gongfu.core.errors import ConfigError
from gongfu.methods.uniskill.gate import (
    GateRules,
    choose_edits,
    decide,
    find_duplicates,
    pooled_variance,
    standard_error,
)
from gongfu.methods.uniskill.records import Alignment, Verdict
from gongfu.methods.uniskill.shelf import similarity
from uniskill_cases import GATE_RULES, SHOWN, TEXT, aligned, judged, proposal

PAPER, REFERENCE, PLUS = (GATE_RULES[name] for name in ("paper", "reference", "plus"))
NEAR = "Heat the mug in a microwave before you put it down!"
OTHER = "Search every drawer for the knife, then slice the bread."
DOWN = Verdict(None, None, error="down")
SPREAD = Alignment((0.08, 0.02), (-0.02, -0.04))


def words(decisions) -> dict[str, str]:
    return {j.proposal.id: d.reason for j, d in decisions}


def chosen(*edits, rules=PAPER, bank=None, **more) -> dict[str, str]:
    return words(choose_edits(edits, rules, bank=bank or {}, **more))


# --- one edit ---


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (judged(), "accepted"),
        (judged(op=None), "malformed"),
        (judged(op="KEEP"), "keep"),
        (judged(verdict=Verdict(False, True)), "critic"),
        (judged(verdict=Verdict(True, False)), "critic"),
        (judged(op="UPDATE"), "critic"),
        (judged(op="UPDATE", target="s"), "accepted"),
        (judged(verdict=Verdict(None, None)), "accepted"),
        (judged(verdict=None), "accepted"),
        (judged(verdict=DOWN), "missing"),
        (judged(duplicate_of="s"), "duplicate"),
        (judged(-0.01, alignment=aligned(-0.01, plus=0.01)), "r_align"),
        (judged(alignment=aligned(0.0, plus=0.01)), "r_align"),
        (judged(alignment=aligned(0.01, plus=0.0)), "delta_plus"),
        (judged(alignment=aligned(0.03, coverage=0.79)), "missing"),
    ],
)
def test_what_refuses_an_edit(case, reason):
    decision = decide(case, REFERENCE)
    assert (decision.reason, decision.accepted) == (reason, reason == "accepted")


def test_an_edit_that_was_not_measured():
    case = replace(judged(), alignment=None)
    assert decide(case, REFERENCE).reason == "missing"
    assert decide(case, replace(REFERENCE, use_align=False)).accepted
    assert decide(judged(verdict=Verdict(True, False)), replace(REFERENCE, use_align=False)).reason == "critic"


def test_the_switches_of_one_edit():
    assert decide(judged(verdict=DOWN), replace(PAPER, missing_critic="accept")).accepted
    assert decide(judged(alignment=aligned(0.03, coverage=0.5)), PAPER).accepted
    assert decide(judged(), PAPER, warm_up=True).reason == "warm-up"
    assert decide(judged(op=None), PAPER, warm_up=True).reason == "malformed"


def test_a_calibrated_threshold_must_be_exceeded():
    assert decide(judged(0.03), PAPER, threshold=0.029).accepted
    same = judged(0.03)
    assert decide(same, PAPER, threshold=same.alignment.r_align).reason == "calibration"
    assert decide(judged(0.03), PAPER, threshold=None).accepted


def test_confidence():
    # plus: mean .05, variance .0018; minus: mean -.03, variance .0002; SE = sqrt(.0020 / 2) = .0316228; R = .08
    assert standard_error(SPREAD, None) == pytest.approx(0.0316228, abs=1e-7)
    case = judged(alignment=SPREAD)
    assert decide(case, PLUS).accepted
    assert decide(case, replace(PLUS, z=2.5)).accepted  # .08 - .07906
    assert decide(case, replace(PLUS, z=2.6)).reason == "confidence"
    assert decide(case, replace(PAPER, z=2.6)).accepted


def test_a_single_reference_takes_the_pooled_variance():
    single = Alignment((0.05,), (-0.02, -0.04))
    # .0016 / 1 + .0002 / 2 = .0017
    assert standard_error(single, 0.0016) == pytest.approx(0.0412311, abs=1e-7)
    assert standard_error(single, None) is None
    assert decide(judged(alignment=single), PLUS).reason == "confidence"
    assert decide(judged(alignment=single), PLUS, pooled=0.0016).accepted
    assert decide(judged(alignment=single), PLUS, pooled=0.01).reason == "confidence"
    # (1 * .0018 + 1 * .0002 + 2 * .0001) / 4: three references .01, .02, .03 have variance .0001
    assert pooled_variance([SPREAD, Alignment((0.01, 0.02, 0.03), (0.5,))]) == pytest.approx(0.00055)
    assert pooled_variance([aligned(0.1)]) is None


def test_a_step_pools_its_own_edits():
    single = judged(alignment=Alignment((0.05,), (-0.03,)), id="single", text=OTHER)
    keep = judged(op="KEEP", alignment=Alignment((5.0, -5.0), (5.0, -5.0)), id="keep", target="s")
    assert chosen(single, rules=PLUS)["single"] == "confidence"
    wide = judged(alignment=SPREAD, id="wide", group="g2")
    # pooled (.0018 + .0002) / 2 = .001; SE = sqrt(.002) = .0447 < .08
    assert chosen(single, wide, keep, rules=PLUS)["single"] == "accepted"
    assert chosen(single, wide, keep, rules=PLUS, pooled=0.004)["single"] == "confidence"


# --- a step ---


def test_the_same_text_enters_once_and_the_better_aligned_one_wins():
    assert chosen(judged(0.01, id="a"), judged(0.02, id="b"), judged(0.02, id="c")) == {
        "a": "duplicate",
        "b": "accepted",
        "c": "duplicate",
    }


def test_the_order_of_the_proposals_changes_nothing():
    edits = [judged(0.01 * (i % 3 + 1), id=f"p{i}", text=(TEXT, NEAR, OTHER)[i % 3], group=f"g{i % 2}") for i in range(9)]
    edits += [judged(0.01 * i, "UPDATE", f"{TEXT} Then look {i}.", id=f"u{i}", target="s") for i in range(1, 4)]
    shuffled = random.Random(2).sample(edits, len(edits))
    assert chosen(*shuffled, rules=PLUS, pooled=1e-6) == chosen(*edits, rules=PLUS, pooled=1e-6)
    assert [j.proposal.id for j, _ in choose_edits(shuffled, PLUS, bank={})] == [j.proposal.id for j in shuffled]


def test_near_duplicates():
    assert 0.8 < similarity(TEXT, NEAR) < 1.0
    assert similarity(TEXT, OTHER) < 0.3
    assert similarity("A mug, heated.", "a MUG heated") == 1.0
    near = judged(0.02, text=NEAR, id="near")
    lenient = replace(PAPER, near_duplicate=0.8)
    assert chosen(judged(0.03, id="p"), near, rules=lenient)["near"] == "duplicate"
    assert chosen(judged(0.03, id="p"), near, rules=PAPER)["near"] == "accepted"
    assert chosen(near, rules=lenient, bank={"heat": {"s": TEXT}})["near"] == "duplicate"
    assert chosen(near, rules=PAPER, bank={"heat": {"s": TEXT}})["near"] == "accepted"


def test_texts_are_compared_within_their_kind():
    bank = {"cool": {"s": TEXT}}
    assert chosen(judged(), bank=bank)["p"] == "accepted"
    assert chosen(judged(), bank={"heat": {"s": f"  {TEXT}\n"}})["p"] == "duplicate"
    assert chosen(judged(), bank=bank, rules=replace(PAPER, by_kind=False))["p"] == "duplicate"
    two = judged(0.02, id="a"), judged(0.01, id="b", kind="cool")
    assert chosen(*two)["b"] == "accepted"
    assert chosen(*two, rules=replace(PAPER, by_kind=False))["b"] == "duplicate"


def test_adds_of_a_group():
    edits = [judged(0.01 * (i + 1), id=f"p{i}", text=text) for i, text in enumerate((TEXT, OTHER, SHOWN))]
    edits.append(judged(0.001, id="elsewhere", text="Cool the apple in the fridge.", group="g2"))
    assert chosen(*edits, rules=replace(PAPER, max_adds_per_group=1)) == {
        "p0": "superseded",
        "p1": "superseded",
        "p2": "accepted",
        "elsewhere": "accepted",
    }
    assert set(chosen(*edits).values()) == {"accepted"}


def test_one_update_of_a_target():
    def update(r: float, id: str, target: str = "s"):
        return judged(r, "UPDATE", f"{SHOWN} Mind {id}.", id=id, target=target)

    found = chosen(update(0.01, "low"), update(0.03, "b"), update(0.03, "a"), update(0.001, "other", "t"))
    assert found == {"low": "superseded", "b": "superseded", "a": "accepted", "other": "accepted"}


def test_an_update_may_be_near_its_target_but_not_the_same_nor_near_another_skill():
    bank = {"heat": {"s": SHOWN, "t": TEXT}}
    small = judged(op="UPDATE", text=SHOWN + " Do.", target="s")
    assert similarity(SHOWN + " Do.", SHOWN) > 0.8
    lenient = replace(PAPER, near_duplicate=0.8)
    assert chosen(small, bank=bank, rules=lenient)["p"] == "accepted"
    assert chosen(judged(op="UPDATE", text=SHOWN, target="s"), bank=bank)["p"] == "duplicate"
    assert chosen(judged(op="UPDATE", text=NEAR, target="s"), bank=bank, rules=lenient)["p"] == "duplicate"
    assert chosen(judged(op="UPDATE", text=TEXT, target="s"), bank=bank)["p"] == "accepted"
    # the second best update of a target is taken when the best repeats what was just added
    edits = (
        judged(0.01, text=TEXT, id="add"),
        judged(0.03, "UPDATE", NEAR, id="best", target="s"),
        judged(0.02, "UPDATE", OTHER, id="second", target="s"),
    )
    assert chosen(*edits, rules=lenient) == {"add": "accepted", "best": "duplicate", "second": "accepted"}


def test_nothing_enters_in_the_warm_up():
    assert chosen(judged(), warm_up=True)["p"] == "warm-up"


# --- duplicates, before the reward is known ---


def test_what_the_reward_calls_a_duplicate():
    proposals = [
        proposal(id="first"),
        proposal(text=f" {TEXT} ", id="again"),
        proposal(text=NEAR, id="near"),
        proposal(id="elsewhere", kind="cool"),
        proposal("UPDATE", SHOWN, id="unchanged", target="s"),
        proposal("UPDATE", OTHER, id="changed", target="s"),
        proposal("KEEP", id="keep"),
        proposal(None, id="malformed"),
    ]
    assert find_duplicates(proposals, {}, REFERENCE) == {"again": "first", "unchanged": "s"}
    assert find_duplicates(proposals, {}, PLUS) == {"again": "first", "unchanged": "s"}
    bank = {"heat": {"old": TEXT}}
    assert find_duplicates(proposals, bank, REFERENCE) == {"first": "old", "again": "old", "unchanged": "s"}
    assert find_duplicates(proposals, bank, PLUS)["near"] == "old"


@pytest.mark.parametrize("wrong", [{"z": -1.0}, {"near_duplicate": 1.5}, {"coverage": -0.1}, {"max_adds_per_group": -1}])
def test_settings_that_cannot_be_used(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GateRules(**wrong)
