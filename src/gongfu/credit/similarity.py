"""How alike two texts are, and which of many belong together: the same answer in any order.

The measure is difflib's 2 M / (|a| + |b|), M the length of all matching blocks, with its two traps closed: `autojunk` would
drop the frequent characters of every text of 200 or more, and the ratio is not symmetric, so the arguments are put into order.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

LIMIT = 2048
"""Characters of a text that are looked at: the time grows with the product of the lengths."""


def similarity(a: str, b: str) -> float:
    """0 (nothing in common) to 1 (equal), of the first LIMIT characters.

    >>> similarity("You see a mug 1.", "You see a mug 2.")
    0.9375
    """
    return _matcher(a, b).ratio()


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

    for i in range(len(unique)):
        for j in range(i):
            a, b = root(i), root(j)
            if a != b and _alike(unique[i], unique[j], threshold):
                parent[max(a, b)] = min(a, b)
    numbers: dict[int, int] = {}
    place = {text: numbers.setdefault(root(i), len(numbers)) for i, text in enumerate(unique)}
    return [place[text] for text in texts]


def _alike(a: str, b: str, threshold: float) -> bool:
    """Cheap upper bounds (lengths, then counts of characters) before the ratio itself."""
    matcher = _matcher(a, b)
    return all(bound() >= threshold for bound in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio))


def _matcher(a: str, b: str) -> SequenceMatcher[str]:
    first, second = sorted((a[:LIMIT], b[:LIMIT]))
    return SequenceMatcher(None, first, second, autojunk=False)
