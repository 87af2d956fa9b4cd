"""Retrieval by words: BM25 over an inverted index that follows the bank from commit to commit."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gongfu.skills.retrieve import Hit, KindIndex, Query, Selection
from gongfu.skills.skill import Skill
from gongfu.skills.tree import Entry, State, Tree
from gongfu.skills.view import USABLE, BankView

K1 = 1.2
B = 0.75
# Scripts without blanks between words (kana, Han, Hangul) are taken character by character.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """Lower-case words of a text.

    >>> words("Heat 1 Egg, 功夫")
    ['heat', '1', 'egg', '功', '夫']
    """
    return _WORD.findall(text.lower())


class LexicalRetriever:
    """BM25 (k1 = 1.2, b = 0.75) of the query's words in a skill's text.

    A score lies between 0 and 1 and can be compared between queries: it is divided by the largest one that any text could
    reach for the query (`relative_to` "query"; words that no skill has count in that bound: they are what the skill does not
    answer), or by the one that the skill would have if all its words stood in the query ("skill": how much of it applies).
    """

    def __init__(
        self,
        *,
        top_k: int = 1,
        floor: float = 0.0,
        per_kind: bool = True,
        states: tuple[State, ...] = USABLE,
        relative_to: Literal["query", "skill"] = "query",
    ) -> None:
        self.selection = Selection(top_k, floor, per_kind, states)
        self.relative_to = relative_to
        self.index = Index()

    def rank(self, queries: Sequence[Query], view: BankView) -> list[list[Hit]]:
        """The best skills of the view for each query, best first, equal ones by id. A hit shares a word with the query."""
        index = self.index = self.index.follow(view, self.selection.states)
        wholes = index.wholes() if self.relative_to == "skill" else None
        return [self.selection.best(q, index.scores(q.text, wholes), index.skills, index.kinds) for q in queries]


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a word occurs, and how often."""

    places: NDArray[np.int64]
    counts: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Index:
    """The words of the skills of one view. It never changes: `follow` makes the next one, which shares what stays."""

    tree: Tree = field(default_factory=Tree)
    skills: tuple[Skill, ...] = ()
    """By place."""
    place_of: Mapping[str, int] = field(default_factory=dict)
    """By skill id."""
    free: frozenset[int] = frozenset()
    """Places whose skill has gone; the next skills take them."""
    lengths: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Words of the skill at each place, 0 where free."""
    postings: Mapping[str, Posting] = field(default_factory=dict)
    kinds: KindIndex = field(default_factory=lambda: KindIndex(()))

    def follow(self, view: BankView, states: tuple[State, ...]) -> Index:
        """The index of a view, made by taking out and putting in the skills that differ."""
        if view.tree is self.tree:
            return self
        gone: list[str] = []
        come: list[Skill] = []
        for skill, old, new in self.tree.difference(view.tree):
            before, after = _version(old, states), _version(new, states)
            if before != after:
                gone += [skill] if before else []
                come += [view.get(skill)] if after else []
        skills, lengths = list(self.skills), self.lengths.tolist()
        place_of = dict(self.place_of)
        leaving = [place_of.pop(skill) for skill in gone]
        free = sorted({*self.free, *leaving}, reverse=True)
        dropped: dict[str, list[int]] = defaultdict(list)
        for place in leaving:
            lengths[place] = 0.0
            for word in set(words(skills[place].text)):
                dropped[word].append(place)
        added: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for skill in come:
            if not free:
                free.append(len(skills))
                skills.append(skill)
                lengths.append(0.0)
            place = free.pop()
            found = Counter(words(skill.text))
            skills[place], lengths[place], place_of[skill.id] = skill, float(found.total()), place
            for word, count in found.items():
                added[word].append((place, count))
        postings = dict(self.postings)
        for word in dropped.keys() | added.keys():
            posting = _edited(postings.get(word, _NOWHERE), dropped[word], added[word])
            if len(posting.places):
                postings[word] = posting
            else:
                del postings[word]
        kinds = self.kinds.with_places({place_of[skill.id]: skill for skill in come}, len(skills))
        return Index(view.tree, tuple(skills), place_of, frozenset(free), np.array(lengths), postings, kinds)

    def scores(self, text: str, wholes: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Score of the skill at each place, -inf where it has no word of the text. With `wholes` each word of the text counts
        once, and scores are relative to them."""
        total, bound = self._sum(Counter(words(text)) if wholes is None else dict.fromkeys(words(text), 1))
        bounds = max(bound, np.finfo(float).tiny) if wholes is None else np.maximum(wholes, np.finfo(float).tiny)
        return np.where(total > 0, total / bounds, -np.inf)

    def wholes(self) -> NDArray[np.float64]:
        """The score of the skill at each place for a text that has all words of all skills."""
        return self._sum(dict.fromkeys(self.postings, 1))[0]

    def _sum(self, asked: Mapping[str, int]) -> tuple[NDArray[np.float64], float]:
        """Sums of BM25 at each place, and the largest one that any text could reach."""
        there = len(self.skills) - len(self.free)
        norm = K1 * (1 - B + B * self.lengths / max(self.lengths.sum() / max(there, 1), 1.0))
        total, bound = np.zeros(len(self.skills)), 0.0
        for word, times in asked.items():
            posting = self.postings.get(word, _NOWHERE)
            holders = len(posting.places)
            weight = times * np.log1p((there - holders + 0.5) / (holders + 0.5))
            total[posting.places] += weight * posting.counts / (posting.counts + norm[posting.places])
            bound += weight
        return total, bound


_NOWHERE = Posting(np.zeros(0, dtype=np.int64), np.zeros(0))


def _edited(posting: Posting, dropped: list[int], added: list[tuple[int, int]]) -> Posting:
    stays = ~np.isin(posting.places, dropped) if dropped else slice(None)
    places, counts = zip(*added, strict=True) if added else ((), ())
    return Posting(
        np.concatenate([posting.places[stays], np.array(places, dtype=np.int64)]),
        np.concatenate([posting.counts[stays], np.array(counts, dtype=np.float64)]),
    )


def _version(entry: Entry | None, states: tuple[State, ...]) -> str:
    return entry.digest if entry is not None and entry.state in states else ""
