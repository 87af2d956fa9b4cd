"""Finding the skills for a task: what every retriever takes and gives, and how the best are picked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gongfu.skills.errors import SkillError
from gongfu.skills.skill import Skill
from gongfu.skills.tree import State, known_states
from gongfu.skills.view import USABLE, BankView


@dataclass(frozen=True, slots=True)
class Query:
    """What skills are looked for: usually a task's goal, and its kind."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    skill: Skill
    score: float
    """Similarity to the query."""


class Retriever(Protocol):
    def rank(self, queries: Sequence[Query], view: BankView) -> list[list[Hit]]:
        """The best skills of the view for each query, best first, equal ones by id."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Which hits count."""

    top_k: int = 1
    """Most hits a query."""
    floor: float = 0.0
    """Similarity below which nothing is returned."""
    per_kind: bool = True
    """Only skills for the query's kind of task, or for any kind. A query without a kind is never restricted."""
    states: tuple[State, ...] = USABLE
    """States of the skills that are looked at."""

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise SkillError(f"top_k must be at least 1, got {self.top_k}")
        known_states(self.states)

    def allowed(self, query: Query, kinds: KindIndex) -> NDArray[np.bool_] | None:
        """Which skills are for the query's kind, None for all."""
        return kinds.mask(query.kind) if self.per_kind and query.kind else None

    def best(self, query: Query, scores: NDArray[np.float64], skills: Sequence[Skill], kinds: KindIndex) -> list[Hit]:
        """The hits of one query: `scores[i]` is the similarity of `skills[i]`, -inf where there is none."""
        fits = self.allowed(query, kinds)
        enough = scores >= self.floor
        candidates = np.flatnonzero(enough if fits is None else enough & fits)
        if len(candidates) > self.top_k:
            least = np.partition(scores[candidates], -self.top_k)[-self.top_k]
            candidates = candidates[scores[candidates] >= least]  # more than top_k when some are equal
        ordered = sorted(candidates.tolist(), key=lambda i: (-scores[i], skills[i].id))
        return [Hit(skills[i], float(scores[i])) for i in ordered[: self.top_k]]


class KindIndex:
    """Which of some skills are for a kind of task."""

    def __init__(self, skills: Sequence[Skill]) -> None:
        self._codes: dict[str, int] = {"": 0}
        self._kinds = np.array([self._codes.setdefault(s.kind, len(self._codes)) for s in skills], dtype=np.int32)

    def with_places(self, skills: Mapping[int, Skill], count: int) -> KindIndex:
        """The index of `count` skills: these at their places, those of this index at all others."""
        changed = KindIndex(())
        changed._codes = dict(self._codes)
        changed._kinds = np.zeros(count, dtype=np.int32)
        changed._kinds[: len(self._kinds)] = self._kinds
        for place, skill in skills.items():
            changed._kinds[place] = changed._codes.setdefault(skill.kind, len(changed._codes))
        return changed

    def mask(self, kind: str) -> NDArray[np.bool_]:
        """True where a skill is for this kind or for any."""
        return (self._kinds == 0) | (self._kinds == self._codes.get(kind, 0))
