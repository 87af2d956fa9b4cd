"""Where an episode went out of reach: scripted experts take it over after ever more of its steps."""

from __future__ import annotations

from collections.abc import Callable

from gongfu.core.errors import EnvError, TaskError
from gongfu.core.records import Task, Trajectory
from gongfu.envs.protocol import Expert, Suite, prepare

TRIES = 8
"""Experts that take over at each step: one that searches in an unlucky order says nothing."""


def critical_step(suite: Suite, failed: Trajectory, expert_for: Callable[[Task, int], Expert]) -> int | None:
    """Number, from 1, of the step after which no expert succeeds any more within the suite's limit of steps.

    `expert_for` (task, number of the try) gives a fresh one. Found by halving: what is lost stays lost. None where none
    succeeds from the start or can act, or where the environment, played again, shows something else than it did.
    """
    prepare(suite)
    fine, late = 0, len(failed.turns)
    try:
        if not _can_be_won(suite, failed, fine, expert_for):
            return None
        while late - fine > 1:
            middle = (fine + late) // 2
            won = _can_be_won(suite, failed, middle, expert_for)
            if won is None:
                return None
            fine, late = (middle, late) if won else (fine, middle)
    except (TaskError, EnvError):
        return None
    return late


def _can_be_won(suite: Suite, episode: Trajectory, steps: int, expert_for: Callable[[Task, int], Expert]) -> bool | None:
    for number in range(TRIES):
        won = _succeeds(suite, episode, steps, expert_for(episode.task, number))
        if won is not False:
            return won
    return False


def _succeeds(suite: Suite, episode: Trajectory, steps: int, expert: Expert) -> bool | None:
    """Whether the expert wins after so many steps of the episode, which it has watched; None where those went otherwise."""
    env = suite.make(episode.task)
    try:
        seen = env.reset()
        for number in range(suite.max_steps):
            if number < steps:
                if seen.text != episode.turns[number].observation:
                    return None
                expert.act(seen)
                action = episode.turns[number].action
            else:
                action = expert.act(seen)
            step = env.step(action)
            if step.terminated or step.truncated:
                return step.outcome == "success"
            seen = step.observation
        return False
    finally:
        env.close()
