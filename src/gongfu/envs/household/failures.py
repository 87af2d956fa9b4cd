"""Why a household episode failed, measured from what was done: the failure modes of Role-Agent's ALFWorld table.

What can be seen decides, from the end of the task backwards: was an object of the goal's type ever held, was it brought into
the state that the goal asks for, where was it put down; and if it was never held, how the search went.
"""

from __future__ import annotations

import re
from collections import Counter

from gongfu.core.records import Trajectory
from gongfu.envs.household.expert import SpokenGoal, read_goal
from gongfu.envs.household.world import NOTHING_HAPPENS

FAILURE_MODES = (
    "repetitive_exploration",
    "wrong_target_location",
    "wrong_receptacle",
    "premature_give_up",
    "missing_precondition",
    "repeated_failed_action",
    "navigation_loop",
    "entity_confusion",
    "wrong_object_interaction",
    "exhaustive_exploration_failure",
    "action_format_error",
)

_TAKE = re.compile(r"take (\w+) \d+ from (\w+) \d+")
_MOVE = re.compile(r"move (\w+) \d+ to (\w+) \d+")
_GO = re.compile(r"go to (\w+ \d+)")
_CHANGE = re.compile(r"(heat|cool|clean) (\w+) \d+ with")
_REPEATED = 3
"""Refusals of one action that count as a loop."""


def diagnose(trajectory: Trajectory) -> str:
    """The failure mode of a failed episode, one of FAILURE_MODES."""
    turns = trajectory.turns
    seen = [turn.observation for turn in turns[1:]] + [trajectory.final_observation]
    if sum(not turn.validity.format for turn in turns) * 2 >= len(turns):
        return "action_format_error"
    refused = Counter(turn.action for turn, after in zip(turns, seen, strict=True) if after.startswith(NOTHING_HAPPENS))
    if refused and max(refused.values()) >= _REPEATED:
        return "repeated_failed_action"
    done = [turn.action for turn, after in zip(turns, seen, strict=True) if not after.startswith(NOTHING_HAPPENS)]
    goal = read_goal(trajectory.task.goal)
    taken = [m[1] for action in done if (m := _TAKE.fullmatch(action))]
    if goal.object in taken:
        return _after_taking(done, goal)
    if taken:
        return "entity_confusion" if any(_alike(name, goal.object) for name in taken) else "wrong_object_interaction"
    return _searching(trajectory, done)


def _after_taking(done: list[str], goal: SpokenGoal) -> str:
    """The object was held: what was missing then?"""
    changed = {m[1] for action in done if (m := _CHANGE.match(action)) and m[2] == goal.object}
    put = [m[2] for action in done if (m := _MOVE.fullmatch(action)) and m[1] == goal.object]
    if put and goal.place and goal.place not in put:
        return "wrong_receptacle"
    if (goal.verb and goal.verb not in changed) or goal.lamp:
        return "missing_precondition"
    return "premature_give_up" if put else "navigation_loop"


def _searching(trajectory: Trajectory, done: list[str]) -> str:
    """The object was never held: how was it looked for?"""
    visits = [m[1] for action in done if (m := _GO.fullmatch(action))]
    if not visits:
        return "premature_give_up"
    again = len(visits) - len(set(visits))
    if again * 2 > len(visits):
        return "navigation_loop" if len(set(visits)) <= 2 else "repetitive_exploration"
    places = set(re.findall(r"a (\w+ \d+)", trajectory.turns[0].observation.partition("you see")[2].partition("Your task")[0]))
    return "exhaustive_exploration_failure" if places and places <= set(visits) else "wrong_target_location"


def _alike(a: str, b: str) -> bool:
    """Whether one name stands in the other, as knife in butterknife."""
    return a in b or b in a
