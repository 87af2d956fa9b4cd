"""UniSkill's numbers, worked by hand: eligible groups, every total a proposal can be paid, the gate, the threshold."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gongfu.core.seeds import rng_for
from gongfu.methods.uniskill.conformal import Calibration
from gongfu.methods.uniskill.gate import decide
from gongfu.methods.uniskill.pairing import eligible_probability, make_pairs
from gongfu.methods.uniskill.records import Alignment, Verdict
from gongfu.methods.uniskill.rewards import reward
from uniskill_cases import GATE_RULES, REWARD_RULES, aligned, group_of, judged, proposal

VERDICTS = [Verdict(*parts) for parts in product((True, False), (True, False))]
ALIGNMENTS = [aligned(r) for r in (-1.0, -0.05, -0.01, 0.0, 0.01, 0.05, 1.0)]


@pytest.mark.parametrize(("successes", "proposals"), [(8, 0), (7, 0), (6, 8), (5, 8), (4, 8), (3, 8), (2, 8), (1, 0), (0, 0)])
def test_proposals_of_a_group_of_eight(successes, proposals):
    for references in (0, 1):
        pairs = make_pairs(group_of(successes, 8 - successes), references=references, rng=rng_for(0, purpose="pairs"))
        assert len(pairs) == proposals
        assert len({pair.source.id for pair in pairs}) == proposals


@pytest.mark.parametrize(
    ("p", "eligible"), [(0.1, 0.19), (0.3, 0.74), (0.5, 0.93), (0.8, 0.50), (0.9, 0.19), (0.95, 0.057), (0.98, 0.010)]
)
def test_probability_of_two_and_two_among_eight(p, eligible):
    assert eligible_probability(p, 8) == pytest.approx(eligible, abs=0.005 if eligible > 0.1 else 0.0005)


def test_probability_at_the_borders():
    assert eligible_probability(0.5, 8) == 238 / 256  # all but 1 + 8 + 8 + 1 of 256
    assert eligible_probability(0.5, 4) == 6 / 16
    assert eligible_probability(0.5, 3) == 0
    assert eligible_probability(0.0, 8) == eligible_probability(1.0, 8) == 0


def test_mean_shifts_of_the_references():
    """Success: steps (-1, -.5) and (-.2) become (-.8, -.4) and (-.25); failure: (-.6, -.6, -.3) becomes (-.7, -.6, -.35)."""
    # +: step means .15 and -.05, mean .05. -: one step a value, -.1, 0, -.05, mean -.05.
    case = Alignment(((0.15 - 0.05) / 2,), ((-0.1 + 0.0 - 0.05) / 3,))
    assert case.r_align == pytest.approx(0.10)
    assert reward(proposal(), Verdict(True, True), case, "", REWARD_RULES["paper"]).skill == 0.05
    assert decide(judged(alignment=case), GATE_RULES["paper"]).accepted


def total(op, verdict, alignment, rules, **about) -> float:
    found = reward(proposal(op, **about), verdict, alignment, "", rules)
    assert found.complete
    return found.total


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_every_total_of_the_paper(preset):
    rules = REWARD_RULES[preset]
    assert total(None, None, None, rules) == -0.05
    assert [total("KEEP", Verdict(ok, None), None, rules) for ok in (False, True)] == pytest.approx([0.0, 0.10])
    for op, about in (("ADD", {}), ("UPDATE", {"target": "s"})):
        for alignment in ALIGNMENTS:
            part = max(-0.05, min(0.05, alignment.r_align))
            assert total(op, Verdict(True, False), alignment, rules, **about) == pytest.approx(0.05)
            assert total(op, Verdict(False, False), alignment, rules, **about) == pytest.approx(-0.05)
            assert total(op, Verdict(True, True), alignment, rules, **about) == pytest.approx(0.10 + part)  # in [.05, .15]
            assert total(op, Verdict(False, True), alignment, rules, **about) == pytest.approx(part)  # in [-.05, .05]
            assert total("UPDATE", Verdict(True, True), alignment, rules) == pytest.approx(part)  # no skill: a wrong operation


def well_formed(rules) -> list[float]:
    """Totals of everything that is well written, whatever was said and measured about it."""
    verdicts = [*VERDICTS, Verdict(None, None), Verdict(None, None, error="down"), None]
    found = []
    for op, verdict, alignment, duplicate in product(("ADD", "UPDATE", "KEEP"), verdicts, [*ALIGNMENTS, None], ("", "s")):
        for target in ("", "s"):
            paid = reward(proposal(op, target=target), verdict, alignment, duplicate, rules)
            found += [paid.total] if paid.complete else []
    return found


def test_the_worst_edit_ties_with_a_malformed_one_in_the_paper_and_never_in_plus():
    malformed = {name: reward(proposal(None), None, None, "", rules).total for name, rules in REWARD_RULES.items()}
    assert malformed == pytest.approx({"paper": -0.05, "reference": -0.05, "plus": -0.15})
    assert min(well_formed(REWARD_RULES["reference"])) == pytest.approx(malformed["reference"])
    assert min(well_formed(REWARD_RULES["paper"])) == pytest.approx(malformed["paper"])
    assert min(well_formed(REWARD_RULES["plus"])) > malformed["plus"] + 0.05


@pytest.mark.parametrize("preset", ["paper", "reference", "plus"])
def test_a_score_that_rises_because_failures_became_less_likely_still_is_refused(preset):
    """The paper's case 1: Δ+ = -.00449, Δ- = -.01515, so R_align = +.01066, and the success became less likely."""
    case = judged(alignment=Alignment((-0.00449,), (-0.01515,)))
    assert case.alignment.r_align == pytest.approx(0.01066)
    assert decide(case, GATE_RULES[preset], pooled=0.0).reason == "delta_plus"
    assert decide(case, replace(GATE_RULES[preset], delta_plus=False), pooled=0.0).accepted


@pytest.mark.parametrize(("alpha", "threshold"), [(0.1, 0.08), (0.2, 0.05), (0.3, 0.03), (0.4, 0.01), (0.5, 0.0), (0.99, 0.0)])
def test_thresholds_of_nine_pairs(alpha, threshold):
    """(harmful above c + 1) / 10 <= α leaves room for 0, 1, 2, ... of the harmful scores .08, .05, .03, .01."""
    calibration = Calibration()
    gains = {0.08: -0.2, 0.07: 0.1, 0.06: 0.0, 0.05: -0.1, 0.04: 0.3, 0.03: -0.05, 0.02: 0.1, 0.01: -0.4, -0.02: -0.3}
    for score, gain in gains.items():
        calibration.add(score, gain, step=0)
    assert calibration.threshold(alpha, step=9) == threshold
