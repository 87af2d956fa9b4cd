"""Where an episode went out of reach, by an expert that takes it over."""

from __future__ import annotations

import random

import pytest

from gongfu.core.records import Task, Trajectory, Turn, Validity
from gongfu.core.seeds import rng_for
from gongfu.envs.household import HouseholdSuite
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.takeover import TRIES, critical_step
from toy import ToyEnv, ToyExpert, ToySuite


def play(suite, task, act):
    """The episode that `act` plays."""
    env, turns, seen, step = suite.make(task), [], None, None
    seen = env.reset()
    for number in range(suite.max_steps):
        action = act(number, seen)
        turns.append(Turn(seen.text, seen.actions, None, action, Validity(True, True), 0.0))
        step = env.step(action)
        seen = step.observation
        if step.terminated or step.truncated:
            break
    assert step is not None
    outcome = step.outcome or "failure"
    return Trajectory("x", task, "g", (), tuple(turns), seen.text, outcome, float(outcome == "success"), "terminated")


def expert(suite):
    return lambda task, number: suite.expert(task, rng_for(0, purpose="takeover", task=task.id, rollout=number))


@pytest.mark.parametrize(("wrong", "expected"), [({0}, 1), ({1}, 2), ({2}, 3), ({1, 2}, 2)])
def test_the_first_wrong_pick_cannot_be_made_good(wrong, expected):
    suite = ToySuite()
    task = suite.tasks("train")[0]
    failed = play(suite, task, lambda number, seen: "nothing" if number in wrong else task.kind)
    assert critical_step(suite, failed, expert(suite)) == expected


def test_time_that_is_lost_puts_a_home_out_of_reach():
    """The luckiest needs n steps and may take n + 3: after three idle steps it still succeeds, after the fourth it does not."""
    suite = HouseholdSuite(max_steps=50)
    task = suite.tasks("train")[0]
    helpers = [expert(suite)(task, number) for number in range(TRIES)]
    needed = min(len(play(suite, task, lambda number, seen, h=h: h.act(seen)).turns) for h in helpers)
    short = HouseholdSuite(max_steps=needed + 3)
    failed = play(short, task, lambda number, seen: "inventory")
    assert critical_step(short, failed, expert(short)) == 4


def test_what_cannot_be_told():
    class Hopeless(ToySuite):
        def expert(self, task, rng, *, noise=0.0):
            return ToyExpert("nothing")

    class Changing(ToySuite):
        def make(self, task):
            return Changed(task)

    class Changed(ToyEnv):
        def step(self, action: str) -> Step:
            step = super().step(action)
            return Step(Observation(f"{random.random()}"), step.reward, step.terminated, False, step.outcome, step.score)

    class Bare:
        """Without a list of actions, which the expert of a household needs."""

        max_steps = 3

        def make(self, task):
            return ToyEnv(task)

    for suite in (Hopeless(), Changing()):
        task = suite.tasks("train")[0]
        failed = play(suite, task, lambda number, seen, task=task: "nothing" if number == 2 else task.kind)
        assert critical_step(suite, failed, expert(suite)) is None
    home = Task("home/1", "toy", "apple", "pick the apple", "train")
    failed = play(ToySuite(), ToySuite().tasks("train")[0], lambda number, seen: "nothing")
    lost = HouseholdSuite().expert
    assert critical_step(Bare(), failed, lambda task, number: lost(home, random.Random(0))) is None  # type: ignore[arg-type]


def test_one_unlucky_expert_says_nothing(monkeypatch):
    """Its order of search may take too long: with one try fewer failures of a hard home can be told than with several."""
    suite = HouseholdSuite(max_steps=14)
    tasks = [task for task in suite.tasks("train") if task.kind == "pick_two_obj_and_place"][:8]
    failed = [play(suite, task, lambda number, seen: "inventory") for task in tasks]
    several = [critical_step(suite, t, expert(suite)) for t in failed]
    monkeypatch.setattr("gongfu.envs.takeover.TRIES", 1)
    one = [critical_step(suite, t, expert(suite)) for t in failed]
    assert several.count(None) < one.count(None)
    assert all(a is None or (b is not None and b >= a) for a, b in zip(one, several, strict=True))
