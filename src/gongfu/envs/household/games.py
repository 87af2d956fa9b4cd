"""Games of the official ALFWorld data: folders of `game.tw-pddl` + `traj_data.json`, or the same packed as JSON lines.

Packed files hold one object a line with the keys id, task_type, goal and pddl_problem (others are ignored), compressed with
xz or not. Only problem text and goal are taken: a stored grammar is code to the official engine and is never used.
"""

from __future__ import annotations

import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gongfu.core.errors import TaskError

__all__ = ["SPLITS", "Game", "find_splits"]

SPLITS = ("train", "valid_seen", "valid_unseen")
_GOAL = re.compile(r"Your task is to: (.+?)\.\s*(?:\"|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Game:
    """One official game."""

    id: str
    kind: str
    goal: str
    packed: bytes
    """The PDDL problem, compressed: the training split holds 3,553 of about 35 kB."""

    @property
    def problem(self) -> str:
        return zlib.decompress(self.packed).decode()


def find_splits(source: Path) -> dict[str, Callable[[], list[Game]]]:
    """Split -> function that reads its games, sorted by id, unsolvable, movable and sliced ones left out (as AlfredTWEnv does).

    `source` is a `json_2.1.1` folder, a folder of packed files, or one packed file. Raises TaskError if it is none of them.
    """
    if not source.exists():
        raise TaskError(f"no household games at {source}: give a json_2.1.1 folder or a .jsonl.xz file, or source='generated'")
    files = [source] if source.is_file() else sorted(p for p in source.iterdir() if p.name.endswith((".jsonl", ".jsonl.xz")))
    packed = {split: path for path in files if (split := _split_of(path.name))}
    if packed:
        return {split: partial(_sorted, _read_packed, packed[split]) for split in SPLITS if split in packed}
    folders = {split: source / split for split in SPLITS if (source / split).is_dir()}
    if not folders:
        raise TaskError(f"{source} holds neither {' / '.join(SPLITS)} folders nor files named *train.jsonl.xz and so on")
    return {split: partial(_sorted, _read_folder, folder) for split, folder in folders.items()}


def _sorted(read: Callable[[Path], Iterator[Game]], path: Path) -> list[Game]:
    return sorted(read(path), key=lambda game: game.id)


def _split_of(file_name: str) -> str:
    stem = file_name.partition(".")[0]
    return next((split for split in SPLITS if stem == split or stem.endswith(f"_{split}")), "")


def _read_packed(path: Path) -> Iterator[Game]:
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                yield _game(row["id"], row["task_type"], row["goal"], row["pddl_problem"])
            except (ValueError, KeyError, TypeError) as e:
                raise TaskError(f"{path}, line {number}: not a household game ({type(e).__name__}: {e})") from e


def _read_folder(folder: Path) -> Iterator[Game]:
    for path in folder.rglob("game.tw-pddl"):
        name = path.parent.relative_to(folder).as_posix()
        about = path.parent / "traj_data.json"
        if "movable" in name or "Sliced" in name or not about.is_file():
            continue
        stored = _read_json(path)
        if stored.get("solvable"):
            goal = _GOAL.search(stored.get("grammar", ""))
            if goal is None or "pddl_problem" not in stored:
                raise TaskError(f"{path}: no goal sentence in its grammar, or no pddl_problem")
            yield _game(name, _read_json(about)["task_type"], goal[1], stored["pddl_problem"])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise TaskError(f"{path}: not JSON ({e})") from e


def _game(name: str, kind: str, goal: str, problem: str) -> Game:
    return Game(name, kind, goal, zlib.compress(problem.encode(), 1))
