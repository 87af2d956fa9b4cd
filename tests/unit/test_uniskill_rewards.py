"""The switches of the reward, each shown by what it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gongfu.core.errors import ConfigError
from gongfu.methods.uniskill.records import Verdict
from gongfu.methods.uniskill.rewards import RewardRules, reward
from uniskill_cases import GOOD, REWARD_RULES, aligned, proposal

PLUS, REFERENCE, PAPER = (REWARD_RULES[name] for name in ("plus", "reference", "paper"))
DOWN = Verdict(None, None, error="the endpoint is down")
UNASKED = Verdict(None, None)


def test_a_critic_that_is_down_removes_its_own_part_only():
    found = reward(proposal(), DOWN, aligned(0.02), "", PLUS)
    assert (found.format, found.op, found.skill) == (0.05, None, pytest.approx(0.02))
    assert found.complete and found.total == pytest.approx(0.07)


@pytest.mark.parametrize("rules", [PAPER, REFERENCE])
def test_a_critic_that_is_down_makes_a_proposal_incomplete_in_the_paper(rules):
    assert not reward(proposal(), DOWN, aligned(0.02), "", rules).complete
    assert not reward(proposal("KEEP"), DOWN, None, "", rules).complete


@pytest.mark.parametrize("rules", [PAPER, REFERENCE, PLUS])
@pytest.mark.parametrize("verdict", [None, UNASKED])
def test_no_critic_leaves_form_and_alignment_under_all_rules(rules, verdict):
    found = reward(proposal(), verdict, aligned(0.02), "", rules)
    assert found.complete and found.op is None and found.total == pytest.approx(0.07)
    keep = reward(proposal("KEEP"), verdict, None, "", rules)
    assert keep.complete and keep.total == pytest.approx(0.05)


def test_half_an_answer_of_the_critic():
    half = Verdict(True, None, error="no answer to the second question")
    assert reward(proposal(), half, aligned(0.02), "", PLUS).total == pytest.approx(0.12)
    assert not reward(proposal(), half, aligned(0.02), "", REFERENCE).complete


@pytest.mark.parametrize("alignment", [None, aligned(0.02, coverage=0.79)])
def test_an_edit_that_cannot_be_scored(alignment):
    partial = reward(proposal(), GOOD, alignment, "", PLUS)
    assert partial.complete and (partial.op, partial.skill) == (0.05, None)
    assert not reward(proposal(), GOOD, alignment, "", REFERENCE).complete


def test_coverage_is_a_gate_of_the_code_and_not_of_the_paper():
    assert reward(proposal(), GOOD, aligned(0.02, coverage=0.79), "", PAPER).total == pytest.approx(0.12)
    assert reward(proposal(), GOOD, aligned(0.02, coverage=0.80), "", REFERENCE).total == pytest.approx(0.12)


def test_duplicates():
    assert reward(proposal(), GOOD, aligned(0.02), "skill-1", REFERENCE).skill == -0.05
    assert reward(proposal(), GOOD, None, "skill-1", REFERENCE).complete
    assert reward(proposal(), GOOD, aligned(0.02), "skill-1", PAPER).skill == pytest.approx(0.02)
    assert reward(proposal(), GOOD, aligned(0.02), "skill-1", replace(PLUS, duplicate_factor=2.0)).skill == -0.10


def test_an_update_without_a_shown_skill_has_a_wrong_operation_whoever_judges():
    for verdict in (GOOD, UNASKED, DOWN):
        assert reward(proposal("UPDATE"), verdict, aligned(0.02), "", PLUS).op == -0.05
    assert reward(proposal("UPDATE", target="s"), GOOD, aligned(0.02), "", PLUS).op == 0.05


def test_the_alignment_is_clipped_on_both_sides():
    assert reward(proposal(), GOOD, aligned(0.4), "", PLUS).skill == 0.05
    assert reward(proposal(), GOOD, aligned(-0.4), "", PLUS).skill == -0.05


def test_keep_is_paid_by_what_the_shown_skill_is_worth():
    keep = proposal("KEEP", target="s")
    good = Verdict(True, None)
    assert reward(keep, good, aligned(0.03), "", PLUS).skill == pytest.approx(0.03)
    assert reward(keep, good, aligned(-0.4), "", PLUS).skill == -0.05
    assert reward(keep, good, aligned(0.03, coverage=0.5), "", PLUS).skill == 0.0
    assert reward(keep, good, None, "", PLUS).skill == 0.0
    assert reward(keep, good, aligned(0.03), "", REFERENCE).skill == 0.0
    assert reward(keep, good, aligned(0.03), "", replace(PLUS, use_align=False)).skill == 0.0


def test_without_alignment_critic_and_duplicates_still_count():
    rules = replace(PLUS, use_align=False)
    assert reward(proposal(), GOOD, aligned(0.03), "", rules).skill == 0.0
    assert reward(proposal(), Verdict(True, False), None, "", rules).skill == -0.05
    assert reward(proposal(), GOOD, None, "skill-1", rules).skill == -0.05
    assert reward(proposal(), GOOD, None, "", replace(rules, partial_when_unscorable=False)).complete


def test_the_warm_up_pays_form_alone():
    found = reward(proposal(), Verdict(False, False), aligned(-1.0), "skill-1", PLUS, warm_up=True)
    assert (found.total, found.op, found.skill, found.complete) == (0.05, None, None, True)
    assert reward(proposal(None), None, None, "", PLUS, warm_up=True).total == pytest.approx(-0.15)


@pytest.mark.parametrize(
    "wrong", [{"eta": 0.0}, {"malformed_factor": 0.5}, {"duplicate_factor": -1.0}, {"coverage": 1.2}, {"coverage": -0.1}]
)
def test_settings_that_cannot_be_used(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RewardRules(**wrong)
