"""The Sokoban suite: generated rooms, or files of Boxoban levels."""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from gongfu.core.errors import TaskError
from gongfu.core.records import Task
from gongfu.envs.protocol import Env
from gongfu.envs.sokoban.env import GOAL, SokobanEnv
from gongfu.envs.sokoban.expert import SokobanExpert
from gongfu.envs.sokoban.room import Room, State, read_room
from gongfu.envs.sokoban.rooms import RoomSpec, make_room

__all__ = ["GENERATED_SPLITS", "SokobanSuite"]

GENERATED_SPLITS = ("train", "seen", "unseen")
"""Training rooms; other rooms of the same size; rooms one square larger, of which training shows none."""

_INSTRUCTIONS = """You push boxes in a room seen from above. # is a wall, _ floor, . a target, $ a box, * a box on a target, \
@ you, + you on a target. Each turn, answer with one of: up | down | left | right
A step into a box pushes it, if the square behind it is free. Boxes cannot be pulled. Put every box onto a target."""


class SokobanSuite:
    """Rooms to be solved. Implements `gongfu.envs.protocol.Suite`.

    `source`: "generated" (splits train, seen, unseen), or a folder of Boxoban files, each a split by its name (train.txt).
    For generated rooms only: `size` (width and height, outer walls included), `boxes`, `solution` (fewest and most moves of the
    shortest solution), `sizes` (tasks per split), `seed`. `score`, `facts`: see `SokobanEnv`.

    Raises TaskError for an unknown split or score, for missing or unreadable levels and for impossible numbers.
    """

    name = "sokoban"

    def __init__(
        self,
        source: str | Path = "generated",
        *,
        size: int = 6,
        boxes: int = 1,
        solution: tuple[int, int] = (3, 12),
        max_steps: int = 15,
        score: Literal["outcome", "boxes"] = "outcome",
        sizes: Mapping[str, int] | None = None,
        facts: bool = False,
        seed: int = 0,
    ) -> None:
        generated = str(source) == "generated"
        if score not in ("outcome", "boxes"):
            raise TaskError(f"sokoban score {score!r} is unknown: use 'outcome' or 'boxes'")
        if size < 5 or boxes < 1 or max_steps < 1:
            raise TaskError(f"cannot use size={size} (at least 5), boxes={boxes}, max_steps={max_steps}")
        if generated and not 1 <= solution[0] <= solution[1] <= max_steps:
            raise TaskError(f"solution must be (fewest, most) moves within max_steps={max_steps}, got {tuple(solution)}")
        self.max_steps = max_steps
        self._size = size
        self._boxes = boxes
        self._solution = (solution[0], solution[1])
        self._score = score
        self._facts = facts
        self._seed = seed
        self._files: Mapping[str, Path] = {}
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._sizes = {"train": 480, "seen": 120, "unseen": 120}
        if generated:
            self.splits: tuple[str, ...] = GENERATED_SPLITS
            for split, count in (sizes or {}).items():
                self._sizes[self._known(split)] = count
        else:
            self._files = _find_files(Path(source).expanduser())
            self.splits = tuple(self._files)

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always the same. Raises TaskError if it is unknown or empty."""
        if self._known(split) not in self._tasks:
            tasks = self._level_tasks(split) if self._files else self._generated_tasks(split)
            if not tasks:
                raise TaskError(f"sokoban split {split!r} has no tasks")
            self._tasks[split] = tuple(tasks)
        return self._tasks[split]

    def make(self, task: Task) -> Env:
        """A new environment for one episode of a task of this suite."""
        room, start = self.room(task)
        return SokobanEnv(room, start, task.goal, max_steps=self.max_steps, score=self._score, facts=self._facts)

    def instructions(self) -> str:
        return _INSTRUCTIONS

    def expert(self, task: Task, rng: random.Random, *, noise: float = 0.0) -> SokobanExpert:
        """A scripted player for one episode."""
        return SokobanExpert(rng, noise=noise)

    def room(self, task: Task) -> tuple[Room, State]:
        """The room of a task, and how it begins."""
        if "rows" in task.payload:
            return read_room(task.payload["rows"])
        try:
            low, high = task.payload["solution"]
            spec = RoomSpec(task.split, task.payload["number"], task.payload["size"], task.payload["boxes"], (low, high))
        except (KeyError, TypeError, ValueError) as e:
            raise TaskError(f"task {task.id} does not describe a room: its payload lacks or misstates {e}") from e
        return make_room(task.seed, spec)

    def _known(self, split: str) -> str:
        if split in self.splits:
            return split
        near = difflib.get_close_matches(split, self.splits, n=1, cutoff=0)
        raise TaskError(f"sokoban has no split {split!r}; did you mean {near[0]!r}? It has {', '.join(self.splits)}")

    def _generated_tasks(self, split: str) -> list[Task]:
        size = self._size + (split == "unseen")
        specs = [RoomSpec(split, i, size, self._boxes, self._solution) for i in range(self._sizes[split])]
        if specs:
            make_room(self._seed, specs[0])  # impossible settings are an error now, not in an episode
        tasks = []
        for spec in specs:
            payload = asdict(spec) | {"solution": [*spec.solution]}
            del payload["split"]  # the task itself says it
            kind = f"{spec.boxes}-box"
            tasks.append(Task(f"sokoban/{split}/{kind}/{spec.number:05d}", self.name, kind, GOAL, split, self._seed, payload))
        return tasks

    def _level_tasks(self, split: str) -> list[Task]:
        tasks = []
        for number, rows in _read_levels(self._files[split]):
            try:
                _, start = read_room(rows)
            except TaskError as e:
                raise TaskError(f"{self._files[split]}, level {number}: {e}") from e
            kind = f"{len(start.boxes)}-box"
            payload = {"rows": rows}
            tasks.append(Task(f"sokoban/{split}/{kind}/{number}", self.name, kind, GOAL, split, payload=payload))
        return tasks


def _find_files(source: Path) -> dict[str, Path]:
    files = sorted(source.glob("*.txt")) if source.is_dir() else []
    if not files:
        raise TaskError(f"no sokoban levels at {source}: give a folder of Boxoban .txt files, or source='generated'")
    return {path.stem: path for path in files}


def _read_levels(path: Path) -> list[tuple[str, list[str]]]:
    """(number, rows) of the levels of a file: "; number", then the rows."""
    levels: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(";"):
            levels.append((line[1:].strip(), []))
        elif line.strip():
            if not levels:
                raise TaskError(f"{path}: the first level has no line '; number' before it")
            levels[-1][1].append(line)
    if len({number for number, _ in levels}) < len(levels):
        raise TaskError(f"{path}: two levels have one number")
    return levels
