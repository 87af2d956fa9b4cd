"""What every bank does with evidence, whatever database it is kept in."""

from __future__ import annotations

import pytest

from gongfu.skills.edits import Update
from gongfu.skills.errors import EvidenceError
from gongfu.skills.evidence import ProposalRecord
from gongfu.skills.utilities import NEVER_USED, utilities
from skill_support import add, skill, use


def test_uses_come_back_and_recording_them_again_changes_nothing(bank):
    first = add(bank, skill(1), skill(2))
    uses = [use(skill(1), first.id, step=s, n=n, success=n > 0) for s in (1, 2) for n in range(3)]
    other = use(skill(2), first.id, step=2, mode="without")
    assert bank.record_uses([*uses, other]) == 7
    assert bank.record_uses([*uses, use(skill(1), first.id, step=3)]) == 1
    assert bank.uses(skill(1).id, before_step=3) == uses
    assert bank.uses(before_step=2) == uses[:3] and len(bank.uses()) == 8
    assert bank.uses(skill(2).id) == [other]
    assert bank.record_uses([]) == 0


def test_a_use_of_what_the_bank_does_not_hold_is_refused(bank):
    first = add(bank, skill(1))
    good = use(skill(1), first.id)
    for bad in (use(skill(2), first.id, n=1), use(skill(1), "f" * 64, n=1)):
        with pytest.raises(EvidenceError, match="not in this bank"):
            bank.record_uses([good, bad])
    for bad in (
        use(skill(1), first.id, mode="maybe"),
        use(skill(1), first.id, outcome="?"),
        use(skill(1), first.id, score=float("nan")),
    ):
        with pytest.raises(EvidenceError, match=skill(1).id):
            bank.record_uses([good, bad])
    with pytest.raises(EvidenceError, match=r"same key \(step, trajectory, skill, mode\): 1, s1-t0"):
        bank.record_uses([good, use(skill(1), first.id, success=False)])
    assert bank.uses() == []


def test_proposals_come_back_rejected_ones_too(bank):
    scores = {"r_align": 0.25, "delta": None}
    kept = ProposalRecord(
        "p-1", 1, "add", "", "s1-t0", ("s1-t1", "s1-t2"), "Odd \0 \ud800 text", scores, "ok", "accepted", "best"
    )
    lost = ProposalRecord("p-2", 2, "update", skill(1).id, "s1-t3", (), "Worse.", decision="rejected", reason="duplicate")
    assert bank.record_proposals([lost, kept]) == 2
    assert bank.record_proposals([kept, lost]) == 0
    assert bank.proposals() == [kept, lost]
    assert bank.proposals(target=skill(1).id) == [lost] and bank.proposals(before_step=2) == [kept]
    with pytest.raises(EvidenceError, match="p-3"):
        bank.record_proposals([ProposalRecord("p-3", 1, "add", "", "", (), "", {"x": float("inf")})])
    with pytest.raises(EvidenceError, match=r"same key \(id\): p-1"):
        bank.record_proposals([kept, kept])


def test_a_resumed_run_sees_the_utilities_that_the_uninterrupted_one_saw(bank):
    first = add(bank, skill(1), skill(2), skill(3))
    view = bank.at()

    def play(step):
        ways = [("with", True), ("with", True), ("with", False), ("without", False), ("shadow", True)]
        bank.record_uses([use(skill(1), first.id, step=step, n=n, mode=m, success=s) for n, (m, s) in enumerate(ways)])
        bank.record_uses([use(skill(2), first.id, step=step, success=False), use(skill(3), first.id, step=step, mode="shadow")])

    seen = {}
    for step in (1, 2, 3):
        seen[step] = utilities(bank, view, before_step=step)
        play(step)
    for step in (2, 3):  # resumed from the checkpoint of step 1: steps 2 and 3 are on record already
        assert utilities(bank, view, before_step=step) == seen[step]
        play(step)
    one, two, three = (seen[3][skill(n).id] for n in (1, 2, 3))
    assert one[:4] == (6, 4, 2, 0) and one.last_used == 2 and one.uplift == pytest.approx(2 / 3)
    assert two[:4] == (2, 0, 0, 0) and two.uplift is None
    assert three == NEVER_USED and seen[1] == dict.fromkeys(view, NEVER_USED)
    assert utilities(bank, view)[skill(1).id][:4] == (9, 6, 3, 0)


def test_an_update_starts_with_no_evidence_and_a_revert_brings_the_old_back(bank):
    first = add(bank, skill(1))
    bank.record_uses([use(skill(1), first.id)])
    second = bank.commit([Update(skill(1).id, {"text": "Look."})], parent=first.id, step=2)
    assert utilities(bank, bank.at())[skill(1).id] == NEVER_USED
    assert utilities(bank, bank.at(first.id))[skill(1).id].with_n == 1
    bank.revert(second.id)
    assert utilities(bank, bank.at())[skill(1).id].with_n == 1
