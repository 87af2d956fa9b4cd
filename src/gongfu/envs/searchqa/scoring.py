"""Exact match and F1 of an answer, normalised as the official evaluations of SQuAD and HotpotQA do it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

__all__ = ["exact_match", "f1_score", "normalize"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = ("yes", "no", "noanswer")


def normalize(answer: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces.

    >>> normalize("The  Beatles' 2nd L.P.")
    'beatles 2nd lp'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Whether the answer equals one of the gold answers, both normalised."""
    given = normalize(answer)
    return any(given == normalize(gold) for gold in golds)


def f1_score(answer: str, golds: Iterable[str]) -> float:
    """Best F1 over words with one of the gold answers, 0 to 1.

    "yes" and "no" (and "noanswer") earn nothing beside any other answer, as in HotpotQA's evaluation; an answer without
    words is right only where the gold answer has none, as in that of SQuAD 2.0.
    """
    return max((_f1(normalize(answer), normalize(gold)) for gold in golds), default=0.0)


def _f1(given: str, gold: str) -> float:
    if given == gold:
        return 1.0
    if given in _VERDICTS or gold in _VERDICTS:
        return 0.0
    a, b = given.split(), gold.split()
    shared = (Counter(a) & Counter(b)).total()
    return 2 * shared / (len(a) + len(b)) if shared else 0.0
