"""Sensible search queries made from an instruction, so that an agent can choose one instead of writing it."""

from __future__ import annotations

import re
from functools import lru_cache

from gongfu.envs.webshop.words import content_words

__all__ = ["candidates", "wish_of"]

_CAP = re.compile(r",? and price lower than [\d.]+ dollars\s*$")
_CLAUSE = re.compile(r"[,.;!?]\s+|\b(?:that|which|with|for|in|and)\b")
_LONGEST = 12  # words of a query


def wish_of(instruction: str) -> str:
    """The instruction without its price limit.

    >>> wish_of("i need a hoodie, and price lower than 40.00 dollars")
    'i need a hoodie'
    """
    return _CAP.sub("", instruction)


@lru_cache(maxsize=4096)
def candidates(instruction: str, count: int) -> tuple[str, ...]:
    """At most `count` queries: all that the instruction says of the product, its first clause, and each other clause with the
    last word of the first, which mostly names the product. One at least if `count` allows any.

    >>> candidates("i need a black hoodie with long sleeve, and price lower than 40.00 dollars", 3)
    ('black hoodie long sleeve', 'black hoodie', 'long sleeve hoodie')
    """
    wish = wish_of(instruction)
    whole = content_words(wish)[:_LONGEST] or wish.lower().split()[:_LONGEST] or ["anything"]
    clauses = [words for clause in _CLAUSE.split(wish) if (words := content_words(clause))] or [whole]
    head = clauses[0][-1]
    found = [whole, clauses[0], *([*words, head] for words in clauses[1:])]
    return tuple(dict.fromkeys(" ".join(words[:_LONGEST]) for words in found))[:count]
