"""Which of many texts a text repeats: word for word, or nearly, by the Jaccard index of character 3-grams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_NGRAM = 3
_ROUNDING = 1e-9
_codes: dict[str, int] = {}
"""3-gram -> its number in this process."""


def similarity(a: str, b: str) -> float:
    """Jaccard index of the character 3-grams of two texts, 0 to 1; case and punctuation do not count."""
    first, second = _grams(a), _grams(b)
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def same(text: str) -> str:
    """What two texts share that differ in white space only."""
    return " ".join(text.split())


class Shelf:
    """Texts by id. `near`: similarity from which one repeats another; 0 = only the same text does.

    Asking costs far less than comparing with each: only texts of about as many 3-grams can be near, and their 3-grams lie side
    by side in one array.
    """

    def __init__(self, texts: Mapping[str, str], near: float) -> None:
        self._near = near
        self._put: dict[str, str] = {}
        self._ids = list(texts)
        self._same: dict[str, list[str]] = {}
        if not near:
            for id, text in texts.items():
                self._same.setdefault(same(text), []).append(id)
            return
        grams = [_grams(text) for text in texts.values()]
        sizes = np.array([len(g) for g in grams], dtype=np.int64)
        self._order = np.argsort(sizes, kind="stable")
        self._sizes = sizes[self._order]
        self._ends = np.cumsum(self._sizes)
        self._grams = np.concatenate([grams[i] for i in self._order]) if grams else np.zeros(0, dtype=np.int32)

    def put(self, id: str, text: str) -> None:
        """Add a text, or replace that of an id."""
        self._put[id] = text

    def repeated_by(self, text: str, *, other_than: str = "") -> str:
        """Id of a text that this one repeats, the first one where there are several; "" = none. One id may be left out."""
        if self._near:
            found = [self._ids[place] for place in self._alike(text)]
            fresh = [id for id, other in self._put.items() if similarity(text, other) >= self._near]
        else:
            found = self._same.get(same(text), [])
            fresh = [id for id, other in self._put.items() if same(text) == same(other)]
        there = [*(id for id in found if id not in self._put), *fresh]
        return next((id for id in there if id != other_than), "")

    def _alike(self, text: str) -> list[int]:
        """Places of the texts that are near, in their order."""
        own = _grams(text)
        low = int(np.searchsorted(self._sizes, len(own) * self._near - _ROUNDING, side="left"))
        high = int(np.searchsorted(self._sizes, len(own) / self._near + _ROUNDING, side="right"))
        if low >= high:
            return []
        starts = self._ends[low:high] - self._sizes[low:high]
        is_own = np.zeros(len(_codes), dtype=np.int64)
        is_own[own] = 1
        shared = np.add.reduceat(is_own[self._grams[starts[0] : self._ends[high - 1]]], starts - starts[0])
        alike = shared / (len(own) + self._sizes[low:high] - shared) >= self._near
        return sorted(self._order[low:high][alike].tolist())


@lru_cache(maxsize=2**17)
def _grams(text: str) -> NDArray[np.int32]:
    plain = " ".join(re.findall(r"\w+", text.casefold()))
    grams = {plain[i : i + _NGRAM] for i in range(max(1, len(plain) - _NGRAM + 1))}
    return np.array(sorted(_codes.setdefault(gram, len(_codes)) for gram in grams), dtype=np.int32)
