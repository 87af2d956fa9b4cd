"""Questions from the usual files of NQ, TriviaQA, PopQA, HotpotQA, 2Wiki, MuSiQue and Bamboogle.

The files differ in their keys, never in what they say, so one reader takes what it finds in a row:

* question: "question" or "Question"
* answers: "golden_answers" (FlashRAG, Search-R1), "answer" (a text, a list, or TriviaQA's object with its aliases),
  "answers", "possible_answers" (PopQA: a list written as text), and "answer_aliases" (MuSiQue)
* passages, where the file brings some: "context" (HotpotQA, 2Wiki), "paragraphs" (MuSiQue)
* titles of the passages that hold the evidence: "supporting_facts" (HotpotQA, 2Wiki), "is_supporting" (MuSiQue)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gongfu.core.errors import TaskError
from gongfu.envs.fields import field, shown, wanted
from gongfu.envs.searchqa.corpus import Passage, json_rows, passage_of

__all__ = ["Question", "find_files", "read_questions"]

_HOPS = re.compile(r"(\d)hop\w*?__")  # MuSiQue says the number of hops in its ids: 3hop1__...
_NUMBERS = {"1": "one", "2": "two", "3": "three", "4": "four"}


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a file."""

    id: str
    text: str
    answers: tuple[str, ...]
    """Gold answers, any of which is right."""
    kind: str
    """The file's own type ("bridge", "comparison", ...), the number of hops ("two_hop"), or "question"."""
    passages: tuple[Passage, ...] = ()
    support: tuple[str, ...] = ()
    """Titles of the passages that hold the evidence, where the file says them."""


def find_files(source: Path) -> dict[str, Path]:
    """Split -> file: the .json and .jsonl files of a folder by their stems. Raises TaskError if there is none."""
    files = sorted(p for p in source.iterdir() if p.suffix in (".json", ".jsonl")) if source.is_dir() else []
    if not files:
        raise TaskError(f"no questions at {source}: give a .json or .jsonl file, or a folder with one such file a split")
    splits = {path.stem: path for path in files}
    if len(splits) < len(files):
        raise TaskError(f"{source} holds two files of one split: {', '.join(path.name for path in files)}")
    return splits


def read_questions(path: Path) -> list[Question]:
    """The questions of a file, in its order; those that MuSiQue calls unanswerable are left out.

    A question without an id has its number for one. Two of one id are an error, also where a file was joined from several that
    count alike: ids decide which split a question is of, and an id made up here would deal it into another one without a word.
    Raises TaskError naming the rows, or if a file holds no question.
    """
    questions: dict[str, Question] = {}
    places: dict[str, str] = {}
    for number, (where, row) in enumerate(json_rows(path)):
        try:
            if not wanted(row, dict, "it").get("answerable", True):
                continue
            question = _question(row, number)
        except ValueError as e:
            raise TaskError(f"{where}: not a question: {e}") from e
        if question.id in questions:
            raise TaskError(
                f'{where}: its id "{question.id}" is that of {places[question.id]} too; give each question an id of its own, '
                "or take the ids out of the file, so that questions are numbered"
            )
        questions[question.id], places[question.id] = question, where
    if not questions:
        raise TaskError(f"{path} holds no questions")
    return [*questions.values()]


def _question(row: dict[str, Any], number: int) -> Question:
    text = _first(row, "question", "Question")
    answers = tuple(dict.fromkeys(_answers(row)))
    if not wanted(text, str, "its question").strip():
        raise ValueError("its question is empty")
    if not answers:
        raise ValueError("it has no answer")
    id = str(next((row[key] for key in ("id", "_id", "idx", "QuestionId", "question_id") if key in row), number))
    if "data_source" in row:  # Search-R1 joins NQ and HotpotQA, whose ids count alike
        id = f"{row['data_source']}/{id}"
    passages, support = _evidence(row)
    return Question(id, " ".join(text.split()), answers, _kind(row, id), passages, support)


def _first(row: dict[str, Any], *keys: str) -> Any:
    for key in keys:
        if key in row:
            return row[key]
    raise ValueError(f"it has none of the keys {', '.join(keys)} (it is {shown(row)})")


def _answers(row: dict[str, Any]) -> Iterator[str]:
    given = _first(row, "golden_answers", "answer", "answers", "Answer", "possible_answers")
    for answer in (*_flat(given), *_flat(row.get("answer_aliases") or [])):
        if answer.strip():
            yield answer.strip()


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):  # TriviaQA
        keys = ("Value", "value", "Aliases", "aliases")
        if not any(key in value for key in keys):
            raise ValueError(f"an answer has none of the keys {', '.join(keys)}")
        for key in keys:
            yield from _flat(value.get(key, []))
    elif isinstance(value, str):
        yield from _listed(value) if value.startswith('["') else [value]
    elif isinstance(value, (bool, int, float)):
        yield str(value)
    elif isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        raise ValueError(f"an answer should be a text, a number, a list or an object, but is {shown(value)}")


def _listed(text: str) -> Iterator[str]:
    """PopQA's answers, a list written as text."""
    try:
        listed = json.loads(text)
    except ValueError as e:
        raise ValueError(f"its answers begin as a list in a text, but are no JSON: {shown(text)}") from e
    yield from _flat(listed)


def _kind(row: dict[str, Any], id: str) -> str:
    about = row.get("metadata") if isinstance(row.get("metadata"), Mapping) else {}
    kind = row.get("type") or (about or {}).get("type")
    hops = _HOPS.match(id)
    return str(kind) if kind else f"{_NUMBERS.get(hops[1], hops[1])}_hop" if hops else "question"


def _evidence(row: dict[str, Any]) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
    """The passages of a row, and the titles of those that hold the evidence."""
    if "paragraphs" in row:
        paragraphs = [wanted(p, dict, "each of its paragraphs") for p in field(row, "paragraphs", list)]
        passages = tuple(map(passage_of, paragraphs))
        support = (q.title for p, q in zip(paragraphs, passages, strict=True) if p.get("is_supporting"))
        return passages, tuple(dict.fromkeys(support))
    return tuple(map(passage_of, _context(row))), tuple(dict.fromkeys(map(str, _supporting(row))))


def _context(row: dict[str, Any]) -> list[Any]:
    context = row.get("context") or []
    if not isinstance(context, dict):
        return wanted(context, list, 'its "context"')
    titles, sentences = field(context, "title", list), field(context, "sentences", list)  # columns, as data set hubs store them
    if len(titles) != len(sentences):
        raise ValueError(f'its "context" has {len(titles)} titles, but {len(sentences)} lists of sentences')
    return [*zip(titles, sentences, strict=True)]


def _supporting(row: dict[str, Any]) -> list[Any]:
    facts = row.get("supporting_facts") or []
    if isinstance(facts, dict):
        return field(facts, "title", list)
    for fact in wanted(facts, list, 'its "supporting_facts"'):
        if not isinstance(fact, list) or not fact:
            raise ValueError(f'each of its "supporting_facts" should be a list of title and sentence, but one is {shown(fact)}')
    return [fact[0] for fact in facts]
