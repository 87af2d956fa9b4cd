"""What an environment may answer: faults of an observation or a step, and the same answer in plain Python values."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from numbers import Real
from typing import Any

from gongfu.core.errors import EnvError
from gongfu.envs.protocol import Observation, Step

Fault = tuple[str, str]
"""(rule, what is wrong). Rules: "text", "end", "outcome", "score", "reward", "type"."""


def observation_faults(answer: Any) -> Iterator[Fault]:
    """Everything that keeps `answer` from being an observation of the protocol."""
    if not isinstance(answer, Observation):
        yield "type", f"expected an Observation, got {_short(answer)}"
        return
    if not isinstance(answer.text, str):
        yield "text", f"the text of an observation is {_short(answer.text)}"
    elif not _encodable(answer.text):
        yield "text", f"an observation holds half of a surrogate pair and cannot be written as UTF-8: {_short(answer.text)}"
    for name in ("actions", "facts"):
        values = getattr(answer, name)
        if values is None:
            continue
        if not isinstance(values, tuple):
            yield "type", f"{name} must be a tuple of strings or None, got {_short(values)}"
        elif wrong := [value for value in values if not isinstance(value, str) or not _encodable(value)]:
            yield "text", f"{name} must be strings, one is {_short(wrong[0])}"


def step_faults(answer: Any) -> Iterator[Fault]:
    """Everything that keeps `answer` from being a step of the protocol."""
    if not isinstance(answer, Step):
        yield "type", f"expected a Step, got {_short(answer)}"
        return
    yield from observation_faults(answer.observation)
    if isinstance(answer.reward, bool) or not isinstance(answer.reward, Real) or not math.isfinite(answer.reward):
        yield "reward", f"the reward must be a finite number, got {_short(answer.reward)}"
    if not isinstance(answer.terminated, bool) or not isinstance(answer.truncated, bool):
        yield "type", f"terminated and truncated must be bool, got {_short(answer.terminated)}, {_short(answer.truncated)}"
        return
    if answer.terminated and answer.truncated:
        yield "end", "a step says both terminated and truncated; an episode ends by its rules or by a limit, not by both"
    ended = answer.terminated or answer.truncated
    if ended and answer.outcome not in ("success", "failure"):
        yield "outcome", f"the episode ended with outcome {_short(answer.outcome)}; expected 'success' or 'failure'"
    if not ended and answer.outcome is not None:
        yield "outcome", f"outcome {_short(answer.outcome)} was set although the episode goes on"
    if answer.score is None:
        return
    if not ended:
        yield "score", f"score {_short(answer.score)} was set although the episode goes on"
    if isinstance(answer.score, bool) or not isinstance(answer.score, Real) or not 0 <= answer.score <= 1:
        yield "score", f"the score must be a number from 0 to 1, got {_short(answer.score)}"


def plain_observation(answer: Any) -> Observation:
    """The observation in plain strings (no subclasses from a suite's libraries). Raises EnvError for the first fault."""
    for _, what in observation_faults(answer):
        raise EnvError(what)
    actions, facts = (None if v is None else tuple(str(x) for x in v) for v in (answer.actions, answer.facts))
    return Observation(str(answer.text), actions, facts)


def plain_step(answer: Any) -> Step:
    """The step in plain numbers and strings. Raises EnvError for the first fault."""
    for _, what in step_faults(answer):
        raise EnvError(what)
    return Step(
        observation=plain_observation(answer.observation),
        reward=float(answer.reward),
        terminated=answer.terminated,
        truncated=answer.truncated,
        outcome=answer.outcome,
        score=None if answer.score is None else float(answer.score),
    )


def describe(error: BaseException) -> str:
    """One line: type, message and the innermost place, also for an error whose `str` fails."""
    line = " ".join("".join(traceback.format_exception_only(error)).split())
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return line[:1000] + place


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as e:
        text = f"<{type(value).__name__} whose repr raises {type(e).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."
