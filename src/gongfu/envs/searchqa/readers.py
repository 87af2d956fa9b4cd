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

    Raises TaskError naming the row that is no question, or if a file holds none.
    """
    questions = []
    for number, (where, row) in enumerate(json_rows(path)):
        try:
            if row.get("answerable", True):
                questions.append(_question(row, number))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise TaskError(f"{where}: not a question ({type(e).__name__}: {e})") from e
    if not questions:
        raise TaskError(f"{path} holds no questions")
    repeated = {q.id for q in questions}
    if len(repeated) < len(questions):  # ids that do not tell questions apart are no ids
        questions = [Question(str(i), q.text, q.answers, q.kind, q.passages, q.support) for i, q in enumerate(questions)]
    return questions


def _question(row: Mapping[str, Any], number: int) -> Question:
    text = _first(row, "question", "Question")
    answers = tuple(dict.fromkeys(_answers(row)))
    if not isinstance(text, str) or not text.strip():
        raise ValueError("its question is empty")
    if not answers:
        raise ValueError("it has no answer")
    id = str(next((row[key] for key in ("id", "_id", "idx", "QuestionId", "question_id") if key in row), number))
    passages, support = _evidence(row)
    return Question(id, " ".join(text.split()), answers, _kind(row, id), passages, support)


def _first(row: Mapping[str, Any], *keys: str) -> Any:
    for key in keys:
        if key in row:
            return row[key]
    raise KeyError(" / ".join(keys))


def _answers(row: Mapping[str, Any]) -> Iterator[str]:
    given = _first(row, "golden_answers", "answer", "answers", "Answer", "possible_answers")
    for answer in (*_flat(given), *_flat(row.get("answer_aliases", ()))):
        if answer.strip():
            yield answer.strip()


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):  # TriviaQA
        keys = ("Value", "value", "Aliases", "aliases")
        if not any(key in value for key in keys):
            raise ValueError(f"an answer has none of the keys {', '.join(keys)}")
        for key in keys:
            yield from _flat(value.get(key, ()))
    elif isinstance(value, str):
        listed = json.loads(value) if value.startswith('["') else None  # PopQA
        yield from listed if isinstance(listed, list) else [value]
    elif isinstance(value, (bool, int, float)):
        yield str(value)
    else:
        for item in value:
            yield from _flat(item)


def _kind(row: Mapping[str, Any], id: str) -> str:
    about = row.get("metadata") if isinstance(row.get("metadata"), Mapping) else {}
    kind = row.get("type") or (about or {}).get("type")
    hops = _HOPS.match(id)
    return str(kind) if kind else f"{_NUMBERS.get(hops[1], hops[1])}_hop" if hops else "question"


def _evidence(row: Mapping[str, Any]) -> tuple[tuple[Passage, ...], tuple[str, ...]]:
    if "paragraphs" in row:
        support = tuple(str(p["title"]) for p in row["paragraphs"] if p.get("is_supporting"))
        return tuple(passage_of(p) for p in row["paragraphs"]), tuple(dict.fromkeys(support))
    context, facts = row.get("context", ()), row.get("supporting_facts", ())
    if isinstance(context, Mapping):  # columns instead of rows, as data set hubs store them
        context = list(zip(context["title"], context["sentences"], strict=True))
    titles = facts["title"] if isinstance(facts, Mapping) else [title for title, *_ in facts]
    return tuple(passage_of(p) for p in context), tuple(dict.fromkeys(str(title) for title in titles))
