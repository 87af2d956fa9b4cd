"""What every bank does, whatever database it is kept in."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter

import pytest
from sqlalchemy.exc import DBAPIError

from gongfu.skills import store
from gongfu.skills.bank import SkillBank
from gongfu.skills.commit import ROOT, Commit
from gongfu.skills.dialects import writing
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.errors import BankError, EditError, RefError, SkillError, StaleHeadError
from gongfu.skills.evidence import ProposalRecord
from gongfu.skills.skill import Skill
from gongfu.skills.tree import Tree
from skill_support import add, full_skill, skill, use


def contents(view):
    return {i: (view.get(i), view.state(i)) for i in view}


def sql(bank, *statements):
    """Run statements behind the bank's back."""
    with bank._engine.execution_options(writes=True).begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


# The log


def test_a_new_bank_begins_with_the_same_root_everywhere(bank, location):
    assert bank.head() == ROOT.id
    view = bank.at()
    assert (len(view), view.skills(), view.made_by) == (0, (), ROOT)
    assert bank.log() == [ROOT] and bank.log()[0].at
    bank.close()
    with SkillBank.open(location) as again:
        assert again.head() == ROOT.id and len(again.reflog()) == 1


def test_a_commit_is_seen_by_views_made_after_it_only(bank, location):
    before = bank.at()
    first = add(bank, skill(1), full_skill())
    view = bank.at("main")
    assert len(before) == 0 and bank.at(first.parent).skills() == ()
    assert contents(view) == {s.id: (s, "active") for s in (skill(1), full_skill())}
    assert list(view) == sorted(view) == [s.id for s in view.skills()]
    second = bank.commit(
        [Update(skill(1).id, {"text": "Look around."}), SetState(full_skill().id, "retired", "old"), Add(skill(2))],
        parent=first.id,
        step=2,
        message="three edits",
        meta={"checkpoint": "step-2", "scores": [0.5, None]},
    )
    assert contents(view) == {s.id: (s, "active") for s in (skill(1), full_skill())}
    now = bank.at()
    updated = skill(1).revised(2, text="Look around.")
    assert contents(now) == {
        updated.id: (updated, "active"),
        full_skill().id: (full_skill(), "retired"),
        skill(2).id: (skill(2), "candidate"),
    }
    assert {s.id for s in now.skills()} == {updated.id, skill(2).id}
    assert now.skills(states=("retired",)) == (full_skill(),)
    with SkillBank.open(location) as other:
        assert contents(other.at()) == contents(now)
        assert other.log() == [second, first, ROOT]
        assert other.log()[0].meta == {"checkpoint": "step-2", "scores": [0.5, None]}
        assert other.verify() == []


def test_only_commits_that_are_new_are_read(bank, location, monkeypatch):
    for n in range(10):
        add(bank, skill(n))
    bank.at()
    with SkillBank.open(location) as other:
        add(other, skill(10))
    read, history = [], store.history
    monkeypatch.setattr(store, "history", lambda *a, **k: (found := history(*a, **k), read.append(len(found)))[0])
    assert len(bank.at()) == len(bank.at()) == 11
    assert read == [2]  # the new one, and the one that was known


def test_skills_of_a_kind_are_those_for_it_and_those_for_any(bank):
    add(bank, skill(1, "cool"), skill(2, "heat"), skill(3, ""))
    assert {s.text for s in bank.at().skills(kind="cool")} == {skill(1).text, skill(3).text}
    with pytest.raises(SkillError, match="states are"):
        bank.at().skills(states=("actve",))


def test_the_same_run_twice_gives_the_same_commits(bank, tmp_path):
    def run(on):
        first = add(on, skill(1), step=1, message="a", meta={"b": 1, "a": [1.5]})
        return [first, on.commit([SetState(skill(1).id, "retired", "why")], parent=first.id, step=2)]

    with SkillBank.open(tmp_path / "other.sqlite") as other:
        assert run(bank) == run(other)
    bank.branch("other")
    ids = set()
    for more in ({}, {"step": 4}, {"message": "n"}, {"meta": {"k": 2}}):
        ids.add(bank.commit([Add(skill(5))], parent=bank.head("main"), branch="other", **{"step": 3, **more}).id)
        bank.reset("main", "another try", branch="other")
    assert len(ids) == 4


def test_equal_edits_on_equal_contents_of_other_descent_are_another_commit(bank):
    first = add(bank, skill(1))
    bank.commit([SetState(skill(1).id, "retired")], parent=first.id)
    bank.commit([SetState(skill(1).id, "active")], parent=bank.head())
    assert bank.at().made_by.tree == first.tree
    bank.branch("early", first.id)
    one, two = bank.commit([Add(skill(2))], parent=first.id, branch="early"), bank.commit([Add(skill(2))], parent=bank.head())
    assert (one.tree, one.ops) == (two.tree, two.ops) and one.id != two.id


def test_a_stale_commit_is_refused_and_writes_nothing(bank):
    old = bank.at()
    first = add(bank, skill(1))
    with pytest.raises(StaleHeadError) as caught:
        bank.commit([Add(skill(2))], parent=old.commit, step=1)
    assert (caught.value.branch, caught.value.parent, caught.value.head) == ("main", ROOT.id, first.id)
    assert bank.log() == [first, ROOT] and skill(2).id not in bank.at()
    sizes = [len(bank.reflog())]
    with bank._engine.connect() as connection:
        sizes += [connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() for table in ("objects", "commits")]
    assert sizes == [2, 1, 2]


def test_the_same_edits_again_on_the_same_parent_are_the_same_commit(bank):
    first = add(bank, skill(1), step=1)
    second = add(bank, skill(2), step=2)
    log = bank.reflog()
    assert bank.commit([Add(skill(1), "active")], parent=ROOT.id, step=1) == first  # main is further on already
    assert bank.commit([Add(skill(2), "active")], parent=first.id, step=2) == second
    assert (bank.head(), bank.reflog()) == (second.id, log)
    bank.reset(ROOT.id, "resume from the start")
    assert add(bank, skill(1), step=1) == first and bank.head() == first.id
    assert add(bank, skill(2), step=2) == second and bank.log() == [second, first, ROOT]
    assert bank.verify() == []


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([], "nothing to commit"),
        ([Add(skill(1))], "in the bank already, active"),
        ([Add(skill(2)), Add(skill(2))], "in the bank already, candidate"),
        ([Update("0" * 16, {"text": "x"})], "no skill 0000"),
        ([Update(skill(1).id, {"text": skill(1).text + " "})], "changes nothing"),
        ([Update(skill(1).id, {"version": 7})], "cannot change version"),
        ([Update(skill(1).id, {"text": " "})], "text is empty"),
        ([Update(skill(1).id, {"text": "x"}), Update(skill(1).id, {"text": "y"})], "twice"),
        ([SetState(skill(1).id, "active")], "active already"),
        ([SetState(skill(1).id, "gone")], "no state"),
        ([Add(skill(2), "gone")], "no state"),
        ([SetState("0" * 16, "active")], "no skill 0000"),
        ([SetState("nonsense", "active")], "no skill nonsense"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_and_nothing_is_written(bank, edits, says):
    first = add(bank, skill(1))
    with pytest.raises(EditError, match=says):
        bank.commit([Add(skill(9)), *edits] if edits else [], parent=first.id)
    assert bank.log() == [first, ROOT] and skill(9).id not in bank.at()


@pytest.mark.parametrize("more", [{"meta": {"x": float("nan")}}, {"meta": {"x": object()}}, {"message": "a\0b"}])
def test_what_cannot_be_hashed_cannot_be_committed(bank, more):
    with pytest.raises(EditError, match="cannot be committed"):
        add(bank, skill(1), **more)


# Names


def test_refs_name_commits_as_git_does(bank):
    commits = [ROOT, *(add(bank, skill(n), step=n) for n in range(1, 5))]
    tip = commits[4].id
    assert bank.tag("ckpt/step-3", commits[3].id) == commits[3].id
    assert bank.branch("try", "ckpt/step-3~1") == commits[2].id
    for ref, n in {"main": 4, "main~": 3, "main~2": 2, "main~1~1": 2, tip[:6]: 4, tip: 4, f"{tip[:9]}~4": 0, "try": 2}.items():
        assert bank.at(ref).commit == commits[n].id, ref
    aside = bank.commit([Add(skill(9))], parent=commits[2].id, branch="try")
    assert (bank.head("try"), bank.head()) == (aside.id, tip)
    assert bank.refs()["ckpt/step-3"] == ("tag", commits[3].id)
    assert bank.verify() == []


@pytest.mark.parametrize(
    ("ref", "says"),
    [
        ("", "names no commit"),
        ("nothing", "no branch, tag or commit 'nothing'"),
        ("main~9", "before the empty bank"),
        ("abcde", "no branch"),
    ],
)
def test_a_ref_that_names_nothing_says_so(bank, ref, says):
    with pytest.raises(RefError, match=says):
        bank.at(ref)


def test_a_prefix_of_several_commits_is_refused(bank, monkeypatch):
    for n in range(16):
        add(bank, skill(n))
    twice = Counter(c.id[0] for c in bank.log()).most_common(1)[0][0]  # 17 commits, 16 digits
    monkeypatch.setattr(store, "_PREFIX", re.compile("[0-9a-f]{1,64}"))  # nobody can wait for 6 equal digits
    with pytest.raises(RefError, match="begins several"):
        bank.at(twice)


def test_names_that_are_taken_or_look_like_commits_are_refused(bank):
    first = add(bank, skill(1))
    bank.tag("v1")
    assert bank.tag("v1", first.id) == first.id  # the same again is fine
    for make in (lambda: bank.tag("v1", ROOT.id), lambda: bank.branch("v1"), lambda: bank.branch("main", ROOT.id)):
        with pytest.raises(RefError, match="is taken"):
            make()
    for name in ("abc123", "a~b", "", "a b", "x" * 300):
        with pytest.raises(RefError, match="cannot name"):
            bank.tag(name)
    with pytest.raises(RefError, match="no branch 'v1'; there are main"):
        bank.commit([Add(skill(2))], parent=first.id, branch="v1")


# Undoing


def test_revert_takes_one_commit_back_and_keeps_the_rest(bank):
    add(bank, skill(1), full_skill(), step=1)
    bad = bank.commit(
        [Update(skill(1).id, {"text": "Wrong."}), Add(skill(2)), SetState(full_skill().id, "retired", "")],
        parent=bank.head(),
        step=2,
    )
    add(bank, skill(3), step=3)
    done = bank.revert(bad.id[:8])
    assert contents(bank.at()) == {s.id: (s, "active") for s in (skill(1), full_skill(), skill(3))}
    assert (done.step, done.message) == (3, f"Revert {bad.id[:12]}")
    again = bank.revert(done.id)
    assert bank.at().get(skill(1).id).text == "Wrong." and again.parent == done.id
    assert bank.verify() == []


def test_a_version_number_is_never_given_twice(bank):
    add(bank, skill(1))
    bad = bank.commit([Update(skill(1).id, {"text": "Wrong."})], parent=bank.head())
    bank.revert(bad.id)
    bank.commit([Update(skill(1).id, {"text": "Better."})], parent=bank.head())
    assert bank.at().get(skill(1).id).version == 3


def test_revert_refuses_what_was_changed_since(bank):
    add(bank, skill(1))
    bad = bank.commit([Update(skill(1).id, {"text": "Wrong."})], parent=bank.head())
    bank.commit([Update(skill(1).id, {"text": "Worse."})], parent=bank.head())
    with pytest.raises(EditError, match=f"skill {skill(1).id} was changed again since"):
        bank.revert(bad.id)
    with pytest.raises(EditError, match="empty bank cannot be reverted"):
        bank.revert("main~3")


def test_reset_moves_the_branch_and_the_reflog_remembers(bank):
    first = add(bank, skill(1))
    second = add(bank, skill(2))
    assert bank.reset("main~1", "it got worse") == second.id
    assert bank.head() == first.id and skill(2).id not in bank.at()
    last = bank.reflog()[-1]
    assert (last["ref"], last["old"], last["new"], last["why"]) == ("main", second.id, first.id, "it got worse")
    bank.reset(second.id, "no, it did not")
    assert contents(bank.at()).keys() == {skill(1).id, skill(2).id}
    assert bank.verify() == []


def test_quarantine_takes_a_skill_out_of_use_and_says_why(bank):
    add(bank, skill(1), skill(2), step=7)
    done = bank.quarantine(skill(1).id, "it leaves the fridge open")
    view = bank.at()
    assert view.state(skill(1).id) == "quarantined" and view.skills() == (skill(2),)
    assert bank.quarantine(skill(2).id, "too", step=9).step == 9
    assert done.step == 7 and done.ops[0]["reason"] == "it leaves the fridge open"


def test_diff_and_blame_say_what_changed_and_where(bank):
    first = add(bank, skill(1), skill(2))
    second = bank.commit([Update(skill(1).id, {"text": "Look.", "kind": "look"})], parent=first.id, step=2)
    third = bank.commit([SetState(skill(1).id, "retired", "x"), Add(skill(3))], parent=second.id, step=3)
    changes = {c.id: c for c in bank.diff(first.id, "main")}
    assert changes.keys() == {skill(1).id, skill(3).id}
    one, three = changes[skill(1).id], changes[skill(3).id]
    assert (one.before.text, one.after.text, one.fields) == (skill(1).text, "Look.", ("text", "kind", "state"))
    assert (three.before, three.state_before, three.after, three.state_after) == (None, None, skill(3), "candidate")
    assert bank.diff("main", "main") == []
    bank.revert(third.id)
    told = [(b.commit.step, b.op["op"], b.fields) for b in bank.blame(skill(1).id)]
    assert told == [
        (1, "add", ("text", "name", "kind", "state")),
        (2, "update", ("text", "kind")),
        (3, "state", ("state",)),
        (3, "put", ("state",)),
    ]
    assert [b.op["op"] for b in bank.blame(skill(3).id)] == ["add", "remove"]
    assert bank.blame("0" * 16) == []


def test_a_view_finds_skills_by_name_and_by_the_beginning_of_their_id(bank):
    add(bank, Skill("One.", name="same"), Skill("Two.", name="same"), Skill("Three.", name="other"))
    view = bank.at()
    three = Skill("Three.", name="other")
    assert view.find("other") == view.find(three.id[:6]) == three
    with pytest.raises(SkillError, match=r"one skill .* found: .*same.*same"):
        view.find("same")
    for word in ("nobody", ""):
        with pytest.raises(SkillError):
            view.find(word)
    with pytest.raises(SkillError, match="no skill 'x'"):
        view.get("x")
    assert "x" not in view and 3 not in view


# Damage


def test_objects_commits_and_evidence_refuse_change(bank):
    first = add(bank, skill(1))
    bank.record_uses([use(skill(1), first.id)])
    bank.record_proposals([ProposalRecord("p", 1, "add", "", "t", (), "x")])
    columns = {"objects": "digest", "commits": "id", "reflog": "ref", "uses": "trajectory", "proposals": "id"}
    for table, column in columns.items():
        for statement in (f"UPDATE {table} SET {column} = 'x'", f"DELETE FROM {table}"):
            with pytest.raises(DBAPIError, match="append-only"):
                sql(bank, statement)
    assert bank.verify() == []


def unlock(bank, table):
    if bank._engine.dialect.name == "sqlite":
        sql(bank, f"DROP TRIGGER {table}_no_update", f"DROP TRIGGER {table}_no_delete")
    else:
        sql(bank, f"DROP TRIGGER {table}_no_change ON {table}")


@pytest.mark.parametrize(
    ("table", "change", "says"),
    [
        (
            "objects",
            "UPDATE objects SET body = replace(body, 'Advice number 1', 'Evil')",
            r"skill version \w{12}: .*(another first|was changed)",
        ),
        ("objects", "UPDATE objects SET body = replace(body, 'Look', 'Evil')", r"skill version \w{12}: was changed"),
        ("objects", "UPDATE objects SET body = body || ' '", r"skill version \w{12}: was changed"),
        ("objects", "UPDATE objects SET body = '{'", r"skill version \w{12}: is no skill"),
        (
            "commits",
            "UPDATE commits SET ops = replace(ops, 'active', 'retired') WHERE depth = 1",
            r"commit \w{12}: was changed",
        ),
        ("commits", "UPDATE commits SET message = 'x' WHERE depth = 2", r"commit \w{12}: was changed"),
        ("commits", "UPDATE commits SET meta = '{\"a\":2}' WHERE depth = 2", r"commit \w{12}: was changed"),
        ("commits", "UPDATE commits SET step = 9 WHERE depth = 2", r"commit \w{12}: was changed"),
        ("commits", "UPDATE commits SET depth = 5 WHERE depth = 2", r"its parent \w{12} is missing or not one commit nearer"),
        ("commits", "UPDATE commits SET ops = 'x' WHERE depth = 1", r"commit \w{12}: cannot be read"),
        ("commits", "UPDATE commits SET ops = '[1]' WHERE depth = 1", r"commit \w{12}: the operation 1 does not fit"),
        (
            "refs",
            "UPDATE refs SET commit_id = (SELECT id FROM commits WHERE depth = 1)",
            "branch main: is at .* never moved it",
        ),
    ],
)
def test_verify_names_what_was_changed(bank, table, change, says):
    add(bank, skill(1))
    bank.commit([Update(skill(1).id, {"text": "Look."})], parent=bank.head(), step=2)
    assert bank.verify() == []
    if table != "refs":
        unlock(bank, table)
    sql(bank, change)
    found = "\n".join(bank.verify())
    assert re.search(says, found), found


def test_verify_names_a_missing_version_and_a_reader_refuses_damage(bank, location):
    if bank._engine.dialect.name != "sqlite":
        pytest.skip("its foreign keys cannot be switched off")
    first = add(bank, skill(1))
    bank.record_uses([use(skill(1), first.id)])
    unlock(bank, "objects")
    with contextlib.closing(sqlite3.connect(location)) as behind, behind:  # foreign keys are off in a new connection
        behind.execute("DELETE FROM objects")
    found = bank.verify()
    assert any(f"needs the skill version {skill(1).digest[:12]}, which is missing" in line for line in found), found
    assert any("uses: version" in line for line in found), found
    with SkillBank.open(location) as other, pytest.raises(BankError, match="is missing, run verify"):
        other.at()
    unlock(bank, "commits")
    sql(bank, "UPDATE commits SET ops = replace(ops, 'active', 'retired')")
    with SkillBank.open(location) as other, pytest.raises(BankError, match="vouches for, run verify"):
        other.at()


def test_a_commit_that_lies_about_what_it_holds_is_found(bank):
    ops = [{"op": "add", "skill": skill(1).id, "digest": skill(1).digest, "version": 1, "state": "active"}]
    lie = Commit.of(ROOT, Tree(), ops, 1, "", {})
    with writing(bank._engine) as connection:
        store.append(connection, lie, [skill(1)], "main")
    assert any("its operations lead to the tree" in line for line in bank.verify())
    with pytest.raises(BankError, match="vouches for, run verify"):
        bank.at()


# Many writers


def test_a_branch_moves_only_from_where_it_is(bank):
    first = add(bank, skill(1))
    with writing(bank._engine) as connection, pytest.raises(StaleHeadError):
        store.move(connection, "main", ROOT.id, first.id, "")
    assert len(bank.reflog()) == 2


def test_a_quarantine_that_meets_another_writer_is_made_on_the_new_head(bank, monkeypatch):
    add(bank, skill(1))
    commit, others = bank.commit, []

    def late(edits, **where):
        if not others:
            others.append(commit([Add(skill(2))], parent=bank.head(), step=2))
        return commit(edits, **where)

    monkeypatch.setattr(bank, "commit", late)
    assert bank.quarantine(skill(1).id, "harmful").parent == others[0].id
    assert bank.at().skills() == (skill(2),)


def test_threads_read_and_write_one_bank(bank):
    def work(n):
        for k in range(5):
            while True:
                try:
                    view = bank.at()
                    bank.commit([Add(Skill(f"Thread {n} says {k}."))], parent=view.commit)
                    break
                except StaleHeadError:
                    continue

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(bank.at()) == 20 and bank.verify() == []


WRITE = """
import sys
from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add
from gongfu.skills.errors import StaleHeadError
from gongfu.skills.skill import Skill
from gongfu.skills.tree import Tree

location, who = sys.argv[1:]
stale = 0
with SkillBank.open(location) as bank:
    for n in range(50):
        while True:
            try:
                bank.commit([Add(Skill(f"Writer {who} says {n}."))], parent=bank.head(), message=f"{who}/{n}")
                break
            except StaleHeadError:
                stale += 1
print(stale)
"""


def test_four_processes_write_and_none_of_their_commits_is_lost(location):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, location, str(n)], stdout=subprocess.PIPE, text=True) for n in range(4)
    ]
    stale = [int(writer.communicate(timeout=120)[0]) for writer in writers]  # the bank is made by whoever is first
    assert [writer.returncode for writer in writers] == [0] * 4
    with SkillBank.open(location) as bank:
        messages = [c.message for c in bank.log()]
        assert Counter(messages[:-1]) == Counter(f"{who}/{n}" for who in range(4) for n in range(50))
        assert len(bank.at()) == 200 and bank.verify() == []
    assert sum(stale) > 0, "they never met: this test proved nothing"
