"""What a step reads of a long bank, and that it sees no less by reading little."""

from __future__ import annotations

import pytest

from gongfu.methods.uniskill.library import Library
from gongfu.methods.uniskill.lifecycle import LifecycleRules
from gongfu.methods.uniskill.records import Decision
from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add
from gongfu.skills.errors import SkillError
from gongfu.skills.evidence import Tallies
from gongfu.skills.lexical import LexicalRetriever
from gongfu.skills.utilities import utilities
from skill_support import skill, use
from uniskill_cases import judged

ACCEPT = Decision(True, "accepted")
RULES = LifecycleRules(probation=4)


@pytest.fixture
def bank(tmp_path):
    """Thirty skills, one commit each."""
    with SkillBank.open(tmp_path / "bank.sqlite") as opened:
        for n in range(30):
            opened.commit([Add(skill(n))], parent=opened.head(), step=n)
        yield opened


def library_of(bank, rules=RULES):
    return Library(bank, LexicalRetriever(), rules, lambda tasks: [task.goal for task in tasks])


def play(library, of, step, *, wins=4, mode="with"):
    """Four uses of a skill, noted as a step notes them."""
    library.bank.record_uses([use(of, library.view.commit, step=step, n=n, mode=mode, success=n < wins) for n in range(4)])
    library.record([], {"task": of}, step)


def reads(library, monkeypatch):
    """What is read from now on: commits, and the number of versions that were asked for (None = all)."""
    seen: list[int | None] = []
    log, tallies = library.bank.log, library.bank.tallies

    def count_commits(*args, **more):
        found = log(*args, **more)
        seen.append(len(found))
        return found

    def count_versions(before_step=None, versions=None) -> Tallies:
        seen.append(None if versions is None else len(list(versions)))
        return tallies(before_step, versions)

    monkeypatch.setattr(library.bank, "log", count_commits)
    monkeypatch.setattr(library.bank, "tallies", count_versions)
    return seen


def test_a_step_reads_the_whole_log_once_and_then_only_what_is_new(bank, monkeypatch):
    library = library_of(bank)
    seen = reads(library, monkeypatch)
    library.write([], 30)
    assert seen == [31, None]
    for step in (31, 32):
        play(library, skill(7), step)
        library.write([(judged(text=f"Look behind door {step}.", id=f"p{step}"), ACCEPT)], step)
    assert seen == [31, None, 1, 1]


def test_new_evidence_moves_a_skill_at_once(bank):
    library = library_of(bank)
    library.write([], 30)
    play(library, skill(3), 31)
    assert library.write([], 31)["bank/active"] == 1
    assert library.view.state(skill(3).id) == "active"


def test_all_skills_are_reviewed_where_the_bank_was_set_back(bank):
    library = library_of(bank)
    library.write([], 30)
    before = library.view.commit
    play(library, skill(3), 31)
    library.write([], 31)
    library.back_to(before, "a test")
    assert library.view.state(skill(3).id) == "candidate"
    library.write([], 32)
    assert library.view.state(skill(3).id) == "active"


def test_a_library_that_begins_reviews_what_others_left(bank):
    first = library_of(bank)
    play(first, skill(5), 30)
    assert library_of(bank).write([], 31)["bank/active"] == 1


def test_time_retires_what_nobody_used_counted_from_the_present_version(bank):
    library = library_of(bank, LifecycleRules(probation=4, unused_for=20))
    library.write([], 30)
    retired = {n for n in range(30) if library.view.state(skill(n).id) == "retired"}
    assert retired == set(range(11))
    play(library, skill(11), 31)
    update = judged(op="UPDATE", text="Look under the bed.", id="u", target=skill(12).id)
    library.write([(update, ACCEPT)], 31)
    assert library.view.get(skill(12).id).version == 2
    library.write([], 33)
    library_of(bank, library.rules).write([], 33)  # one that reads the log anew counts the same
    library.view = bank.at()
    states = [library.view.state(skill(n).id) for n in (11, 12, 13, 14)]
    assert states == ["active", "candidate", "retired", "candidate"]
    library.write([], 51)
    assert [library.view.state(skill(n).id) for n in (11, 12)] == ["retired", "retired"]


def test_utilities_of_some_skills_are_those_of_all(bank):
    library = library_of(bank)
    for n in (3, 4):
        play(library, skill(n), 30, wins=n - 2)
    everything = utilities(bank, library.view)
    some = {skill(n).id for n in (3, 9)}
    assert utilities(bank, library.view, skills=some) == {i: everything[i] for i in some}
    assert utilities(bank, library.view, skills=()) == {}
    assert bank.tallies(versions=[skill(3).digest]).versions == [skill(3).digest] != bank.tallies().versions
    with pytest.raises(SkillError, match="no skill"):
        utilities(bank, library.view, skills=[skill(99).id])


def test_reading_little_reviews_as_reading_all_does(bank, monkeypatch):
    little = library_of(bank)
    for step in range(30, 36):
        for n in range(step % 3, 30, 7):
            play(little, skill(n), step, wins=n % 5)
            little.bank.record_uses([use(skill(n), little.view.commit, step=step, n=90 + i, mode="without") for i in range(8)])
        little.write([], step)
    states = {i: little.view.state(i) for i in little.view}
    assert {"candidate", "active", "retired"} <= set(states.values())
    everything = library_of(bank)
    everything.write([], 36)
    assert {i: everything.view.state(i) for i in everything.view} == states


def test_a_retired_text_counts_as_known_and_is_not_taken_in_again(bank):
    from gongfu.methods.uniskill.gate import choose_edits, find_duplicates
    from gongfu.skills.edits import SetState
    from uniskill_cases import GATE_RULES

    library = library_of(bank)
    bank.commit([SetState(skill(3).id, "retired", "harmful")], parent=bank.head())
    library.view = bank.at()
    again = judged(text=skill(3).text, id="again", kind=skill(3).kind)
    assert find_duplicates([again.proposal], library.texts(), GATE_RULES["plus"])
    decided = choose_edits([again], GATE_RULES["plus"], bank=library.texts(), pooled=0.0)
    assert not decided[0][1].accepted
    library.write(decided, 31)  # cut: the bank refuses to add what it holds
