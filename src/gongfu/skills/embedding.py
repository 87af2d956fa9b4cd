"""Vectors of texts: those of skills are kept in the bank, those of queries in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gongfu.skills.errors import SkillError

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


class TextVectors:
    """An embedder that is asked once for each text."""

    def __init__(self, embedder: Embedder, cache: VectorCache) -> None:
        self.embedder = embedder
        self.cache = cache
        self._queries: dict[str, NDArray[np.float32]] = {}

    def of_skills(self, texts: Mapping[str, str]) -> dict[str, NDArray[np.float32]]:
        """The vectors of `texts` (digest -> text) by digest; those that the cache lacks are embedded and stored."""
        if not texts:
            return {}
        known = self.cache.load_embeddings(self.embedder.id, list(texts))
        missing = [digest for digest in texts if digest not in known]
        if missing:
            vectors = self._embed([texts[digest] for digest in missing], query=False)
            made = dict(zip(missing, vectors, strict=True))
            self.cache.store_embeddings(self.embedder.id, made)
            known |= made
        return known

    def stored(self, digests: Sequence[str]) -> NDArray[np.float32]:
        """(digests, dimensions): vectors that the cache is known to hold."""
        found = self.cache.load_embeddings(self.embedder.id, list(dict.fromkeys(digests)))
        return np.stack([found[digest] for digest in digests])

    def of_queries(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """The vectors of queries; the last 10,000 are kept."""
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
