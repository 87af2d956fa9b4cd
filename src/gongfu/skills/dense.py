"""Retrieval by meaning: cosine of embeddings, in memory or in the bank's database, following the bank from commit to commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gongfu.skills.embedding import Embedder, TextVectors, VectorCache
from gongfu.skills.errors import BankError
from gongfu.skills.neighbours import DatabaseSnapshot, MemorySnapshot, Near, VectorSearch
from gongfu.skills.retrieve import Hit, KindIndex, Query, Selection
from gongfu.skills.skill import Skill
from gongfu.skills.tree import State
from gongfu.skills.view import USABLE, BankView


class VectorBank(VectorCache, Protocol):
    """Keeps vectors, and may search them; a SkillBank does."""

    def vector_search(self, embedder: str, *, approximate: bool) -> VectorSearch | None: ...


class DenseRetriever:
    """Cosine of the query's embedding with that of a skill's text.

    Vectors of skills are kept in `bank`, which searches them when it is a PostgreSQL with pgvector; otherwise a NumPy matrix is
    searched. The hits and their scores are the same. `index="hnsw"` lets pgvector's approximate index pick the candidates, for
    banks of 100,000 skills: a skill may be overlooked then. Raises BankError when the bank can have no such index.
    """

    def __init__(
        self,
        embedder: Embedder,
        bank: VectorBank,
        *,
        top_k: int = 1,
        floor: float = 0.0,
        per_kind: bool = True,
        states: tuple[State, ...] = USABLE,
        index: Literal["exact", "hnsw"] = "exact",
    ) -> None:
        self.selection = Selection(top_k, floor, per_kind, states)
        self.texts = TextVectors(embedder, bank)
        search = bank.vector_search(embedder.id, approximate=index == "hnsw")
        if search is None and index == "hnsw":
            raise BankError('index = "hnsw" needs a bank in PostgreSQL with the extension vector: create it, or use "exact"')
        self.snapshot = MemorySnapshot(self.texts) if search is None else DatabaseSnapshot(self.texts, search)

    def rank(self, queries: Sequence[Query], view: BankView) -> list[list[Hit]]:
        """The best skills of the view for each query, best first, equal ones by id."""
        snapshot = self.snapshot = self.snapshot.follow(view, self.selection.states)
        if not snapshot.skills:
            return [[] for _ in queries]
        asked = self.texts.of_queries([q.text for q in queries])
        found: list[list[Hit]] = []
        for query, vector in zip(queries, asked, strict=True):
            near = snapshot.near(vector, self.selection.allowed(query, snapshot.kinds), self.selection)
            found.append(self._best(query, vector, near, snapshot.skills))
        return found

    def _best(self, query: Query, vector: NDArray[np.float32], near: Near, skills: Sequence[Skill]) -> list[Hit]:
        # One product of two vectors a score: it then never depends on what else is near.
        exact = vector.astype(np.float64)
        scores = np.array([row.astype(np.float64) @ exact for row in near.vectors], dtype=np.float64)
        candidates = [skills[row] for row in near.rows]
        return self.selection.best(query, scores, candidates, KindIndex(candidates))
