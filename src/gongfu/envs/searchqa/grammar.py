"""The language of the generated worlds: what relates to what, how a passage says it, how a question asks for it.

Sentences are written from the templates here and read back with patterns made of the same templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "COMPARISONS",
    "KIND_WORDS",
    "PASSAGES",
    "RELATIONS",
    "Chain",
    "Comparison",
    "Relation",
    "read_fact",
    "read_question",
]


@dataclass(frozen=True, slots=True)
class Relation:
    """From a thing of one kind to one of another, or to a year or a language."""

    name: str
    subject: str
    object: str
    noun: str
    """'the director of {}': how it stands inside a question."""
    ask: str
    """'Who directed {}?': how a question begins with it."""


RELATIONS = (
    Relation("director", "film", "person", "the director of {}", "Who directed {}?"),
    Relation("release", "film", "year", "the year of {}", "When did {} come out?"),
    Relation("author", "novel", "person", "the author of {}", "Who wrote {}?"),
    Relation("release", "novel", "year", "the year of {}", "When did {} come out?"),
    Relation("founder", "company", "person", "the founder of {}", "Who founded {}?"),
    Relation("seat", "company", "city", "the home city of {}", "In which city is {}?"),
    Relation("founding", "company", "year", "the founding year of {}", "When was {} founded?"),
    Relation("birthplace", "person", "city", "the birthplace of {}", "Where was {} born?"),
    Relation("birth", "person", "year", "the birth year of {}", "When was {} born?"),
    Relation("teacher", "person", "person", "the teacher of {}", "Who taught {}?"),
    Relation("country", "city", "country", "the country of {}", "In which country is {}?"),
    Relation("capital", "country", "city", "the capital of {}", "What is the capital of {}?"),
    Relation("language", "country", "language", "the language of {}", "Which language is spoken in {}?"),
)
KIND_WORDS = {"film": "the film ", "novel": "the novel ", "company": "the company "}
"""Put before a name in a question; other names stand alone."""

COMPARISONS = {
    "film": ("release", "Which film is older, {} or {}?"),
    "novel": ("release", "Which novel is older, {} or {}?"),
    "company": ("founding", "Which company is older, {} or {}?"),
    "person": ("birth", "Who was born first, {} or {}?"),
}
"""Kind -> (relation to compare, question)."""

PASSAGES: Mapping[str, tuple[str, ...]] = {
    "film": (
        "{name} is a film of {release}. It was directed by {director}.",
        "{director} directed the film {name}, which came out in {release}.",
    ),
    "novel": (
        "{name} is a novel of {release}. It was written by {author}.",
        "{author} wrote the novel {name}, which came out in {release}.",
    ),
    "company": (
        "{name} is a company in {seat}. It was founded by {founder} in {founding}.",
        "{founder} founded the company {name} in {seat} in {founding}.",
    ),
    "person": (
        "{name} was born in {birthplace} in {birth}. {name} was taught by {teacher}.",
        "{name} studied under {teacher}. {name} was born in {birthplace} in {birth}.",
    ),
    "city": ("{name} is a city in {country}.", "The city of {name} lies in {country}."),
    "country": (
        "{name} is a country. Its capital is {capital} and its language is {language}.",
        "The capital of {name} is {capital}. People in {name} speak {language}.",
    ),
}
_NAME = r"[A-Z]\w*(?: [A-Z]\w*)*|\d{4}"


@dataclass(frozen=True, slots=True)
class Chain:
    """A question understood: begin at a name, then follow the relations."""

    start: str
    relations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question understood: of two names, the one whose relation says the earlier year."""

    names: tuple[str, str]
    relation: str


def read_question(text: str) -> Chain | Comparison | None:
    """Understand a question of a generated world; None for any other."""
    for relation, ask in COMPARISONS.values():
        if match := _template(ask).fullmatch(text):
            return Comparison((match[1], match[2]), relation)
    for relation in RELATIONS:
        for ask in (relation.ask, f"What is {relation.noun}?", f"Who is {relation.noun}?"):
            if match := _template(ask).fullmatch(text):
                inner = _read_phrase(match[1])
                if inner is not None:
                    return Chain(inner.start, (*inner.relations, relation.name))
    return None


def _read_phrase(phrase: str) -> Chain | None:
    """'the director of the film Red Hill' -> Red Hill, director."""
    for word in KIND_WORDS.values():
        if phrase.startswith(word):
            return Chain(phrase.removeprefix(word), ())
    for relation in RELATIONS:
        if match := _template(relation.noun).fullmatch(phrase):
            inner = _read_phrase(match[1])
            return None if inner is None else Chain(inner.start, (*inner.relations, relation.name))
    return Chain(phrase, ()) if re.fullmatch(_NAME, phrase) else None


def read_fact(text: str, name: str, relation: str) -> str:
    """What the passages in `text` say about a relation of a name; empty if they say nothing."""
    for pattern in _fact_patterns(name, relation):
        if match := pattern.search(text):
            return match[relation]
    return ""


@lru_cache(maxsize=4096)
def _fact_patterns(name: str, relation: str) -> tuple[re.Pattern[str], ...]:
    return tuple(_patterns(name, relation))


def _patterns(name: str, relation: str) -> Iterator[re.Pattern[str]]:
    for templates in PASSAGES.values():
        for template in templates:
            if f"{{{relation}}}" in template:
                parts = re.split(r"\{(\w+)\}", template)
                groups = [re.escape(name) if field == "name" else f"(?P<{field}>{_NAME})" for field in parts[1::2]]
                texts = [re.escape(part) for part in parts[::2]]
                body = texts[0] + "".join(group + after for group, after in zip(groups, texts[1:], strict=True))
                yield re.compile(rf"\b{body}")


@lru_cache(maxsize=128)
def _template(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{\}", "(.+)"))
