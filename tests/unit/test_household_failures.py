"""Failure modes of household episodes, each played on the real engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gongfu.core.records import Task, Trajectory, Turn, Validity
from gongfu.envs.household.failures import FAILURE_MODES, diagnose

INTRO = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a drawer 1, and a fridge 1.\n\n"
    "Your task is to: {goal}."
)


def failed(goal: str, steps: Sequence[tuple[str, str]], *, format: bool = True) -> Trajectory:
    """An episode of (action, what was seen then)."""
    task = Task("t", "household", "k", goal, "train")
    seen = [INTRO.format(goal=goal), *(after for _, after in steps)]
    turns = tuple(
        Turn(before, None, None, action, Validity(format, True), 0.0) for (action, _), before in zip(steps, seen, strict=False)
    )
    return Trajectory("e", task, "g", (), turns, seen[-1], "failure", 0.0, "truncated")


def go(*places: str) -> list[tuple[str, str]]:
    return [(f"go to {place}", f"You arrive at {place}. On the {place}, you see nothing.") for place in places]


TAKE = ("take apple 1 from cabinet 1", "You pick up the apple 1 from the cabinet 1.")
HEAT = ("heat apple 1 with microwave 1", "You heat the apple 1 using the microwave 1.")
NOTHING = "Nothing happens."


@pytest.mark.parametrize(
    ("mode", "goal", "steps"),
    [
        ("repeated_failed_action", "put some apple on shelf", [("open drawer 1", NOTHING)] * 3),
        ("repetitive_exploration", "put some apple on shelf", go("a 1", "b 1", "c 1", "a 1", "b 1", "c 1", "a 1", "b 1")),
        ("navigation_loop", "put some apple on shelf", go("a 1", "b 1", "a 1", "b 1", "a 1")),
        ("wrong_target_location", "put some apple on shelf", go("cabinet 1", "drawer 1")),
        ("exhaustive_exploration_failure", "put some apple on shelf", go("cabinet 1", "drawer 1", "fridge 1")),
        ("premature_give_up", "put some apple on shelf", [("look", "You are in the middle of a room.")]),
        ("wrong_object_interaction", "put some apple on shelf", [("take mug 1 from cabinet 1", "You pick up the mug 1.")]),
        ("entity_confusion", "put some knife on shelf", [("take butterknife 1 from cabinet 1", "You pick up the knife.")]),
        ("missing_precondition", "put a hot apple on shelf", [TAKE, *go("shelf 1"), ("move apple 1 to shelf 1", "You move it.")]),
        ("missing_precondition", "put a hot apple on shelf", [TAKE]),
        ("wrong_receptacle", "put a hot apple on shelf", [TAKE, HEAT, ("move apple 1 to drawer 1", "You move it.")]),
        ("navigation_loop", "put some apple on shelf", [TAKE, *go("drawer 1", "cabinet 1")]),
        ("missing_precondition", "look at the apple under the desklamp", [TAKE]),
    ],
)
def test_what_was_done_decides_the_mode(mode, goal, steps):
    assert diagnose(failed(goal, steps)) == mode


def test_a_refused_take_is_no_take():
    steps = [("take apple 1 from cabinet 1", NOTHING), *go("cabinet 1")]
    assert diagnose(failed("put some apple on shelf", steps)) == "wrong_target_location"


def test_answers_in_a_wrong_format_come_first():
    assert diagnose(failed("put some apple on shelf", [("hm", NOTHING)] * 3, format=False)) == "action_format_error"


def test_every_mode_has_a_name_of_its_own():
    assert len(set(FAILURE_MODES)) == len(FAILURE_MODES) == 11
