"""The scripted expert: reads every goal, solves every generated task from text alone, and habits shorten its search."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from gongfu.core import Task, rng_for
from gongfu.core.errors import TaskError
from gongfu.envs.household import HouseholdEnv, HouseholdExpert, HouseholdSuite
from gongfu.envs.household.expert import SpokenGoal, read_goal
from gongfu.envs.household.problem import parse_problem
from gongfu.envs.protocol import Env, Observation
from household_home import problem

SUITE = HouseholdSuite(sizes={"train": 90, "seen": 30, "unseen": 30})


def play(env: Env, expert: HouseholdExpert) -> tuple[int, bool]:
    """(steps, success); every action must be one of those offered, but for noise, which may be stale."""
    observation, steps = env.reset(), 0
    while True:
        action = expert.act(observation)
        assert action in (observation.actions or ()) or expert.explored
        step = env.step(action)
        observation, steps = step.observation, steps + 1
        if step.terminated or step.truncated:
            return steps, step.outcome == "success"


def steps_needed(tasks: list[Task], *, habits: bool = False, noise: float = 0.0) -> list[int]:
    played = []
    for task in tasks:
        expert = SUITE.expert(task, rng_for(0, purpose="expert", task=task.id), habits=habits, noise=noise)
        steps, success = play(SUITE.make(task), expert)
        assert success, task.id
        played.append(steps)
    return played


ALL_TASKS = [task for split in SUITE.splits for task in SUITE.tasks(split)]


def test_solves_every_task_well_within_the_limit_and_faster_by_habit() -> None:
    searching, knowing = steps_needed(ALL_TASKS), steps_needed(ALL_TASKS, habits=True)
    assert max(searching) <= 35 and max(knowing) <= 35
    for kind in SUITE.kinds:
        of_kind = [i for i, task in enumerate(ALL_TASKS) if task.kind == kind]
        assert mean(knowing[i] for i in of_kind) < 0.8 * mean(searching[i] for i in of_kind), kind


def test_habits_are_worth_nothing_where_nobody_has_any() -> None:
    suite = HouseholdSuite(habit_strength=0.0, sizes={"train": 120})
    steps = {
        habits: mean(
            play(suite.make(task), suite.expert(task, rng_for(0, purpose="e", task=task.id), habits=habits))[0]
            for task in suite.tasks("train")
        )
        for habits in (False, True)
    }
    assert steps[True] > 0.85 * steps[False]


def test_recovers_from_noise() -> None:
    noisy = steps_needed(ALL_TASKS[:90], noise=0.2)
    assert mean(noisy) > mean(steps_needed(ALL_TASKS[:90]))  # the noise is real


def test_noise_shows_refused_actions_too() -> None:
    refused = 0
    for task in ALL_TASKS[:20]:
        env, expert = SUITE.make(task), SUITE.expert(task, rng_for(0, purpose="noise", task=task.id), noise=0.3)
        observation = env.reset()
        for _ in range(8):
            observation = env.step(expert.act(observation)).observation
            refused += expert.explored and observation.text == "Nothing happens."
            if not observation.actions or "won" in observation.text:
                break
    assert refused > 5


def test_takes_over_in_the_middle_of_an_episode() -> None:
    for task in ALL_TASKS[:30]:
        env, rng = SUITE.make(task), rng_for(1, purpose="other", task=task.id)
        observation, expert, step, steps = env.reset(), SUITE.expert(task, rng), None, 0
        while step is None or not (step.terminated or step.truncated):
            action = expert.act(observation)
            # for eight steps somebody else acts and the expert watches
            step = env.step(action if steps >= 8 else rng.choice(observation.actions or ()))
            observation, steps = step.observation, steps + 1
        assert step.outcome == "success", task.id


def test_same_generator_same_episode() -> None:
    task = ALL_TASKS[7]

    def actions(seed: int) -> list[str]:
        env, expert, taken = SUITE.make(task), SUITE.expert(task, random.Random(seed), noise=0.3), []
        step = None
        observation = env.reset()
        while step is None or not (step.terminated or step.truncated):
            taken.append(expert.act(observation))
            step = env.step(taken[-1])
            observation = step.observation
        return taken

    assert actions(3) == actions(3) != actions(4)


@pytest.mark.parametrize("goal", ["simple", "two", "light", "clean", "heat", "cool"])
def test_solves_a_home_with_shared_places_and_double_contents(goal: str) -> None:
    sentence = {
        "simple": "put some apple on desk",
        "two": "find two apple and put them in desk",
        "light": "examine the apple with the desklamp",
        "clean": "put a clean apple in desk",
        "heat": "heat some apple and put it in desk",
        "cool": "put a cool apple in desk",
    }[goal]
    for seed in range(5):
        env = HouseholdEnv(parse_problem(problem(goal)), sentence)
        assert play(env, HouseholdExpert(random.Random(seed), noise=0.1))[1]


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("put a mug in coffeemachine", SpokenGoal("mug", "coffeemachine")),
        ("put some mug on desk", SpokenGoal("mug", "desk")),
        ("put a clean pan in shelf", SpokenGoal("pan", "shelf", verb="clean")),
        ("clean some pan and put it in shelf", SpokenGoal("pan", "shelf", verb="clean")),
        ("put a hot egg in fridge", SpokenGoal("egg", "fridge", verb="heat")),
        ("heat some egg and put it in fridge", SpokenGoal("egg", "fridge", verb="heat")),
        ("put a cool egg in fridge", SpokenGoal("egg", "fridge", verb="cool")),
        ("cool some egg and put it in fridge", SpokenGoal("egg", "fridge", verb="cool")),
        ("put two pen in drawer", SpokenGoal("pen", "drawer", count=2)),
        ("find two pen and put them in drawer", SpokenGoal("pen", "drawer", count=2)),
        ("look at cd under the desklamp", SpokenGoal("cd", lamp="desklamp")),
        ("examine the cd with the desklamp", SpokenGoal("cd", lamp="desklamp")),
    ],
)
def test_goal_sentences(sentence: str, goal: SpokenGoal) -> None:
    assert read_goal(sentence) == goal


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(TaskError, match="does not understand the goal 'sing'"):
        read_goal("sing")
    with pytest.raises(TaskError, match="admissible actions"):
        HouseholdExpert(random.Random(0)).act(Observation("Your task is to: put a mug in desk."))
    with pytest.raises(TaskError, match="must see the intro"):
        HouseholdExpert(random.Random(0)).act(Observation("You see nothing.", actions=("look",)))
    with pytest.raises(ValueError, match="probability"):
        HouseholdExpert(random.Random(0), noise=1.5)
