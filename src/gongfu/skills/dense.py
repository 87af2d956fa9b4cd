"""Retrieval by meaning: cosine of embeddings, over a matrix that follows the bank from commit to commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gongfu.skills.canonical import sha256
from gongfu.skills.errors import SkillError
from gongfu.skills.retrieve import Hit, KindIndex, Query, Selection
from gongfu.skills.skill import Skill
from gongfu.skills.tree import State
from gongfu.skills.view import USABLE, BankView

_QUERIES = 10_000


class Embedder(Protocol):
    """Turns texts into vectors."""

    id: str
    """Names the weights and all settings: vectors of equal ids can be compared."""

    def embed(self, texts: Sequence[str], *, query: bool) -> NDArray[np.float32]:
        """(texts, dimensions), each row of length 1. A query may be embedded in another way than a skill."""
        ...


class VectorCache(Protocol):
    """Keeps vectors by (text digest, embedder); a SkillBank does."""

    def load_embeddings(self, embedder: str, text_digests: Sequence[str]) -> dict[str, NDArray[np.float32]]: ...

    def store_embeddings(self, embedder: str, vectors: Mapping[str, NDArray[np.float32]]) -> None: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The vectors of the skills of one view, in the order of ids, whatever snapshot it was made from."""

    commit: str
    skills: tuple[Skill, ...]
    rows: Mapping[str, int]
    """Version digest -> row."""
    vectors: NDArray[np.float32]
    kinds: KindIndex


class DenseRetriever:
    """Cosine of the query's embedding with that of a skill's text.

    Vectors of skills are kept in `cache` (the bank); those of the last 10,000 queries in memory.
    """

    def __init__(
        self,
        embedder: Embedder,
        cache: VectorCache,
        *,
        top_k: int = 1,
        floor: float = 0.0,
        per_kind: bool = True,
        states: tuple[State, ...] = USABLE,
    ) -> None:
        self.embedder = embedder
        self.cache = cache
        self.selection = Selection(top_k, floor, per_kind, states)
        self.snapshot = Snapshot("", (), {}, np.zeros((0, 0), dtype=np.float32), KindIndex(()))
        self._queries: dict[str, NDArray[np.float32]] = {}

    def rank(self, queries: Sequence[Query], view: BankView) -> list[list[Hit]]:
        """The best skills of the view for each query, best first, equal ones by id."""
        snapshot = self.snapshot = self._follow(view)
        if not snapshot.skills:
            return [[] for _ in queries]
        # One product a query: a score then never depends on what else is asked.
        asked = self._embed_queries([q.text for q in queries])
        return [
            self.selection.best(q, (snapshot.vectors @ vector).astype(np.float64), snapshot.skills, snapshot.kinds)
            for q, vector in zip(queries, asked, strict=True)
        ]

    def _follow(self, view: BankView) -> Snapshot:
        last = self.snapshot
        if view.commit == last.commit:
            return last
        skills = view.skills(states=self.selection.states)
        kept = [last.rows.get(s.digest, -1) for s in skills]
        new = [s for s, row in zip(skills, kept, strict=True) if row < 0]
        fresh = self._embed_skills(new)
        vectors = np.empty((len(skills), (fresh if new else last.vectors).shape[1]), dtype=np.float32)
        stays = np.array(kept, dtype=np.int64) >= 0
        if stays.any():
            vectors[stays] = last.vectors[[row for row in kept if row >= 0]]
        if new:
            vectors[~stays] = fresh
        rows = {s.digest: row for row, s in enumerate(skills)}
        return Snapshot(view.commit, skills, rows, vectors, KindIndex(skills))

    def _embed_skills(self, skills: Sequence[Skill]) -> NDArray[np.float32]:
        digests = [sha256(s.text) for s in skills]
        texts = {digest: s.text for digest, s in zip(digests, skills, strict=True)}
        known = self.cache.load_embeddings(self.embedder.id, list(texts)) if texts else {}
        missing = [digest for digest in texts if digest not in known]
        if missing:
            vectors = self._embed([texts[digest] for digest in missing], query=False)
            made = dict(zip(missing, vectors, strict=True))
            self.cache.store_embeddings(self.embedder.id, made)
            known |= made
        return np.stack([known[digest] for digest in digests]) if digests else np.zeros((0, 0), dtype=np.float32)

    def _embed_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        missing = [text for text in dict.fromkeys(texts) if text not in self._queries]
        if missing:
            self._queries.update(zip(missing, self._embed(missing, query=True), strict=True))
        found = [self._queries[text] for text in texts]
        while len(self._queries) > _QUERIES:
            del self._queries[next(iter(self._queries))]
        return found

    def _embed(self, texts: Sequence[str], *, query: bool) -> NDArray[np.float32]:
        vectors = np.asarray(self.embedder.embed(texts, query=query), dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3):
            raise SkillError(f"embedder {self.embedder.id} gave no row of length 1 for each of {len(texts)} texts")
        return vectors
