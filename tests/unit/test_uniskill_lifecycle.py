"""From evidence to a state, and from two banks to a verdict, by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from gongfu.core.errors import ConfigError
from gongfu.methods.uniskill.lifecycle import Canary, Change, LifecycleRules, Standing, review


@dataclass(frozen=True)
class Numbers:
    with_n: int = 0
    uplift: float | None = None
    high: float = 1.0
    last_used: int | None = None


RULES = LifecycleRules(probation=10)
HELPS = Numbers(10, 0.2, 0.5, last_used=40)
HARMS = Numbers(30, -0.4, -0.1, last_used=40)


def next_of(evidence, state="candidate", rules=RULES, step=50, since=0) -> tuple[str, str] | None:
    changes = review({"s": Standing(state, since, evidence)}, rules, step=step)
    return (changes[0].state, changes[0].reason) if changes else None


def test_a_candidate_becomes_active_after_its_probation():
    assert next_of(replace(HELPS, with_n=9)) is None
    assert next_of(HELPS) == ("active", "10 uses, uplift +0.200")
    assert next_of(Numbers(10)) == ("active", "10 uses, uplift not known")
    assert next_of(HELPS, state="active") is None
    assert next_of(replace(HELPS, uplift=-0.1)) == ("active", "10 uses, uplift -0.100")  # its interval still reaches above 0


@pytest.mark.parametrize("state", ["candidate", "active"])
def test_what_does_harm_is_retired(state):
    assert next_of(HARMS, state) == ("retired", "harmful: uplift -0.400, at most -0.100, in 30 uses")
    assert next_of(replace(HARMS, high=0.0), state) == (("active", "30 uses, uplift -0.400") if state == "candidate" else None)
    assert next_of(replace(HARMS, with_n=9), state) is None
    kept = next_of(HARMS, state, LifecycleRules(probation=10, retire_harmful=False))
    assert kept is None or kept[0] == "active"


def test_what_is_not_used_is_retired():
    rules = LifecycleRules(probation=10, unused_for=20)
    assert next_of(Numbers(3, last_used=31), "active", rules) is None
    assert next_of(Numbers(3, last_used=30), "active", rules) == ("retired", "not used for 20 steps")
    assert next_of(Numbers(), "candidate", rules, since=31) is None
    assert next_of(Numbers(), "candidate", rules, since=30) == ("retired", "not used for 20 steps")
    assert next_of(Numbers(), "candidate", RULES, since=0) is None


@pytest.mark.parametrize("state", ["retired", "quarantined"])
def test_what_is_out_stays_out(state):
    assert next_of(HARMS, state) is None
    assert next_of(HELPS, state) is None


def test_changes_come_by_skill():
    standings = {name: Standing("candidate", 0, HELPS) for name in ("b", "c", "a")}
    assert review(standings, RULES, step=50) == [Change(name, "active", "10 uses, uplift +0.200") for name in "abc"]


def test_the_numbers_of_the_bank_are_evidence():
    skills = pytest.importorskip("gongfu.skills.utilities")
    known = skills.Utility(with_n=30, uplift=-0.4, high=-0.1, last_used=3)
    assert next_of(known)[0] == "retired"


def canary(before: tuple[int, int], after: tuple[int, int], **settings) -> Canary:
    watch = Canary(**settings)
    watch.begin("old", "new")
    watch.count("old", success=before[0], n=before[1])
    watch.count("new", success=after[0], n=after[1])
    return watch


def test_when_to_roll_back():
    # 60% against 45% of 100: p = .525, SE = sqrt(.525 * .475 * .02) = .0706222, .15 / SE = 2.124
    assert canary((60, 100), (45, 100), errors=2.0).verdict() == "roll back"
    assert canary((60, 100), (45, 100), errors=2.2).verdict() == "keep"
    assert canary((60, 100), (46, 100), errors=2.0).verdict() == "keep"  # .14 / .0705904 = 1.983
    assert canary((45, 100), (60, 100), errors=0.0).verdict() == "keep"
    assert canary((40, 40), (40, 40), errors=0.0).verdict() == "keep"
    assert canary((40, 40), (0, 40), errors=2.0).verdict() == "roll back"


def test_a_canary_waits_for_both_sides_and_adds_up():
    watch = canary((60, 100), (9, 20), episodes=32)
    assert watch.verdict() == "wait"
    for _ in range(4):
        watch.count("new", success=9, n=20)
    assert watch.verdict() == "roll back"
    assert Canary().verdict() == "wait"
    watch.begin("new", "newer")
    assert watch.verdict() == "wait"


def test_a_canary_survives_json():
    watch = canary((60, 100), (45, 100))
    restored = Canary()
    restored.restore(json.loads(json.dumps(watch.state())))
    assert restored == watch
    assert restored.verdict() == "roll back"
    restored.restore(json.loads(json.dumps(Canary().state())))
    assert restored.verdict() == "wait"


def test_what_is_refused():
    watch = canary((6, 10), (4, 10))
    with pytest.raises(ValueError, match="watches the banks"):
        watch.count("newer", success=1, n=2)
    with pytest.raises(ValueError, match="3 successes in 2"):
        watch.count("new", success=3, n=2)
    with pytest.raises(ValueError, match="two commits"):
        watch.begin("new", "new")
    with pytest.raises(ConfigError, match="canary"):
        Canary(errors=-1.0)
    with pytest.raises(ConfigError, match="probation"):
        LifecycleRules(probation=0)
