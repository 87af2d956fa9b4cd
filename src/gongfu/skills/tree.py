"""What a commit holds: an immutable map from skill id to version and state, cheap to change, to hash and to compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from gongfu.skills.errors import SkillError

State = Literal["candidate", "active", "retired", "quarantined"]
STATES: tuple[State, ...] = get_args(State)


def known_states(states: Iterable[str]) -> tuple[State, ...]:
    """These states. Raises SkillError when one of them does not exist, or there is none."""
    asked = set(states)
    if not asked or asked - set(STATES):
        raise SkillError(f"states are {', '.join(STATES)}; got {', '.join(sorted(asked)) or 'none'}")
    return tuple(state for state in STATES if state in asked)


_EMPTY: dict[str, Entry] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one skill stands."""

    digest: str
    """Of the skill's version."""
    version: int
    state: State
    newest: int
    """Highest version number so far: after a revert the next update must not take a number again."""


class Tree:
    """Skill id -> Entry, in the order of ids. Trees made from one another share their unchanged parts (256 buckets)."""

    def __init__(self, buckets: tuple[dict[str, Entry], ...] = (_EMPTY,) * 256, hashes: tuple[bytes, ...] = ()) -> None:
        self._buckets = buckets
        self._hashes = hashes or (_hash(_EMPTY),) * 256

    def get(self, skill: str) -> Entry | None:
        try:
            return self._buckets[_place(skill)].get(skill)
        except ValueError:  # not made like an id
            return None

    def items(self) -> Iterator[tuple[str, Entry]]:
        for bucket in self._buckets:
            yield from bucket.items()

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def changed(self, changes: Mapping[str, Entry | None]) -> Tree:
        """The tree with these entries put in, and those that are None taken out."""
        buckets, hashes = list(self._buckets), list(self._hashes)
        touched: dict[int, dict[str, Entry]] = {}
        for skill, entry in changes.items():
            place = _place(skill)
            bucket = touched.setdefault(place, dict(buckets[place]))
            if entry is None:
                bucket.pop(skill, None)
            else:
                bucket[skill] = entry
        for place, bucket in touched.items():
            buckets[place] = dict(sorted(bucket.items()))
            hashes[place] = _hash(buckets[place])
        return Tree(tuple(buckets), tuple(hashes))

    def difference(self, other: Tree) -> Iterator[tuple[str, Entry | None, Entry | None]]:
        """(skill, entry here, entry there) of every skill whose version or state differs."""
        for mine, theirs in zip(self._buckets, other._buckets, strict=True):
            if mine is theirs:
                continue
            for skill in sorted(mine.keys() | theirs.keys()):
                here, there = mine.get(skill), theirs.get(skill)
                if here is None or there is None or (here.digest, here.state) != (there.digest, there.state):
                    yield skill, here, there

    @cached_property
    def digest(self) -> str:
        """sha256 over versions and states."""
        return hashlib.sha256(b"".join(self._hashes)).hexdigest()


def _place(skill: str) -> int:
    return int(skill[:2], 16)


def _hash(bucket: Mapping[str, Entry]) -> bytes:
    lines = "".join(f"{skill} {entry.digest} {entry.state}\n" for skill, entry in bucket.items())
    return hashlib.sha256(lines.encode()).digest()
