"""The household suite: generated homes or official ALFWorld games, on the fast engine or on the official one."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from gongfu.core.errors import TaskError
from gongfu.core.records import Task, Trajectory
from gongfu.envs.household.expert import HouseholdExpert, read_goal
from gongfu.envs.household.failures import FAILURE_MODES, diagnose
from gongfu.envs.household.games import Game, find_splits
from gongfu.envs.household.homes import Family, HomeSpec, kinds_for, make_family, make_home, rooms_for
from gongfu.envs.household.problem import KINDS, SHORT_KINDS, parse_problem
from gongfu.envs.household.teacher import advise, lessons
from gongfu.envs.household.world import HouseholdEnv
from gongfu.envs.protocol import Advice, Env

__all__ = ["GENERATED_SPLITS", "HouseholdSuite"]

GENERATED_SPLITS = ("train", "seen", "unseen")
"""Training homes; other homes of the same families; homes of families that training never shows."""

_INSTRUCTIONS = """You are in a home and must do one household task. Each turn, answer with one of the admissible actions:
go to X | open X | close X | take O from X | move O to X | use O | clean O with X | heat O with X | cool O with X | \
slice O with O | examine X | look | inventory
X is a receptacle such as "fridge 1", O an object such as "apple 2". You can hold one object. Objects are cleaned at a \
sinkbasin, heated at a microwave, cooled at a fridge. To examine an object with a lamp, hold it and use the lamp."""


class HouseholdSuite:
    """Tasks of ALFWorld's six kinds. Implements `gongfu.envs.protocol.Suite`.

    `source`: "generated" (splits train, seen, unseen), or the path of official games (splits train, valid_seen,
    valid_unseen): a `json_2.1.1` folder, a `.jsonl.xz` file or a folder of such files.
    `engine`: "fast" (ours) or "official" (TextWorld; needs the extra "alfworld").
    `kinds`: the kinds of tasks to keep, by full or short name ("heat"); None = all.
    For generated homes only: `habit_strength` (probability that an object lies in its habitual place), `families` and
    `unseen_families` (how many families of homes the training splits and the split "unseen" have, dealt to the rooms in turn),
    `receptacles` and `distractors` (fewest and most per home), `sizes` (tasks per split), `seed`.
    `facts`: give the true state as predicates with every observation.

    Raises TaskError for an unknown kind, engine or split, for missing or empty data and for impossible numbers; MissingExtra if
    the official engine is asked for and not installed.
    """

    name = "household"

    def __init__(
        self,
        source: str | Path = "generated",
        engine: Literal["fast", "official"] = "fast",
        kinds: Sequence[str] | None = None,
        *,
        habit_strength: float = 0.85,
        families: int = 12,
        unseen_families: int = 4,
        receptacles: tuple[int, int] = (8, 14),
        distractors: tuple[int, int] = (6, 10),
        sizes: Mapping[str, int] | None = None,
        max_steps: int = 50,
        facts: bool = False,
        seed: int = 0,
    ) -> None:
        if engine not in ("fast", "official"):
            raise TaskError(f"household engine {engine!r} is unknown: use 'fast' or 'official'")
        if engine == "official":
            from gongfu.envs.household.official import require_packages

            require_packages()
        if not 0 <= habit_strength <= 1:
            raise TaskError(f"habit_strength is a probability, got {habit_strength}")
        for name, (low, high) in {"receptacles": receptacles, "distractors": distractors}.items():
            if not 0 <= low <= high:
                raise TaskError(f"{name} must be (fewest, most), got ({low}, {high})")
        if families < 1 or unseen_families < 0 or max_steps < 1:
            raise TaskError(f"cannot use families={families}, unseen_families={unseen_families}, max_steps={max_steps}")
        self.kinds = _full_kinds(kinds)
        self.engine = engine
        self.max_steps = max_steps
        self._facts = facts
        self._seed = seed
        self._habit_strength = habit_strength
        self._receptacles = (receptacles[0], receptacles[1])
        self._distractors = (distractors[0], distractors[1])
        self._readers: Mapping[str, Callable[[], list[Game]]] = {}
        self._games: dict[str, dict[str, Game]] = {}
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._sizes = {"train": 480, "seen": 120, "unseen": 120}
        if str(source) == "generated":
            self.splits: tuple[str, ...] = GENERATED_SPLITS
            for split, size in (sizes or {}).items():
                self._sizes[self._known(split)] = size
            self._families = self._deal_families(families, unseen_families)
        else:
            self._readers = find_splits(Path(source).expanduser())
            self.splits = tuple(self._readers)
            self._families = {}

    # ------------------------------------------------------------------ protocol

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always the same. Raises TaskError if it is unknown or empty."""
        if self._known(split) not in self._tasks:
            tasks = self._official_tasks(split) if self._readers else self._generated_tasks(split)
            if not tasks:
                raise TaskError(f"household split {split!r} has no tasks of the kinds {', '.join(self.kinds)}")
            self._tasks[split] = tuple(tasks)
        return self._tasks[split]

    def make(self, task: Task) -> Env:
        """A new environment for one episode of a task of this suite."""
        problem = self.problem(task)
        if self.engine == "official":
            from gongfu.envs.household.official import OfficialHouseholdEnv

            return OfficialHouseholdEnv(problem, task.goal, max_steps=self.max_steps, facts=self._facts)
        return HouseholdEnv(parse_problem(problem), task.goal, max_steps=self.max_steps, facts=self._facts)

    def instructions(self) -> str:
        return _INSTRUCTIONS

    def expert(
        self, task: Task, rng: random.Random, *, habits: bool | Mapping[str, str] = False, noise: float = 0.0
    ) -> HouseholdExpert:
        """A scripted expert for one episode.

        `habits`: True = it knows where the family of the task's home keeps things; a mapping (type of object -> type of
        receptacle) = it believes this, true or not, and searches on where that fails.
        """
        believed = habits if isinstance(habits, Mapping) else self.family(task).habits if habits else None
        return HouseholdExpert(rng, habits=believed, noise=noise)

    def advise(self, task: Task, quality: str, rng: random.Random, *, seen: Sequence[str] = ()) -> Advice:
        """A skill text of a known quality for a generated task; see `gongfu.envs.household.teacher`."""
        return advise(self.family(task), read_goal(task.goal).object, quality, rng, seen=seen)

    def lessons(self, task: Task) -> list[str]:
        """The skill texts among which a small model may choose its proposals for a generated task, true and false ones."""
        return lessons(self.family(task), read_goal(task.goal).object)

    failure_modes = FAILURE_MODES

    def diagnose(self, trajectory: Trajectory) -> str:
        """Why an episode failed, measured; see `gongfu.envs.household.failures`."""
        return diagnose(trajectory)

    # ------------------------------------------------------------------ what is behind a task

    def problem(self, task: Task) -> str:
        """The PDDL problem of a task."""
        if "game" in task.payload:
            game = self._split_games(task.split).get(str(task.payload["game"]))
            if game is None:
                raise TaskError(f"task {task.id}: its game {task.payload['game']!r} is not in split {task.split!r}")
            return game.problem
        return make_home(task.seed, _spec(task)).problem

    def family(self, task: Task) -> Family:
        """The family of homes that a generated task belongs to."""
        spec = _spec(task)
        return make_family(task.seed, spec.room, spec.family, spec.receptacles[0])

    def families(self, split: str) -> tuple[Family, ...]:
        """The families of homes of a generated split."""
        if self._readers:
            raise TaskError("official games have no families of homes")
        return self._families[self._known(split)]

    # ------------------------------------------------------------------ making tasks

    def _known(self, split: str) -> str:
        if split in self.splits:
            return split
        near = difflib.get_close_matches(split, self.splits, n=1, cutoff=0)
        raise TaskError(f"household has no split {split!r}; did you mean {near[0]!r}? It has {', '.join(self.splits)}")

    def _deal_families(self, seen: int, unseen: int) -> dict[str, tuple[Family, ...]]:
        rooms = rooms_for(self.kinds)
        n = len(rooms)

        def family(room: str, number: int) -> Family:
            return make_family(self._seed, room, number, self._receptacles[0])

        train = tuple(family(rooms[i % n], i // n) for i in range(seen))
        used = {room: sum(family.room == room for family in train) for room in rooms}
        new = tuple(family(rooms[i % n], used[rooms[i % n]] + i // n) for i in range(unseen))
        return {"train": train, "seen": train, "unseen": new}

    def _generated_tasks(self, split: str) -> list[Task]:
        """Kinds take turns, and so do the families that can have them."""
        able = {kind: [f for f in self._families[split] if kinds_for(f.room, (kind,))] for kind in self.kinds}
        if missing := [kind for kind, families in able.items() if not families]:
            raise TaskError(f"no home of split {split!r} can have {', '.join(missing)}: ask for more families or fewer kinds")
        tasks = []
        for i in range(self._sizes[split]):
            kind = self.kinds[i % len(self.kinds)]
            turn = i // len(self.kinds)
            family = able[kind][turn % len(able[kind])]
            spec = HomeSpec(
                kind=kind,
                room=family.room,
                family=family.number,
                home=i,
                split=split,
                habit_strength=self._habit_strength,
                receptacles=self._receptacles,
                distractors=self._distractors,
            )
            payload = asdict(spec) | {"receptacles": [*self._receptacles], "distractors": [*self._distractors]}
            del payload["kind"], payload["split"]  # the task itself says them
            task_id = f"household/{split}/{SHORT_KINDS[kind]}/{i:05d}"
            tasks.append(Task(task_id, self.name, kind, make_home(self._seed, spec).goal, split, self._seed, payload))
        return tasks

    def _split_games(self, split: str) -> dict[str, Game]:
        if self._known(split) not in self._readers:
            raise TaskError(f"this suite makes its own homes and has no official games for split {split!r}")
        if split not in self._games:
            self._games[split] = {game.id: game for game in self._readers[split]() if game.kind in self.kinds}
        return self._games[split]

    def _official_tasks(self, split: str) -> list[Task]:
        return [
            Task(
                f"household/{split}/{SHORT_KINDS[game.kind]}/{game.id}",
                self.name,
                game.kind,
                game.goal,
                split,
                payload={"game": game.id},
            )
            for game in self._split_games(split).values()
        ]


def _full_kinds(kinds: Sequence[str] | None) -> tuple[str, ...]:
    by_name = {short: kind for kind, short in SHORT_KINDS.items()} | {kind: kind for kind in KINDS}
    full = []
    for kind in KINDS if kinds is None else kinds:
        if kind not in by_name:
            near = difflib.get_close_matches(kind, by_name, n=1, cutoff=0)[0]
            raise TaskError(f"household has no kind {kind!r}; did you mean {near!r}? It has {', '.join(SHORT_KINDS.values())}")
        full.append(by_name[kind])
    if not full or len(set(full)) < len(full):
        raise TaskError(f"kinds must name each kind at most once and at least one, got {list(kinds or ())}")
    return tuple(full)


def _spec(task: Task) -> HomeSpec:
    """The generated home that a task names (its payload may have been through JSON, where tuples become lists)."""
    payload = dict(task.payload)
    try:
        return HomeSpec(
            kind=task.kind,
            room=payload["room"],
            family=payload["family"],
            home=payload["home"],
            split=task.split,
            habit_strength=payload["habit_strength"],
            receptacles=(payload["receptacles"][0], payload["receptacles"][1]),
            distractors=(payload["distractors"][0], payload["distractors"][1]),
        )
    except (KeyError, IndexError, TypeError) as e:
        raise TaskError(f"task {task.id} does not describe a generated home: its payload lacks or misstates {e}") from e
