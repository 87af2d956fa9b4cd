"""Admissible actions of a search episode: what could be searched for or answered, by the names in question and passages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from gongfu.envs.searchqa.corpus import Passage

__all__ = ["actions", "content_words", "spans"]

# Runs of capitalised words (initials included), numbers, and what stands in quotes.
_WORD = r"(?:[^\W\d_a-zß-öø-ÿ](?:\.(?= ?[^\W\d_a-z])|[\w'’&-]*))"
_SPAN = re.compile(rf'"([^"\n]+)"|({_WORD}(?:[ ]{_WORD})*)|\b(\d[\d,.]*\d|\d)\b')
_VERDICT = frozenset(
    ("is", "are", "was", "were", "am", "do", "does", "did", "has", "have", "had", "can", "could", "will", "would")
)
"""Words that begin a question to be answered by yes or no."""
_OPENERS = _VERDICT | frozenset(
    re.findall(
        r"\w+",
        """
        a an the who whom whose what which where when why how in on at of from to for by with might must it its he his
        she her they their this that these those there as and or but if after before during while although people
        """,
    )
)
"""Words that begin a sentence in upper case and no name."""


def spans(text: str) -> list[str]:
    """Names, numbers and quoted texts, in order, each once.

    >>> spans('Who directed the film Red Hill in 1931? It was Ada Berg.')
    ['Red Hill', '1931', 'Ada Berg']
    """
    found = []
    for quoted, name, number in _SPAN.findall(text):
        words = (quoted or name or number).split()
        while words and not quoted and words[0].lower() in _OPENERS:
            words = words[1:]
        if words:
            found.append(" ".join(words))
    return list(dict.fromkeys(found))


def content_words(question: str) -> list[str]:
    """What a question without capitals is about, as nearly as its form tells.

    >>> content_words("where was the director of red hill born")
    ['director', 'red', 'hill', 'born']
    """
    return [word for word in re.findall(r"\w+", question) if word.lower() not in _OPENERS]


def actions(question: str, seen: Iterable[Passage]) -> tuple[str, ...]:
    """Searches for the question and for every name seen so far, and the same names (yes and no where asked) as answers."""
    found = dict.fromkeys(spans(question))
    for passage in seen:
        found |= dict.fromkeys(_names(passage))
    verdicts = ("yes", "no") if question.split()[0].lower() in _VERDICT else ()
    searches = {f"search[{name}]" for name in (question, *found)}
    return tuple(sorted(searches | {f"answer[{name}]" for name in (*found, *verdicts)}))


@lru_cache(maxsize=1 << 16)
def _names(passage: Passage) -> tuple[str, ...]:
    title = " ".join(passage.title.split())
    return (*([title] if title else []), *spans(passage.text))
