"""The conformance kit finds what is broken: one deliberately broken toy suite for every rule."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from gongfu.core.errors import EnvError
from gongfu.core.records import Task
from gongfu.envs.check import ODD_ACTIONS, RULES, check
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.envs.protocol import Observation, Step


class Door:
    """Open the right one of three doors within four steps."""

    def __init__(self, task: Task) -> None:
        self.right = f"open door {random.Random(task.seed).randrange(3)}"
        self.steps = 0
        self.over = False

    def observation(self) -> Observation:
        return Observation(
            f"Three doors. You tried {self.steps}.", ("open door 0", "open door 1", "open door 2", "wait"), ("here",)
        )

    def reset(self) -> Observation:
        return self.observation()

    def step(self, action: str) -> Step:
        if self.over:
            raise RuntimeError("the episode is over")
        self.steps += 1
        if action == self.right:
            self.over = True
            return Step(self.observation(), 1.0, terminated=True, outcome="success", score=1.0)
        if self.steps == 4:
            self.over = True
            return Step(self.observation(), truncated=True, outcome="failure")
        return Step(self.observation())

    def close(self) -> None:
        pass


class Doors:
    name = "doors"
    splits: tuple[str, ...] = ("train", "test")
    max_steps = 4
    env: type[Door] = Door

    def tasks(self, split: str) -> list[Task]:
        first = {"train": 0, "test": 10}[split]
        return [Task(f"doors/{n}", "doors", "door", "Find it.", split, n, {"n": [n]}) for n in range(first, first + 6)]

    def make(self, task: Task) -> Door:
        return self.env(task)

    def instructions(self) -> str:
        return "Open doors."


def test_a_good_suite_conforms():
    report = check(Doors())
    assert report.ok and report.tasks == 12 and report.ended and not report.unchecked
    assert str(report).endswith("conforms")


def test_an_expert_reaches_the_end_that_chance_does_not():
    class Endless(Door):
        def step(self, action: str) -> Step:
            answer = super().step(action) if action == self.right or self.steps < 3 else Step(self.observation())
            return replace(answer, terminated=False, outcome=None, score=None) if action == "wait" else answer

    class OnlyWait(Endless):
        def observation(self) -> Observation:
            return Observation("Wait.", ("wait",))

    class Expert:
        def __init__(self, task: Task) -> None:
            self.right = Door(task).right

        def act(self, observation: Observation) -> str:
            return self.right

    suite = with_env(OnlyWait)
    assert check(suite).unchecked == ("outcome", "score", "after end")
    assert "not checked: after end" in str(check(suite))
    assert check(suite, expert=Expert).unchecked == ()


def test_the_error_lists_all_findings_and_a_report_can_be_had_instead():
    suite = with_env(raising_reset)
    suite.tasks = lambda split: [replace(t, split="elsewhere") for t in Doors.tasks(suite, split)]  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=r"(?s)does not conform.*\[tasks\].*'elsewhere'.*\[raises\].*no reset.*more of the same"):
        check(suite)
    assert not check(suite, raises=False).ok
    with pytest.raises(EnvError, match="at least 1"):
        check(Doors(), episodes=0)


def test_the_same_check_gives_the_same_report():
    assert check(Doors(), seed=3) == check(Doors(), seed=3)
    assert check(Doors(), seed=3, splits=["test"]).tasks == 6


# -- one broken suite (at least) for every rule


def with_env(env) -> Doors:
    suite = Doors()
    suite.env = env
    return suite


def with_tasks(change) -> Doors:
    suite = Doors()
    suite.tasks = lambda split: change(Doors.tasks(suite, split), split)  # type: ignore[method-assign]
    return suite


def changed(**attributes) -> Doors:
    suite = Doors()
    for name, value in attributes.items():
        setattr(suite, name, value)
    return suite


def env_with(reset=lambda env, first: first, step=lambda env, answer, action: answer) -> Doors:
    """Doors whose answers are changed on the way out."""

    class Changed(Door):
        def reset(self):
            return reset(self, super().reset())

        def step(self, action):
            return step(self, super().step(action), action)

    return with_env(Changed)


def raising_reset(task):
    door = Door(task)

    def fail():
        raise ValueError("no reset")

    door.reset = fail  # type: ignore[method-assign]
    return door


class NeverOver(Door):
    def step(self, action: str) -> Step:
        self.over = False
        return super().step(action)


class ClosesOnce(Door):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed twice")
        self.closed = True


class CloseNeedsReset(Door):
    ready = False

    def reset(self) -> Observation:
        self.ready = True
        return super().reset()

    def close(self) -> None:
        assert self.ready, "nothing to close"


class SharedState(Door):
    """Steps are counted by the class, from the last reset on."""

    count = 0

    def reset(self) -> Observation:
        type(self).count = 0
        return super().reset()

    def step(self, action: str) -> Step:
        type(self).count += 1
        return replace(super().step(action), reward=float(type(self).count))


class GlobalRandom(Door):
    """Seeds the generator that all share."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.seed = task.seed

    def reset(self) -> Observation:
        random.seed(self.seed)
        return super().reset()

    def step(self, action: str) -> Step:
        return replace(super().step(action), reward=random.random())


class Fussy(Door):
    """Raises for a listed action and for what it does not know."""

    refuses: tuple[str, ...] = ()
    longest = 10**9

    def step(self, action: str) -> Step:
        if action in self.refuses or len(action) > self.longest:
            raise KeyError(action[:20])
        return super().step(action)


def fussy(*refuses: str, longest: int = 10**9) -> Doors:
    return with_env(type("Fussier", (Fussy,), {"refuses": refuses, "longest": longest}))


class Wordy(Door):
    """Lists no actions."""

    def observation(self) -> Observation:
        return replace(super().observation(), actions=None)

    def step(self, action: str) -> Step:
        action.split()[0]
        return super().step(action)


numbers = itertools.count()


def goes_on(answer: Step) -> bool:
    return not (answer.terminated or answer.truncated)


def with_actions(actions) -> Doors:
    return env_with(reset=lambda env, first: replace(first, actions=actions))


BROKEN = {
    "lacks instructions": ("suite", lambda: type("Bare", (), {"name": "b", "splits": ("a",), "max_steps": 1})()),
    "no splits": ("suite", lambda: changed(splits=())),
    "splits as a list": ("suite", lambda: changed(splits=["train"])),
    "no steps": ("suite", lambda: changed(max_steps=-1)),
    "instructions are no text": ("suite", lambda: changed(instructions=lambda: None)),
    "instructions raise": ("suite", lambda: changed(instructions=lambda: 1 / 0)),
    "empty split": ("tasks", lambda: with_tasks(lambda tasks, split: [])),
    "tasks raise": ("tasks", lambda: with_tasks(lambda tasks, split: 1 / 0)),
    "tasks are names": ("tasks", lambda: with_tasks(lambda tasks, split: ["task"])),
    "tasks of another suite": ("tasks", lambda: with_tasks(lambda tasks, split: [replace(t, suite="x") for t in tasks])),
    "same id twice": ("ids", lambda: with_tasks(lambda tasks, split: [*tasks, replace(tasks[0], seed=99)])),
    "new tasks each call": (
        "stable",
        lambda: with_tasks(lambda tasks, split: [replace(t, seed=next(numbers)) for t in tasks]),
    ),
    "other order each call": (
        "stable",
        lambda: with_tasks(lambda tasks, split: tasks[:: -1 if next(numbers) % 2 else 1]),
    ),
    "tuples in the payload": (
        "json",
        lambda: with_tasks(lambda tasks, split: [replace(t, payload={"n": (1,)}) for t in tasks]),
    ),
    "objects in the payload": (
        "json",
        lambda: with_tasks(lambda tasks, split: [replace(t, payload={"n": Door}) for t in tasks]),
    ),
    "a task in two splits": (
        "splits",
        lambda: with_tasks(lambda tasks, split: [replace(t, id=f"doors/{i}") for i, t in enumerate(tasks)]),
    ),
    "make raises": ("raises", lambda: with_env(lambda task: 1 / 0)),
    "reset raises": ("raises", lambda: with_env(raising_reset)),
    "step raises": ("raises", lambda: fussy("open door 0", "open door 1", "open door 2", "wait")),
    "no close": ("type", lambda: with_env(lambda task: type("Half", (), {"reset": 1, "step": 1})())),
    "reset returns text": ("type", lambda: env_with(reset=lambda env, first: first.text)),
    "reset returns a step": ("type", lambda: env_with(reset=lambda env, first: Step(first))),
    "step returns a tuple": ("type", lambda: env_with(step=lambda env, answer, action: (answer.observation, 0.0, False))),
    "actions as a list": ("type", lambda: with_actions(["open door 0"])),
    "terminated as a number": ("type", lambda: env_with(step=lambda env, a, action: replace(a, terminated=int(a.terminated)))),
    "observation is bytes": ("text", lambda: env_with(reset=lambda env, first: replace(first, text=b"doors"))),
    "half a surrogate": ("text", lambda: env_with(reset=lambda env, first: replace(first, text="\ud83d"))),
    "facts are tuples": ("text", lambda: env_with(reset=lambda env, first: replace(first, facts=(("at", "door"),)))),
    "actions are numbers": ("text", lambda: with_actions((1, 2))),
    "unsorted actions": ("admissible", lambda: with_actions(("wait", "open door 0"))),
    "repeated actions": ("admissible", lambda: with_actions(("wait", "wait"))),
    "an empty action": ("admissible", lambda: with_actions(("", "wait"))),
    "no action is left": ("admissible", lambda: with_actions(())),
    "an admissible action is refused": ("admissible", lambda: fussy("wait")),
    "another episode each time": (
        "repeat",
        lambda: env_with(reset=lambda env, first: replace(first, text=f"door {next(numbers)}")),
    ),
    "another reward each time": ("repeat", lambda: env_with(step=lambda env, a, action: replace(a, reward=next(numbers)))),
    "state of the class": ("isolation", lambda: with_env(SharedState)),
    "the global generator": ("isolation", lambda: with_env(GlobalRandom)),
    "a reward that is no number": ("reward", lambda: env_with(step=lambda env, a, action: replace(a, reward=float("nan")))),
    "a reward that is nothing": ("reward", lambda: env_with(step=lambda env, a, action: replace(a, reward=None))),
    "terminated and truncated": (
        "end",
        lambda: env_with(step=lambda env, a, act: a if goes_on(a) else replace(a, terminated=True, truncated=True)),
    ),
    "no outcome at the end": ("outcome", lambda: env_with(step=lambda env, a, action: replace(a, outcome=None))),
    "an outcome of its own": (
        "outcome",
        lambda: env_with(step=lambda env, a, act: a if goes_on(a) else replace(a, outcome="won")),
    ),
    "an outcome before the end": ("outcome", lambda: env_with(step=lambda env, a, action: replace(a, outcome="failure"))),
    "score in percent": ("score", lambda: env_with(step=lambda env, a, action: a if goes_on(a) else replace(a, score=100))),
    "score before the end": ("score", lambda: env_with(step=lambda env, a, action: replace(a, score=0.5))),
    "goes on after the end": ("after end", lambda: with_env(NeverOver)),
    "closes only once": ("close", lambda: with_env(ClosesOnce)),
    "close needs a reset": ("close", lambda: with_env(CloseNeedsReset)),
    "no room for long actions": ("robust", lambda: fussy(longest=1000)),
    "control characters": ("robust", lambda: fussy(ODD_ACTIONS[2])),
    "empty actions, none listed": ("robust", lambda: with_env(Wordy)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name):
    rule, build = BROKEN[name]
    report = check(build(), raises=False)
    assert rule in {finding.rule for finding in report.findings}, str(report)


def test_every_rule_has_a_broken_suite():
    assert {rule for rule, _ in BROKEN.values()} == set(RULES)


@pytest.mark.parametrize(
    "name",
    [
        "same id twice",
        "a task in two splits",
        "unsorted actions",
        "state of the class",
        "goes on after the end",
        "closes only once",
    ],
)
def test_a_single_fault_is_not_blamed_on_other_rules(name):
    rule, build = BROKEN[name]
    assert {finding.rule for finding in check(build(), raises=False).findings} == {rule}


def test_the_household_suite_conforms():
    suite = HouseholdSuite(sizes={"train": 12, "seen": 6, "unseen": 6}, facts=True)
    report = check(suite, expert=lambda task: suite.expert(task, random.Random(0)))
    assert report.ended and not report.unchecked
