"""Search: BM25 over the texts of the products, in an inverted index."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from gongfu.envs.webshop.words import terms

__all__ = ["K1", "B", "SearchIndex"]

K1, B = 0.9, 0.4
"""Anserini's defaults, which the original site uses."""


class SearchIndex:
    """BM25 as Lucene computes it (with exact lengths where Lucene rounds them).

    score = Σ over the query's terms of ln(1 + (N - n + 0.5) / (n + 0.5)) · f / (f + k1 (1 - b + b · length / mean length)),
    with n of N texts holding the term, f times in the scored one.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        postings: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        lengths = np.zeros(len(texts))
        for number, text in enumerate(texts):
            counts = Counter(terms(text))
            lengths[number] = counts.total()
            for term, count in counts.items():
                places, times = postings[term]
                places.append(number)
                times.append(count)
        self.size = len(texts)
        norm = K1 * (1 - B + B * lengths / max(lengths.mean() if self.size else 0.0, 1.0))
        self._postings: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for term, (places, times) in postings.items():
            at, f = np.array(places), np.array(times, dtype=float)
            weight = np.log1p((self.size - len(at) + 0.5) / (len(at) + 0.5))
            self._postings[term] = (at, weight * f / (f + norm[at]))

    def scores(self, query: str) -> np.ndarray:
        """The score of every text; 0 without a word of the query."""
        scores = np.zeros(self.size)
        for term, times in Counter(terms(query)).items():
            if term in self._postings:
                at, values = self._postings[term]
                scores[at] += times * values
        return scores

    def search(self, query: str, limit: int) -> list[int]:
        """Numbers of the best texts that have a word of the query, best first, equal ones in their order."""
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        return found[np.argsort(-scores[found], kind="stable")][:limit].tolist()
