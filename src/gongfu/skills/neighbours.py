"""Which skills of a view are near a query: by a matrix in memory, or by the bank's database.

Both find candidates by float32 products, whose last digits depend on the order of the sum, and take in all that these could
have misplaced (`SLACK`). The retriever then scores the candidates in float64, so both lead to the same hits in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gongfu.skills.canonical import sha256
from gongfu.skills.embedding import TextVectors
from gongfu.skills.retrieve import KindIndex, Selection
from gongfu.skills.skill import Skill
from gongfu.skills.tree import State
from gongfu.skills.view import BankView

SLACK = 1e-5
"""Twice the error of a float32 product of two vectors of length 1."""
_FIRST = 16
_GROWTH = 8
_FEW = 256
"""Up to so many candidates are named to the database, instead of looking for them among its nearest."""


class VectorSearch(Protocol):
    """Finds texts in a database; see `gongfu.skills.pgvector`."""

    def missing(self, text_digests: Collection[str]) -> list[str]: ...

    def add(self, vectors: Mapping[str, NDArray[np.float32]]) -> None: ...

    def nearest(
        self, vector: NDArray[np.float32], count: int, among: Sequence[str] | None = None
    ) -> list[tuple[str, float]]: ...


class Near(NamedTuple):
    """Candidates of a query."""

    rows: Sequence[int]
    """Into the skills of the snapshot."""
    vectors: NDArray[np.float32]
    """(rows, dimensions)"""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The skills of one view with their vectors, in the order of ids, whatever snapshot it was made from."""

    texts: TextVectors
    commit: str = ""
    skills: tuple[Skill, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    """Version digest -> row."""
    vectors: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    kinds: KindIndex = field(default_factory=lambda: KindIndex(()))

    def follow(self, view: BankView, states: tuple[State, ...]) -> Self:
        """The snapshot of a view: only skills that are new since this one are looked up or embedded."""
        if view.commit == self.commit:
            return self
        skills = view.skills(states=states)
        kept = [self.rows.get(s.digest, -1) for s in skills]
        new = [s for s, row in zip(skills, kept, strict=True) if row < 0]
        fresh = self._vectors_of(new)
        vectors = np.empty((len(skills), (fresh if new else self.vectors).shape[1]), dtype=np.float32)
        stays = np.array(kept, dtype=np.int64) >= 0
        if stays.any():
            vectors[stays] = self.vectors[[row for row in kept if row >= 0]]
        if new:
            vectors[~stays] = fresh
        rows = {s.digest: row for row, s in enumerate(skills)}
        return type(self)(self.texts, view.commit, skills, rows, vectors, KindIndex(skills))

    def near(self, vector: NDArray[np.float32], allowed: NDArray[np.bool_] | None, selection: Selection) -> Near:
        """All skills that can be among the hits, of those `allowed`."""
        scores = self.vectors @ vector
        enough = scores >= selection.floor - SLACK
        rows = np.flatnonzero(enough if allowed is None else enough & allowed)
        if len(rows) > selection.top_k:
            least = np.partition(scores[rows], -selection.top_k)[-selection.top_k]
            rows = rows[scores[rows] >= least - SLACK]
        return Near(rows.tolist(), self.vectors[rows])

    def _vectors_of(self, skills: Sequence[Skill]) -> NDArray[np.float32]:
        digests = [sha256(s.text) for s in skills]
        known = self.texts.of_skills({digest: s.text for digest, s in zip(digests, skills, strict=True)})
        return np.stack([known[digest] for digest in digests]) if digests else np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The skills of one view, whose vectors stay in the database."""

    texts: TextVectors
    search: VectorSearch
    commit: str = ""
    skills: tuple[Skill, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """Version digest -> digest of its text."""
    rows: Mapping[str, list[int]] = field(default_factory=dict)
    """Digest of a text -> rows of the skills that say it."""
    kinds: KindIndex = field(default_factory=lambda: KindIndex(()))

    def follow(self, view: BankView, states: tuple[State, ...]) -> Self:
        """The snapshot of a view: the database is given the vectors that it lacks of the skills that are new since this one."""
        if view.commit == self.commit:
            return self
        skills = view.skills(states=states)
        new = {sha256(s.text): s.text for s in skills if s.digest not in self.digests}
        self.search.add(self.texts.of_skills({digest: new[digest] for digest in self.search.missing(new)}))
        digests = {s.digest: self.digests.get(s.digest) or sha256(s.text) for s in skills}
        rows: dict[str, list[int]] = {}
        for row, skill in enumerate(skills):
            rows.setdefault(digests[skill.digest], []).append(row)
        return type(self)(self.texts, self.search, view.commit, skills, digests, rows, KindIndex(skills))

    def near(self, vector: NDArray[np.float32], allowed: NDArray[np.bool_] | None, selection: Selection) -> Near:
        """All skills that can be among the hits, of those `allowed`.

        The database knows the texts of every version there ever was, so its nearest are asked for, more and more of them, until
        nothing beyond them can be a hit.
        """
        among = self._named(allowed)
        count = _FIRST * selection.top_k if among is None else len(among) + 1
        while True:
            found = self.search.nearest(vector, count, among)
            hits = [(row, score) for digest, score in found for row in self._rows(digest, allowed)]
            least = hits[selection.top_k - 1][1] if len(hits) >= selection.top_k else selection.floor
            bound = max(least, selection.floor) - SLACK
            if len(found) < count or found[-1][1] < bound:
                break
            count *= _GROWTH
        rows = [row for row, score in hits if score >= bound]
        wanted = [self.digests[self.skills[row].digest] for row in rows]
        return Near(rows, self.texts.stored(wanted) if wanted else np.zeros((0, len(vector)), dtype=np.float32))

    def _named(self, allowed: NDArray[np.bool_] | None) -> list[str] | None:
        if (len(self.skills) if allowed is None else np.count_nonzero(allowed)) > _FEW:
            return None
        return [digest for digest in self.rows if self._rows(digest, allowed)]

    def _rows(self, digest: str, allowed: NDArray[np.bool_] | None) -> list[int]:
        rows = self.rows.get(digest, [])
        return rows if allowed is None else [row for row in rows if allowed[row]]
