"""Small seeded worlds: films, novels, companies, people, cities and countries, one passage each, and questions of 1 to 3 hops.

The worlds of one seed share their names and differ in their facts, so an answer must be looked up and cannot be learned.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gongfu.core.errors import TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.searchqa import names
from gongfu.envs.searchqa.corpus import Passage
from gongfu.envs.searchqa.grammar import COMPARISONS, KIND_WORDS, PASSAGES, RELATIONS, Relation

__all__ = ["KINDS", "MOST_PEOPLE", "World", "WorldQuestion", "make_world"]

KINDS = ("one_hop", "two_hop", "three_hop", "comparison")
MOST_PEOPLE = 96
_FIRST_YEAR, _LAST_YEAR = 1900, 1999


@dataclass(frozen=True, slots=True)
class WorldQuestion:
    """A question with its one answer."""

    kind: str
    text: str
    answer: str
    entities: tuple[str, ...]
    """Names whose passages must be read, in order."""


@dataclass(frozen=True)
class World:
    """Facts and the passages that state them."""

    kinds: Mapping[str, str]
    """Name -> "film", "person", ..."""
    facts: Mapping[tuple[str, str], str]
    """(name, relation) -> name, year or language."""
    passages: tuple[Passage, ...]
    questions: Mapping[str, tuple[WorldQuestion, ...]] = field(default_factory=dict)
    """Kind -> all questions of this world, shuffled."""


@lru_cache(maxsize=32)
def make_world(seed: int, number: int, people: int) -> World:
    """World `number` of a seed, with so many people; other things are in proportion. Raises TaskError for too few or many."""
    if not 4 <= people <= MOST_PEOPLE:
        raise TaskError(f"a generated world has 4 to {MOST_PEOPLE} people, got {people}")
    rng = rng_for(seed, purpose="searchqa world", task=str(number))
    named = _names(rng, people)
    kinds = {name: kind for kind, found in named.items() for name in found}
    facts = _facts(rng, named)
    passages = [_passage(rng, name, kind, facts) for name, kind in kinds.items()]
    rng.shuffle(passages)
    questions: dict[str, list[WorldQuestion]] = {kind: [] for kind in KINDS}
    for question in (*_chains(rng, kinds, facts), *_comparisons(rng, named, facts)):
        questions[question.kind].append(question)
    for listed in questions.values():
        rng.shuffle(listed)
    return World(kinds, facts, tuple(passages), {kind: tuple(listed) for kind, listed in questions.items()})


def _names(rng: random.Random, people: int) -> dict[str, list[str]]:
    def pairs(first: Sequence[str], last: Sequence[str], count: int) -> list[str]:
        return rng.sample([f"{a} {b}" for a in first for b in last], count)

    works = pairs(names.TITLE_FIRST, names.TITLE_LAST, 2 * max(3, people * 5 // 8))
    return {
        "film": works[::2],
        "novel": works[1::2],
        "company": pairs(names.COMPANY_FIRST, names.COMPANY_LAST, max(3, people * 3 // 8)),
        "person": pairs(names.FIRST_NAMES, names.LAST_NAMES, people),
        "city": rng.sample(names.CITIES, max(4, people // 2)),
        "country": rng.sample(names.COUNTRIES, max(3, people // 4)),
    }


def _facts(rng: random.Random, named: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], str]:
    facts: dict[tuple[str, str], str] = {}
    cities, countries = list(named["city"]), named["country"]
    for i, city in enumerate(cities):  # every country has a city
        facts[city, "country"] = countries[i % len(countries)]
    for country, language in zip(countries, rng.sample(names.LANGUAGES, len(countries)), strict=True):
        facts[country, "capital"] = rng.choice([c for c in cities if facts[c, "country"] == country])
        facts[country, "language"] = language
    for relation in RELATIONS:
        if relation.subject in ("city", "country"):
            continue
        for name in named[relation.subject]:
            if relation.object == "year":
                facts[name, relation.name] = str(rng.randint(_FIRST_YEAR, _LAST_YEAR))
            else:
                facts[name, relation.name] = rng.choice([other for other in named[relation.object] if other != name])
    return facts


def _passage(rng: random.Random, name: str, kind: str, facts: Mapping[tuple[str, str], str]) -> Passage:
    said = {relation.name: facts[name, relation.name] for relation in RELATIONS if relation.subject == kind}
    return Passage(name, rng.choice(PASSAGES[kind]).format(name=name, **said))


def _chains(rng: random.Random, kinds: Mapping[str, str], facts: Mapping[tuple[str, str], str]) -> Iterator[WorldQuestion]:
    """All chains of up to three relations that visit nothing twice."""

    def extend(path: tuple[str, ...], relations: tuple[Relation, ...]) -> Iterator[WorldQuestion]:
        for relation in RELATIONS:
            if kinds.get(path[-1]) != relation.subject:
                continue
            found = facts[path[-1], relation.name]
            if found in path:
                continue
            chain = (*relations, relation)
            yield WorldQuestion(KINDS[len(chain) - 1], _ask(rng, kinds, path[0], chain), found, path)
            if len(chain) < 3:
                yield from extend((*path, found), chain)

    for name in kinds:
        yield from extend((name,), ())


def _ask(rng: random.Random, kinds: Mapping[str, str], start: str, chain: Sequence[Relation]) -> str:
    phrase = KIND_WORDS.get(kinds[start], "") + start
    for relation in chain[:-1]:
        phrase = relation.noun.format(phrase)
    last = chain[-1]
    plain = f"{'Who' if last.object == 'person' else 'What'} is {last.noun}?"
    return rng.choice((last.ask, plain)).format(phrase)


def _comparisons(
    rng: random.Random, named: Mapping[str, Sequence[str]], facts: Mapping[tuple[str, str], str]
) -> Iterator[WorldQuestion]:
    """Each thing with three others of its kind, of another year."""
    for kind, (relation, ask) in COMPARISONS.items():
        asked = set()
        for name in named[kind]:
            others = [
                o for o in named[kind] if facts[o, relation] != facts[name, relation] and frozenset((name, o)) not in asked
            ]
            for other in rng.sample(others, min(3, len(others))):
                asked.add(frozenset((name, other)))
                older = min(name, other, key=lambda n: int(facts[n, relation]))
                yield WorldQuestion("comparison", ask.format(name, other), older, (name, other))
