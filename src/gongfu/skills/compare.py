"""What differs between two commits, and who changed what in a skill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gongfu.skills.commit import Commit
from gongfu.skills.edits import Operation
from gongfu.skills.skill import CONTENT, Skill
from gongfu.skills.tree import State
from gongfu.skills.view import BankView


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one skill between two commits; None = not there."""

    id: str
    before: Skill | None
    after: Skill | None
    state_before: State | None
    state_after: State | None

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that differ, "state" last."""
        state = ("state",) if self.state_before != self.state_after else ()
        return _changed(self.before, self.after) + state


@dataclass(frozen=True, slots=True)
class Blame:
    """One operation on a skill, the commit it came with, and which fields ("text", ..., "state") it changed."""

    commit: Commit
    op: Operation
    fields: tuple[str, ...]


def diff(before: BankView, after: BankView) -> list[Change]:
    """What changed from one view to the other, by skill id."""
    return [
        Change(
            skill,
            None if old is None else before.get(skill),
            None if new is None else after.get(skill),
            None if old is None else old.state,
            None if new is None else new.state,
        )
        for skill, old, new in before.tree.difference(after.tree)
    ]


def blame(past: Iterable[tuple[Commit, Operation]], skills: Mapping[str, Skill]) -> list[Blame]:
    """The operations on one skill, oldest first, with the fields that each of them changed."""
    found: list[Blame] = []
    version: Skill | None = None
    state: str | None = None
    for commit, op in past:
        old_version, old_state = version, state
        if op["op"] == "remove":
            version = state = None
        else:
            version = skills[op["digest"]] if "digest" in op else version
            state = op.get("state", state)
        changed = _changed(old_version, version) + (("state",) if state != old_state else ())
        found.append(Blame(commit, op, changed))
    return found


def _changed(before: Skill | None, after: Skill | None) -> tuple[str, ...]:
    return tuple(n for n in CONTENT if (getattr(before, n, None) or None) != (getattr(after, n, None) or None))
