"""The WebShop suite: the official catalogue with its instructions, or a generated shop."""

from __future__ import annotations

import difflib
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from gongfu.core.errors import TaskError
from gongfu.core.records import Task, Trajectory
from gongfu.envs.webshop.catalogue import Catalogue, read_json, read_products, reasons
from gongfu.envs.webshop.expert import WebShopExpert
from gongfu.envs.webshop.failures import FAILURE_MODES, diagnose
from gongfu.envs.webshop.generator import GENERATED_SPLITS, make_goals, make_records
from gongfu.envs.webshop.goals import Goal, goal_of, human_goals, payload_of, shuffled, synthetic_goals
from gongfu.envs.webshop.pages import FORMS, Form
from gongfu.envs.webshop.reward import option_matches
from gongfu.envs.webshop.shop import Settings, Shop, WebShopEnv

__all__ = ["OFFICIAL_SPLITS", "WebShopSuite"]

_log = logging.getLogger(__name__)

OFFICIAL_SPLITS = ("train", "dev", "test")

KIND = "webshop"
"""All tasks are of one kind."""

_INSTRUCTIONS = """You are shopping on a web site and must buy what the instruction asks for: the right kind of product, with \
the attributes and options it names, below its price limit. Each turn, answer with one action:
search[words] on the start page | click[value] for a button, a product id or the value of an option
Open a product by its id, choose its options, then click[buy now]. Buying ends the visit."""


class WebShopSuite:
    """Shopping tasks. Implements `gongfu.envs.protocol.Suite`.

    `items`, `attributes`, `instructions`: paths of the official files (`items_shuffle_1000.json`, `items_ins_v2_1000.json`,
    `items_human_ins.json`). Splits are then train, dev and test, cut from the shuffled goals as usual: `sizes["test"]` first,
    then `sizes["dev"]`, the rest is train. Without `instructions` the goals are the synthetic ones of `attributes`.
    Without `items` the shop is generated from `seed`: `products` of them, splits train, seen and unseen of the given `sizes`.
    The other settings are those of `gongfu.envs.webshop.shop.Settings`.

    What of the files is not played is said once, in a warning. Raises TaskError for missing or damaged files, unknown splits
    and impossible numbers.
    """

    name = "webshop"

    def __init__(
        self,
        items: str | Path = "",
        attributes: str | Path = "",
        instructions: str | Path = "",
        *,
        products: int = 1000,
        sizes: Mapping[str, int] | None = None,
        observation: Form = "text",
        score: Literal["reward", "success"] = "reward",
        queries: int = 4,
        results_per_page: int = 10,
        show_attributes: bool = False,
        show_chosen: bool = False,
        max_steps: int = 15,
        seed: int = 0,
    ) -> None:
        if observation not in FORMS:
            raise TaskError(f"WebShop has no observation {observation!r}; it has {', '.join(FORMS)}")
        if score not in ("reward", "success"):
            raise TaskError(f"WebShop's score is 'reward' or 'success', got {score!r}")
        if queries < 0 or results_per_page < 1 or max_steps < 1:
            raise TaskError(f"cannot use queries={queries}, results_per_page={results_per_page}, max_steps={max_steps}")
        if str(items) and not str(attributes):
            raise TaskError("WebShop's items need their attributes: give the path of items_ins_v2*.json too")
        if not str(items) and (str(attributes) or str(instructions)):
            raise TaskError("WebShop's attributes and instructions belong to items: give their path too")
        self.max_steps = max_steps
        self.splits: tuple[str, ...] = OFFICIAL_SPLITS if str(items) else GENERATED_SPLITS
        self._sizes = {"test": 500, "dev": 1000} if str(items) else {"train": 480, "seen": 120, "unseen": 120}
        for split, size in (sizes or {}).items():
            if self._known(split) not in self._sizes or size < 0:
                raise TaskError(f"the size of WebShop's split {split!r} cannot be {size}")
            self._sizes[split] = size
        self._settings = Settings(observation, score, queries, results_per_page, show_attributes, show_chosen, max_steps)
        self._goals: dict[str, list[Goal]] = {}
        self._not_played = ""
        self._tasks: dict[str, tuple[Task, ...]] = {}
        if str(items):
            self._read(str(items), str(attributes), str(instructions), seed)
        else:
            records = make_records(products, seed)
            self._shop = Shop(Catalogue(read_products(*records, where="the generated items"), seed))

    # ------------------------------------------------------------------ protocol

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always the same. Raises TaskError if it is unknown or empty."""
        if self._known(split) not in self._tasks:
            goals = self._goals[split] if self._goals else make_goals(self.catalogue, split, self._sizes[split])
            if not goals:
                raise TaskError(f"WebShop's split {split!r} has no tasks: {self._why_empty(split)}")
            self._tasks[split] = tuple(
                Task(f"webshop/{split}/{i:05d}", self.name, KIND, goal.instruction, split, payload=payload_of(goal))
                for i, goal in enumerate(goals)
            )
        return self._tasks[split]

    def make(self, task: Task) -> WebShopEnv:
        """A new environment for one episode. Raises TaskError for a task of another catalogue."""
        return WebShopEnv(self._shop, goal_of(task, self.catalogue), self._settings)

    def instructions(self) -> str:
        return _INSTRUCTIONS

    def expert(self, task: Task, rng: random.Random, *, noise: float = 0.0) -> WebShopExpert:
        """A scripted buyer for one episode. In an official catalogue it is told the product."""
        return WebShopExpert(goal_of(task, self.catalogue), rng, told=bool(self._goals), noise=noise)

    failure_modes = FAILURE_MODES

    def diagnose(self, trajectory: Trajectory) -> str:
        """Why an episode failed, measured; see `gongfu.envs.webshop.failures`."""
        task = trajectory.task
        return diagnose(trajectory, self.make(task), self.goal(task), self.catalogue)

    # ------------------------------------------------------------------ what is behind a task

    @property
    def catalogue(self) -> Catalogue:
        return self._shop.catalogue

    def goal(self, task: Task) -> Goal:
        return goal_of(task, self.catalogue)

    def _known(self, split: str) -> str:
        if split in self.splits:
            return split
        near = difflib.get_close_matches(split, self.splits, n=1, cutoff=0)
        raise TaskError(f"WebShop has no split {split!r}; did you mean {near[0]!r}? It has {', '.join(self.splits)}")

    def _read(self, items: str, attributes: str, instructions: str, seed: int) -> None:
        listed = read_json(attributes, dict, "attributes")
        said = read_json(instructions, dict, "instructions") if instructions else {}
        no_items, no_goals = Counter[str](), Counter[str]()
        products = read_products(read_json(items, list, "items"), listed, where=items, left_out=no_items)
        self._shop = Shop(Catalogue(products, seed))
        source = instructions or attributes
        if instructions:
            goals = shuffled(human_goals(self.catalogue, said, where=source, left_out=no_goals))
        else:
            goals = shuffled(synthetic_goals(self.catalogue, listed, where=source, left_out=no_goals))
        left_out = [
            f"{counts.total()} {what} of {file} ({reasons(counts)})"
            for what, file, counts in (("items", items, no_items), ("instructions", source, no_goals))
            if counts
        ]
        self._not_played = f"left out were {' and '.join(left_out)}" if left_out else ""
        if not goals:
            also = f"; {self._not_played}" if left_out else ""
            raise TaskError(f"none of the products of {items} has an instruction in {source} that can be played{also}")
        if left_out:
            _warn(f"WebShop: {self._not_played}; {len(goals)} goals are left")
        if unmet := sum(map(_asks_too_much, goals)):
            _warn(
                f"WebShop: {unmet} of {len(goals)} goals of {source} name an option that their product in {items} lacks: "
                "buying it cannot earn the full reward"
            )
        test, dev = self._sizes["test"], self._sizes["dev"]
        self._goals = {"train": goals[test + dev :], "dev": goals[test : test + dev], "test": goals[:test]}

    def _why_empty(self, split: str) -> str:
        if not self._goals:
            return f"its size is {self._sizes[split]} (suite.{split})"
        counts = {name: len(goals) for name, goals in self._goals.items()}
        dealt = (
            f"of {sum(counts.values())} goals the first {self._sizes['test']} are test's (suite.test), the next "
            f"{self._sizes['dev']} dev's (suite.dev) and all others train's, so test has {counts['test']}, dev {counts['dev']} "
            f"and train {counts['train']}"
        )
        return f"{dealt}; {self._not_played}" if self._not_played else dealt


def _asks_too_much(goal: Goal) -> bool:
    """Whether its own product lacks one of the options it names."""
    has = [value for values in goal.product.options.values() for value in values]
    return not all(option in has or option_matches(has, [option]) for option in goal.options)


@cache
def _warn(what: str) -> None:
    """Once a process: a run makes its suite twice, to check it and to play it."""
    _log.warning("%s", what)
