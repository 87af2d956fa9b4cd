"""Who finds passages: BM25 over words, or cosine of embeddings. Equal scores keep the order of the corpus."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gongfu.core.errors import TaskError
from gongfu.envs.searchqa.corpus import Passage

__all__ = ["BM25", "Dense", "Embedder", "Retriever", "words"]

K1, B = 1.5, 0.75
_WORD = re.compile(r"\w+")


class Retriever(Protocol):
    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """At most `k` passages, best first; the same for the same query."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors; `gongfu.skills.transformers_embedder` has one."""

    def embed(self, texts: Sequence[str], *, query: bool) -> NDArray[np.float32]:
        """(texts, dimensions), each row of length 1."""
        ...


def words(text: str) -> list[str]:
    """Words in lower case and without accents.

    >>> words("Alû's house, 1931")
    ['alu', 's', 'house', '1931']
    """
    plain = text.casefold()
    if not plain.isascii():
        plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c))
    return _WORD.findall(plain)


class BM25:
    """Okapi BM25 (Lucene's idf) over title and text. A passage is found only if it shares a word with the query."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        import bm25s

        self.passages = tuple(passages)
        self._ids: dict[str, int] = {}
        rows = [[self._ids.setdefault(w, len(self._ids)) for w in words(f"{p.title} {p.text}")] for p in self.passages]
        if not self._ids:
            raise TaskError("no passage of the corpus holds a word")
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene", backend="numpy")
        self._index.index((rows, dict(self._ids)), create_empty_token=False, show_progress=False)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        known = [self._ids[word] for word in words(query) if word in self._ids]
        if not known:
            return ()
        scores = np.asarray(self._index.get_scores_from_ids(known))
        return tuple(self.passages[i] for i in _best(scores, k) if scores[i] > 0)


class Dense:
    """Cosine of the query's embedding with those of the passages, which are embedded at the first search."""

    def __init__(self, passages: Sequence[Passage], embedder: Callable[[], Embedder]) -> None:
        self.passages = tuple(passages)
        self._make = embedder
        self._embedder: Embedder | None = None
        self._vectors = np.zeros((0, 0), dtype=np.float32)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        if self._embedder is None:
            self._embedder = self._make()
            self._vectors = self._embedder.embed([f"{p.title}\n{p.text}" for p in self.passages], query=False)
        (vector,) = self._embedder.embed([query], query=True)
        return tuple(self.passages[i] for i in _best(self._vectors @ vector, k))


def _best(scores: NDArray[np.floating], k: int) -> list[int]:
    """Places of the k highest scores, best first, equal ones in order."""
    if len(scores) > k:  # all that may be among the best, ties at the edge included
        edge = np.partition(scores, len(scores) - k)[len(scores) - k]
        places = np.flatnonzero(scores >= edge)
    else:
        places = np.arange(len(scores))
    return places[np.argsort(-scores[places], kind="stable")][:k].tolist()
