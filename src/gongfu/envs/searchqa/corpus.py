"""Passages, and the files they come in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gongfu.core.errors import TaskError

__all__ = ["Passage", "distinct", "json_rows", "passage_of", "read_corpus"]


@dataclass(frozen=True, slots=True)
class Passage:
    """What a search finds."""

    title: str
    text: str

    def __str__(self) -> str:
        """The text, with the title in front unless it begins with it."""
        return self.text if not self.title or self.text.startswith(self.title) else f"{self.title}: {self.text}"


def read_corpus(path: Path) -> tuple[Passage, ...]:
    """The passages of a file, equal ones once. Raises TaskError for a missing, unreadable or empty one.

    A JSON object of title -> text or sentences; or rows (JSON list, JSON lines) of "title" and "text", or of "contents", whose
    first line is the title in quotes (the Wikipedia dumps of Search-R1 and FlashRAG).
    """
    if not path.is_file():
        raise TaskError(f"no corpus at {path}: give a .json or .jsonl file of passages")
    found = []
    for where, row in json_rows(path):
        try:
            found.append(passage_of(row))
        except (KeyError, TypeError, ValueError) as e:
            raise TaskError(
                f'{where}: not a passage ({type(e).__name__}: {e}); expected "title" and "text", or "contents"'
            ) from e
    if not found:
        raise TaskError(f"{path} holds no passages")
    return distinct(found)


def passage_of(row: Any) -> Passage:
    """A passage from a row of a file. Raises KeyError, TypeError or ValueError if it is none."""
    if isinstance(row, (tuple, list)):
        title, text = row
    elif "contents" in row:
        title, _, text = row["contents"].partition("\n")
        title = title.strip().strip('"')
    else:
        title = row["title"]
        text = row["paragraph_text"] if "paragraph_text" in row else row["text"]
    if not isinstance(text, str):
        text = "".join(text)  # sentences, with their spaces
    return Passage(str(title), " ".join(text.split()))


def distinct(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """Each passage once, in order of first appearance."""
    return tuple(dict.fromkeys(passages))


def json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place in words, row) of a JSON list, of TriviaQA's "Data", of another JSON object (as key, value) or of JSON lines."""
    if path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", _parsed(line, f"{path}, line {number}")
        return
    data = _parsed(path.read_text(encoding="utf-8"), str(path))
    if isinstance(data, dict):
        data = data["Data"] if "Data" in data else list(data.items())
    if not isinstance(data, list):
        raise TaskError(f"{path}: expected a JSON list or object, got {type(data).__name__}")
    yield from ((f"{path}, item {number}", row) for number, row in enumerate(data, 1))


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise TaskError(f"{where}: not JSON ({e})") from e
