"""A bank as it was at one commit. A rollout group reads one view, so that no skill changes under a running episode."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from gongfu.skills.commit import Commit
from gongfu.skills.errors import SkillError
from gongfu.skills.skill import Skill
from gongfu.skills.tree import STATES, Entry, State, Tree, known_states

USABLE: tuple[State, ...] = ("active", "candidate")
"""States whose skills a policy may be given."""


class BankView:
    """Immutable. Iterates over skill ids in their order, whatever way they came in."""

    def __init__(self, made_by: Commit, tree: Tree, versions: Mapping[str, Skill]) -> None:
        self.made_by = made_by
        self.tree = tree
        self._versions = versions

    @property
    def commit(self) -> str:
        """Id of the commit: what a rollout records, and what the next commit names as its parent."""
        return self.made_by.id

    def skills(self, kind: str | None = None, states: Collection[State] = USABLE) -> tuple[Skill, ...]:
        """The skills in one of `states`, by id. With a `kind`: those for that kind of task and those for any."""
        if states == USABLE:
            found = self._usable
        else:
            wanted = known_states(states)
            found = tuple(self._versions[e.digest] for _, e in self.tree.items() if e.state in wanted)
        return found if kind is None else tuple(s for s in found if s.kind in ("", kind))

    def get(self, skill: str) -> Skill:
        """The version of a skill. Raises SkillError when the commit does not hold it."""
        return self._versions[self._entry(skill).digest]

    def state(self, skill: str) -> State:
        return self._entry(skill).state

    def find(self, word: str) -> Skill:
        """The one skill whose id begins with `word` or whose name it is. Raises SkillError for none or several."""
        found = [s for s in self.skills(states=STATES) if s.name == word]
        found = found or [self.get(skill) for skill in self if word and skill.startswith(word)]
        if len(found) != 1:
            there = ", ".join(f"{s.id} ({s.name})" for s in found) or "none"
            raise SkillError(f"{word!r} should be the name or the beginning of the id of one skill at {self}; found: {there}")
        return found[0]

    def __iter__(self) -> Iterator[str]:
        return (skill for skill, _ in self.tree.items())

    def __len__(self) -> int:
        return len(self.tree)

    def __contains__(self, skill: object) -> bool:
        return isinstance(skill, str) and self.tree.get(skill) is not None

    def __str__(self) -> str:
        return f"commit {self.commit[:12]}"

    @cached_property
    def _usable(self) -> tuple[Skill, ...]:
        return tuple(self._versions[e.digest] for _, e in self.tree.items() if e.state in USABLE)

    def _entry(self, skill: str) -> Entry:
        entry = self.tree.get(skill)
        if entry is None:
            raise SkillError(f"there is no skill {skill!r} at {self}")
        return entry
