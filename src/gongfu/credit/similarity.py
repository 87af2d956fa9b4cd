"""How alike two texts are, and which of many belong together: the same answer in any order.

The measure is difflib's 2 M / (|a| + |b|), M the length of all matching blocks, with its two traps closed: `autojunk` would
drop the frequent characters of every text of 200 or more, and the ratio is not symmetric, so the arguments are put into order.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import NDArray

LIMIT = 2048
"""Characters of a text that are looked at: the time grows with the product of the lengths."""


def similarity(a: str, b: str) -> float:
    """0 (nothing in common) to 1 (equal), of the first LIMIT characters.

    >>> similarity("You see a mug 1.", "You see a mug 2.")
    0.9375
    """
    first, second = sorted((a[:LIMIT], b[:LIMIT]))
    return SequenceMatcher(None, first, second, autojunk=False).ratio()


def clusters(texts: Sequence[str], threshold: float) -> list[int]:
    """For each text the number of its cluster: two texts share one when a chain of pairs leads from one to the other, each at
    least `threshold` alike. Numbered by first occurrence.

    >>> clusters(["a mug 1", "a mug 2", "nothing", "a mug 1"], 0.8)
    [0, 0, 1, 0]
    """
    unique = list(dict.fromkeys(texts))
    parent = list(range(len(unique)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    bounds = _Bounds(unique, threshold)
    for i in range(len(unique)):
        for j in bounds.candidates(i):
            a, b = root(i), root(j)
            if a != b and _alike(unique[i], unique[j], threshold):
                parent[max(a, b)] = min(a, b)
    numbers: dict[int, int] = {}
    place = {text: numbers.setdefault(root(i), len(numbers)) for i, text in enumerate(unique)}
    return [place[text] for text in texts]


def _alike(a: str, b: str, threshold: float) -> bool:
    """The matching blocks are a common subsequence, and the length of the longest one takes a hundredth of the time."""
    a, b = a[:LIMIT], b[:LIMIT]
    return 2.0 * _common(a, b) >= threshold * (len(a) + len(b)) - 1e-9 and similarity(a, b) >= threshold


def _common(a: str, b: str) -> int:
    """Length of the longest common subsequence, a row of the table held in the bits of one number (Hyyrö, 2004)."""
    places: dict[str, int] = {}
    for i, sign in enumerate(a):
        places[sign] = places.get(sign, 0) | 1 << i
    every = row = (1 << len(a)) - 1
    for sign in b:
        met = row & places.get(sign, 0)
        row = (row + met | row - met) & every
    return len(a) - row.bit_count()


class _Bounds:
    """Which pairs of texts can be as alike as a threshold, by what takes no comparison of the texts themselves.

    The matching blocks are a common subsequence of M characters, at least threshold * (|a| + |b|) / 2. So M is at most the
    shorter length and the number of characters in common; and both texts become that subsequence by |a| + |b| - 2 M deletions,
    each of which takes at most 3 triples of neighbours and brings in at most 2: they share at least 5 M - 2 (|a| + |b| + 1)
    triples. Signs and triples are counted in buckets, where a collision makes two texts more alike, never less.
    """

    _SIGNS, _TRIPLES = 256, 4096

    def __init__(self, texts: Sequence[str], threshold: float) -> None:
        self._threshold = threshold - 1e-9
        codes = [np.frombuffer(t[:LIMIT].encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64) for t in texts]
        self._lengths = np.array([len(c) for c in codes], np.int64)
        self._signs = _counted(codes, self._SIGNS)
        self._triples = _counted([c[:-2] * 1_000_003 + c[1:-1] * 1_009 + c[2:] for c in codes], self._TRIPLES)

    def candidates(self, i: int) -> list[int]:
        """The texts before text i that may be like it."""
        total = self._lengths[:i] + self._lengths[i]
        least = self._threshold * total / 2
        near = np.flatnonzero(np.minimum(self._lengths[:i], self._lengths[i]) >= least)
        near = near[np.minimum(self._signs[near], self._signs[i]).sum(1, dtype=np.int64) >= least[near]]
        shared = np.minimum(self._triples[near], self._triples[i]).sum(1, dtype=np.int64)
        return near[shared >= 5 * least[near] - 2 * (total[near] + 1)].tolist()


def _counted(codes: Sequence[NDArray[np.int64]], buckets: int) -> NDArray[np.uint16]:
    rows = [np.bincount(c % buckets, minlength=buckets) for c in codes]
    return np.array(rows, np.uint16).reshape(len(codes), buckets)
