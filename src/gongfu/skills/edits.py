"""Edits that a writer asks for, and the operations that a commit records of them.

An operation is a plain mapping that holds all that is needed to replay it, and what it replaced:

    {"op": "add",    "skill": id, "digest": d, "version": 1, "state": "candidate"}
    {"op": "update", "skill": id, "digest": d, "version": 2, "was": digest}
    {"op": "state",  "skill": id, "state": "retired", "was": "active", "reason": "..."}
    {"op": "put",    "skill": id, "digest": d, "version": 1, "state": "active"}      (of a revert: as it was before)
    {"op": "remove", "skill": id}                                                    (of a revert of an add)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gongfu.skills.errors import EditError, SkillError
from gongfu.skills.skill import CONTENT, Skill, readable
from gongfu.skills.tree import STATES, Entry, State, Tree

Operation = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Add:
    """Take a skill into the bank."""

    skill: Skill
    state: State = "candidate"


@dataclass(frozen=True, slots=True)
class Update:
    """Write the next version of a skill: `fields` are those of Skill that change. Its state stays."""

    id: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SetState:
    """Move a skill to another state."""

    id: str
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    """Set a skill back to an earlier entry, None = take it out. For reverts only."""

    id: str
    entry: Entry | None


Edit = Add | Update | SetState | Put


def plan(tree: Tree, edits: Sequence[Edit], load: Callable[[str], Skill]) -> tuple[list[Operation], list[Skill]]:
    """The operations that carry out `edits` on `tree`, in order, and the new skill versions they need.

    `load` gives the skill of a digest. Raises EditError for an edit that does not fit or changes nothing.
    """
    operations: list[Operation] = []
    skills: list[Skill] = []
    updated: set[str] = set()
    for edit in edits:
        if isinstance(edit, Add):
            operation = _add(tree, edit)
            skills.append(edit.skill)
        elif isinstance(edit, Update):
            if edit.id in updated:
                raise EditError(f"skill {edit.id} is updated twice in one commit; choose one of the updates")
            updated.add(edit.id)
            skill = _revised(_entry(tree, edit.id), edit, load)
            was = _entry(tree, edit.id).digest
            operation = {"op": "update", "skill": edit.id, "digest": skill.digest, "version": skill.version, "was": was}
            skills.append(skill)
        elif isinstance(edit, SetState):
            operation = _set_state(_entry(tree, edit.id), edit)
        elif edit.entry is None:
            operation = {"op": "remove", "skill": edit.id}
        else:
            e = edit.entry
            operation = {"op": "put", "skill": edit.id, "digest": e.digest, "version": e.version, "state": e.state}
        operations.append(operation)
        tree = replay(tree, [operation])
    if not operations:
        raise EditError("there is nothing to commit: no edits were given")
    return operations, skills


def replay(tree: Tree, operations: Iterable[Operation]) -> Tree:
    """`tree` after the operations of a commit. Raises EditError for one that does not fit."""
    changes: dict[str, Entry | None] = {}
    operation = None
    try:
        for operation in operations:
            skill = operation["skill"]
            before = changes[skill] if skill in changes else tree.get(skill)
            changes[skill] = _after(before, operation)
        return tree.changed(changes)
    except (KeyError, TypeError, ValueError) as e:
        raise EditError(f"the operation {operation} does not fit: {e}") from e


def _after(before: Entry | None, operation: Operation) -> Entry | None:
    op = operation["op"]
    if op == "remove":
        return None
    if op in ("add", "put"):
        version: int = operation["version"]
        newest = max(version, before.newest if before else 0)
        return Entry(operation["digest"], version, operation["state"], newest)
    if before is None:
        raise ValueError("the skill is not there")
    if op == "update":
        version = operation["version"]
        return Entry(operation["digest"], version, before.state, max(version, before.newest))
    if op == "state":
        return replace(before, state=operation["state"])
    raise ValueError(f"there is no operation {op!r}")


def _entry(tree: Tree, skill: str) -> Entry:
    entry = tree.get(skill)
    if entry is None:
        raise EditError(f"there is no skill {skill} in this commit")
    return entry


def _add(tree: Tree, edit: Add) -> Operation:
    skill = edit.skill
    there = tree.get(skill.id)
    if there is not None:
        raise EditError(f"skill {skill.id} ({skill.name}) is in the bank already, {there.state}; update it or set its state")
    return {
        "op": "add",
        "skill": skill.id,
        "digest": skill.digest,
        "version": skill.version,
        "state": _known(edit.state),
    }


def _revised(entry: Entry, edit: Update, load: Callable[[str], Skill]) -> Skill:
    unknown = sorted(edit.fields.keys() - set(CONTENT))
    if unknown:
        raise EditError(f"an update of a skill cannot change {', '.join(unknown)}; it can change {', '.join(CONTENT)}")
    old = load(entry.digest)
    try:
        skill = old.revised(entry.newest + 1, **edit.fields)
    except (SkillError, TypeError) as e:
        raise EditError(f"the update of skill {edit.id} ({old.name}) is not usable: {e}") from e
    if all(getattr(skill, name) == getattr(old, name) for name in CONTENT):
        raise EditError(f"the update of skill {edit.id} ({old.name}) changes nothing")
    return skill


def _set_state(entry: Entry, edit: SetState) -> Operation:
    if entry.state == _known(edit.state):
        raise EditError(f"skill {edit.id} is {edit.state} already")
    reason = readable(edit.reason, "a reason")
    return {"op": "state", "skill": edit.id, "state": edit.state, "was": entry.state, "reason": reason}


def _known(state: State) -> State:
    if state not in STATES:
        raise EditError(f"{state!r} is no state; there are {', '.join(STATES)}")
    return state
