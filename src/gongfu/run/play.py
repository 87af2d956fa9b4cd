"""One episode of a suite as an agent meets it, played by a person or by the suite's scripted expert. No model is loaded."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError, EnvError, TaskError
from gongfu.core.records import Task
from gongfu.envs.check import Report, check
from gongfu.envs.protocol import Observation, Step, Suite
from gongfu.envs.runner import InlineRunner
from gongfu.rollout.actions import parse_action
from gongfu.run.build import build_rules, build_suite
from gongfu.run.demonstrations import expert_for

Act = Callable[[Observation], str | None]
"""The next action; None leaves the episode."""

Answer = TypeVar("Answer", Observation, Step)

_KEY = "play"


@dataclass(frozen=True, slots=True)
class Played:
    """What came of an episode."""

    turns: int
    reward: float
    """Sum of the rewards."""
    last: Step | None
    """The step that ended it, by itself or by a limit of steps; None when it was left before."""

    def __str__(self) -> str:
        rest = f"{self.turns} turn{'s' * (self.turns != 1)}: reward {self.reward:g}"
        if self.last is None:
            return f"left after {rest}"
        success = self.last.outcome == "success"
        score = self.last.score if self.last.score is not None else float(success)
        how = "" if self.last.terminated else ", cut"
        return f"{'success' if success else 'failure'}{how} after {rest}, score {score:g}"


def play(recipe: Recipe, *, split: str = "", task_id: str = "", expert: bool = False) -> Played:
    """Play one task on standard input and output.

    The task: `task_id` (of any split, or of `split`), else the first of `split`, else of eval.split. Raises ConfigError for an
    unknown split or a suite without the expert that is asked for, TaskError for an unknown task, EnvError when the environment
    fails.
    """
    suite = build_suite(recipe.suite)
    task = find_task(suite, split, recipe.eval.split, task_id)
    if expert and not hasattr(suite, "expert"):
        raise ConfigError(f"suite {suite.name!r} has no scripted expert: play it yourself, without --expert")
    act = expert_for(suite, recipe.run.seed)(task, 0).act if expert else typed
    print(f"task {task.id} ({task.kind}), split {task.split}: {task.goal}")
    if system := build_rules(recipe).system(suite.instructions()):
        print(f"\n[system]\n{system}")
    with InlineRunner(suite) as runner:
        played = _episode(runner, task, act, suite.max_steps)
    print(f"\n{played}")
    return played


def check_suite(recipe: Recipe, *, split: str = "") -> Report:
    """The conformance kit on the suite of a recipe, with its scripted expert where it has one."""
    suite = build_suite(recipe.suite)
    experts = expert_for(suite, recipe.run.seed) if hasattr(suite, "expert") else None
    splits = [_known(suite, split)] if split else None
    return check(suite, splits=splits, expert=experts and (lambda task: experts(task, 0)), raises=False)


def find_task(suite: Suite, split: str, usual: str, task_id: str) -> Task:
    """See `play`."""
    if not task_id:
        tasks = suite.tasks(_known(suite, split or usual))
        if not tasks:
            raise TaskError(f"split {split or usual!r} of suite {suite.name!r} has no tasks")
        return tasks[0]
    ids = []
    for name in [_known(suite, split)] if split else suite.splits:
        for task in suite.tasks(name):
            if task.id == task_id:
                return task
            ids.append(task.id)
    near = difflib.get_close_matches(task_id, ids, n=3, cutoff=0)
    where = f"split {split!r} of suite" if split else "suite"
    raise TaskError(f"{where} {suite.name!r} has no task {task_id!r}; near: {', '.join(near)}")


def _known(suite: Suite, split: str) -> str:
    if split not in suite.splits:
        raise ConfigError(f"suite {suite.name!r} has no split {split!r}: name one of {', '.join(suite.splits)} by --split")
    return split


def _episode(runner: InlineRunner, task: Task, act: Act, max_steps: int) -> Played:
    seen = _answered(runner.reset({_KEY: task})[_KEY])
    reward = 0.0
    for turn in range(1, max_steps + 1):
        print(f"\n[turn {turn} of {max_steps}]\n{seen.text}")
        action = act(seen)
        if action is None:
            return Played(turn - 1, reward, None)
        parsed = parse_action("plain", action, finished=True, admissible=seen.actions)
        print(f"> {parsed.action}" + f"   ({parsed.validity.reason})" * (not parsed.validity.ok))
        step = _answered(runner.step({_KEY: parsed.action})[_KEY])
        reward, seen = reward + step.reward, step.observation
        if step.reward:
            print(f"reward {step.reward:g}")
        if step.terminated or step.truncated or turn == max_steps:
            print(f"\n{seen.text}")
            return Played(turn, reward, step)
    raise EnvError(f"suite {task.suite!r} allows no step (max_steps = {max_steps})")


def _answered(answer: Answer | EnvError) -> Answer:
    if isinstance(answer, EnvError):
        raise answer
    return answer


def typed(observation: Observation) -> str | None:
    """The next line of standard input: the number of an action in the list, unless an action reads so, or text.

    None at "q", unless it is an action, and at the end of the input.
    """
    actions = observation.actions or ()
    for number, action in enumerate(actions, 1):
        print(f"  {number}. {action}")
    for word in _lines():
        if word == "q" and word not in actions:
            return None
        if not word.isdecimal() or word in actions or not actions:
            return word
        if 1 <= int(word) <= len(actions):
            return actions[int(word) - 1]
        print(f"there are {len(actions)} actions; type the number of one, an action as text, or q")
    return None


def _lines() -> Iterator[str]:
    """Lines with something in them; a person is asked for each."""
    while True:
        if sys.stdin.isatty():
            print("action (number, text, or q to leave): ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
