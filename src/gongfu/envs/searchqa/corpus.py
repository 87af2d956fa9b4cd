"""Passages, and the files they come in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gongfu.core.errors import TaskError
from gongfu.envs.fields import field, shown, texts, wanted

__all__ = ["Passage", "check_corpus", "distinct", "json_rows", "passage_of", "read_corpus"]

_CHECKED = 1000
"""Passages at the beginning of a file that `check_corpus` reads."""


@dataclass(frozen=True, slots=True)
class Passage:
    """What a search finds."""

    title: str
    text: str

    def __str__(self) -> str:
        """The text, with the title in front unless it begins with it."""
        return self.text if not self.title or self.text.startswith(self.title) else f"{self.title}: {self.text}"


def read_corpus(path: Path) -> tuple[Passage, ...]:
    """The passages of a file, equal ones once. Raises TaskError for a missing, unreadable or empty one, naming the row.

    A JSON object of title -> text or sentences; or rows (JSON list, JSON lines) of "title" and "text", or of "contents", whose
    first line is the title in quotes (the Wikipedia dumps of Search-R1 and FlashRAG).
    """
    return _some(path, distinct(_passages(path)))


def check_corpus(path: Path) -> None:
    """Raises what `read_corpus` would for the beginning of JSON lines, or anywhere in a JSON file, which is read as a whole."""
    _some(path, tuple(islice(_passages(path), _CHECKED)))


def _passages(path: Path) -> Iterator[Passage]:
    if not path.is_file():
        raise TaskError(f"no corpus at {path}: give a .json or .jsonl file of passages")
    for where, row in json_rows(path):
        try:
            passage = passage_of(row)
        except ValueError as e:
            raise TaskError(f'{where}: not a passage: {e}; expected "title" and "text", or "contents"') from e
        yield passage


def _some(path: Path, passages: tuple[Passage, ...]) -> tuple[Passage, ...]:
    if not passages:
        raise TaskError(f"{path} holds no passages")
    return passages


def passage_of(row: Any) -> Passage:
    """A passage from a row of a file. Raises ValueError if it is none."""
    if isinstance(row, (tuple, list)):
        if len(row) != 2:
            raise ValueError(f"it should be a title and a text, but is {shown(row)}")
        title, text = row
    elif "contents" in wanted(row, dict, "it"):
        title, _, text = field(row, "contents", str).partition("\n")
        title = title.strip().strip('"')
    else:
        title, text = (_value(row, *keys) for keys in (("title",), ("paragraph_text", "text")))
    if isinstance(title, bool) or not isinstance(title, (str, int, float)):
        raise ValueError(f"its title should be a text, but is {shown(title)}")
    if not isinstance(text, str):
        if not isinstance(text, list):
            raise ValueError(f"its text should be a text or a list of sentences, but is {shown(text)}")
        text = "".join(texts(text, "its sentences"))  # with their spaces
    return Passage(str(title), " ".join(text.split()))


def _value(row: dict[str, Any], *keys: str) -> Any:
    """The value of the first key that is there."""
    for key in keys:
        if key in row:
            return row[key]
    raise ValueError(f'it lacks the key "{keys[-1]}" (it is {shown(row)})')


def distinct(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    """Each passage once, in order of first appearance."""
    return tuple(dict.fromkeys(passages))


def json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """(place in words, row) of a JSON list, of TriviaQA's "Data", of another JSON object (as key, value) or of JSON lines.

    Raises TaskError for a file that is neither, naming the line.
    """
    if path.suffix not in (".json", ".jsonl"):
        raise TaskError(f"{path} is no .json or .jsonl file: give JSON, or JSON lines, unpacked and under one of these names")
    try:
        yield from _lines(path) if path.suffix == ".jsonl" else _items(path)
    except OSError as e:
        raise TaskError(f"cannot read {path}: {e.strerror or e}") from e


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path}, line {number}", _parsed(line, f"{path}, line {number}")


def _items(path: Path) -> Iterator[tuple[str, Any]]:
    data = _parsed(path.read_bytes(), str(path))
    if isinstance(data, dict):
        listed = data.get("Data")  # a passage may have this title too, but its text is no list of objects
        is_trivia = isinstance(listed, list) and all(isinstance(row, dict) for row in listed)
        data = listed if is_trivia else list(data.items())
    if not isinstance(data, list):
        raise TaskError(f"{path} should hold a JSON list or object, but holds {shown(data)}")
    yield from ((f"{path}, item {number}", row) for number, row in enumerate(data, 1))


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as e:
        raise TaskError(f"{where}: not text in UTF-8") from e
    except ValueError as e:
        raise TaskError(f"{where}: not JSON ({e})") from e
