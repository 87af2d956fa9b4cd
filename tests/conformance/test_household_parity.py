"""The fast household engine against the official one: the same text, actions, facts and outcome at every step."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from gongfu.core import Task, rng_for
from gongfu.core.errors import EnvError, MissingExtra
from gongfu.envs.household import HouseholdEnv, HouseholdExpert, HouseholdSuite
from gongfu.envs.household.official import OfficialHouseholdEnv, require_packages
from gongfu.envs.household.parity import WALKS, compare_engines
from gongfu.envs.household.problem import KINDS, parse_problem
from household_home import FACTS, GOALS, problem

DATA = Path(os.environ.get("GONGFU_DATA", Path(__file__).parents[2].parent / "shared" / "data")) / "alfworld"

try:
    require_packages()
except MissingExtra as e:
    pytest.skip(str(e), allow_module_level=True)


def official_games(per_kind_and_split: int) -> tuple[HouseholdSuite, list[Task]]:
    if not DATA.is_dir():
        pytest.skip(f"no official games at {DATA}; set GONGFU_DATA")
    suite, chosen = HouseholdSuite(DATA), []
    for split in suite.splits:
        for kind in KINDS:
            tasks = [task for task in suite.tasks(split) if task.kind == kind]
            chosen += rng_for(0, purpose="parity test", task=f"{split}/{kind}").sample(
                tasks, min(per_kind_and_split, len(tasks))
            )
    return suite, chosen


def assert_same(suite: HouseholdSuite, tasks: list[Task], *, steps: int) -> Counter[str]:
    verbs: Counter[str] = Counter()
    for i, task in enumerate(tasks):
        walk = WALKS[(i + i // len(KINDS)) % len(WALKS)]
        rng = rng_for(0, purpose=walk, task=task.id)
        comparison = compare_engines(suite.problem(task), task.goal, walk, rng, steps=steps)
        assert not comparison.difference, f"{task.id} ({walk}): {comparison.difference}"
        verbs.update(comparison.verbs)
    return verbs


def test_generated_homes_of_every_kind() -> None:
    suite = HouseholdSuite(sizes={"train": 6, "unseen": 6})
    assert_same(suite, [*suite.tasks("train")], steps=20)


def test_a_dozen_official_games() -> None:
    suite, tasks = official_games(1)
    dozen = tasks[:6] + tasks[-6:]
    assert {task.kind for task in dozen} == {*KINDS}
    assert_same(suite, dozen, steps=15)


@pytest.mark.parametrize("goal", sorted(GOALS))
def test_the_hand_written_home(goal: str) -> None:
    """Shared places, double and nested contents, things cool at the start: what real games have now and then."""
    comparison = compare_engines(problem(goal), "put some apple on desk", "adversarial", random.Random(goal), steps=60)
    assert not comparison.difference
    expert = compare_engines(problem(goal), f"put two apple in {goal}", "random", random.Random(goal), steps=20)
    assert not expert.difference


def test_oddities_one_by_one() -> None:
    """The walks that the unit tests of the fast engine work out by hand, on both engines."""
    walk = """look|help|inventory|go to drawer 1|look|take apple 2 from drawer 1|open drawer 2|move apple 2 to drawer 2|look
    take apple 2 from drawer 2|move apple 2 to drawer 1|look|take apple 2 from drawer 1|GO TO DESK 1|  go to desk 1
    move apple 2 to desk 1|take mug 1 from desk 1|examine mug 1|go to shelf 1|take mug 1 from shelf 1|move mug 1 to shelf 1
    go to desk 1|move mug 1 to desk 1|use desklamp 1|use desklamp 1|take knife 1 from desk 1|slice apple 2 with knife 1
    go to fridge 1|slice apple 1 with knife 1|slice apple 2 with knife 1|examine knife 1|move knife 1 to fridge 1|go to drawer 1
    move knife 1 to drawer 1|move knife 1 to drawer 2|look|go to fridge 1|open fridge 1|take apple 1 from fridge 1
    examine apple 1|go to sinkbasin 1|clean apple 1 with sinkbasin 1|examine apple 1|go to microwave 1
    heat apple 1 with microwave 1|examine apple 1|go to fridge 1|cool apple 1 with fridge 1|examine apple 1|close fridge 1
    go to desk 1|move apple 1 to desk 1"""
    commands = [command for line in walk.splitlines() for command in line.strip(" \t").split("|")]
    answers = play_both(problem("two"), commands)
    assert answers.count("Nothing happens.") == 6
    assert answers[-1] == "You move the apple 1 to the desk 1."


def test_what_was_moved_among_three_receptacles_of_one_place_is_listed_once_for_each() -> None:
    cart = "(receptacleType Cart_bar_a CartType) (receptacleAtLocation Cart_bar_a loc_bar_1) (canContain CartType AppleType)"
    walk = "go to cart 1|take apple 2 from drawer 1|open drawer 2|move apple 2 to drawer 2|take apple 2 from drawer 2"
    answers = play_both(problem("two", FACTS + cart), [*walk.split("|"), "move apple 2 to cart 1", "look"])
    assert answers[-1].endswith("Next to it, you see a apple 2, and a apple 2.")  # the official engine's grammar counts so


def play_both(text: str, commands: list[str]) -> list[str]:
    """The answers of both engines, which must agree."""
    fast = HouseholdEnv(parse_problem(text), "put two apple in desk", max_steps=100, facts=True)
    official = OfficialHouseholdEnv(text, "put two apple in desk", max_steps=100, facts=True)
    assert fast.reset() == official.reset()
    answers = []
    for command in commands:
        ours, theirs = fast.step(command), official.step(command)
        assert ours == theirs, command
        answers.append(ours.observation.text)
    return answers


def test_the_official_engine_behind_the_suite() -> None:
    suite = HouseholdSuite(engine="official", sizes={"train": 6}, max_steps=40)
    task = suite.tasks("train")[3]
    env, expert = suite.make(task), suite.expert(task, random.Random(0), habits=True)
    assert isinstance(expert, HouseholdExpert)
    with pytest.raises(EnvError, match="new"):
        env.step("look")
    observation = env.reset()
    assert observation.facts is None
    with pytest.raises(EnvError, match="one episode"):
        env.reset()
    step = env.step(expert.act(observation))
    while not (step.terminated or step.truncated):
        step = env.step(expert.act(step.observation))
    assert (step.outcome, step.reward) == ("success", 1.0)
    with pytest.raises(EnvError, match="over"):
        env.step("look")
    env.close()
    env.close()


def test_the_official_engine_survives_a_broken_problem() -> None:
    with pytest.raises(EnvError, match="cannot load"):
        OfficialHouseholdEnv("(define (problem p) (:domain alfred) (:init))", "x").reset()


def test_goal_sentences_are_text_and_never_grammar() -> None:
    sentence = "put {1 + 1} #look.feedback# in desk"
    assert f"Your task is to: {sentence}." in OfficialHouseholdEnv(problem(), sentence).reset().text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_official_games() -> None:
    suite, tasks = official_games(12)
    assert len(tasks) >= 200
    verbs = assert_same(suite, tasks, steps=45)
    assert all(verbs[verb] for verb in ("take", "move", "open", "close", "use", "clean", "heat", "cool", "slice", "(beside)"))
