"""What the steps of an episode are paid: its score or its rewards, discounted, less the penalties of their actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gongfu.config.update import ActionConfig, UpdateConfig
from gongfu.core.records import Trajectory, Turn
from gongfu.credit.advantages import step_returns

Factors = Mapping[str, Sequence[float]]
"""Trajectory id -> what the discounted score of each step is multiplied by; 1 for trajectories that are left out."""


def returns_of(trajectory: Trajectory, settings: ActionConfig, factors: Factors | None = None) -> list[float]:
    """Return of every step: what was earned from there on, discounted, times the step's factor, less penalties.

    By `settings.penalties` those of its own action, or of all from there on, discounted like rewards.
    """
    times = _factors(trajectory, factors)
    own = [_own(turn, settings) for turn in trajectory.turns]
    lost = [_replaced(turn, settings) for turn in trajectory.turns]
    earned = _earned(trajectory, settings)
    if settings.penalties == "discounted":
        kept = [0.0 if gone else r for gone, r in zip(lost, earned, strict=True)]
        pairs = zip(times, step_returns(kept, settings.gamma), step_returns(own, settings.gamma), strict=True)
        return [factor * value + paid for factor, value, paid in pairs]
    values = step_returns(earned, settings.gamma)
    return [(0.0 if gone else f * v) + paid for f, v, paid, gone in zip(times, values, own, lost, strict=True)]


def episode_returns(trajectory: Trajectory, settings: ActionConfig, factors: Factors | None = None) -> list[float]:
    """What each step counts for its episode (GiGPO's episode term): all that was earned, less penalties as in `returns_of`."""
    times = _factors(trajectory, factors)
    own = [_own(turn, settings) for turn in trajectory.turns]
    lost = [_replaced(turn, settings) for turn in trajectory.turns]
    earned = _earned(trajectory, settings)
    if settings.penalties == "discounted":
        total = sum(0.0 if gone else r for gone, r in zip(lost, earned, strict=True))
        return [factor * total + sum(own) for factor in times]
    total = sum(earned)
    return [(0.0 if gone else factor * total) + paid for factor, paid, gone in zip(times, own, lost, strict=True)]


def rewards_of(trajectory: Trajectory, settings: UpdateConfig) -> list[float]:
    """Reward of every step: the episode's score with the last one, less the penalties of its own action.

    With a wrong format and `format_score`, that stands in place of what the step itself is paid.
    """
    last = len(trajectory.turns) - 1
    return [
        _own(turn, settings) + (trajectory.score if i == last and not _replaced(turn, settings) else 0.0)
        for i, turn in enumerate(trajectory.turns)
    ]


def is_valid(turn: Turn, settings: UpdateConfig) -> bool:
    """Whether an action is spared `invalid_penalty` and `cap_invalid`."""
    return turn.validity.format if settings.invalid == "malformed" else turn.validity.ok


def _earned(trajectory: Trajectory, settings: ActionConfig) -> list[float]:
    """By step, before any penalty."""
    if settings.rewards == "steps":
        return [turn.reward for turn in trajectory.turns]
    return [0.0] * (len(trajectory.turns) - 1) + [trajectory.score]


def _own(turn: Turn, settings: UpdateConfig) -> float:
    """What the writing of an action is paid: nothing or less, except for a `format_score`."""
    if _replaced(turn, settings):
        assert settings.format_score is not None
        return settings.format_score
    return -(0.0 if is_valid(turn, settings) else settings.invalid_penalty) - _overlong(turn, settings)


def _replaced(turn: Turn, settings: UpdateConfig) -> bool:
    return settings.format_score is not None and not turn.validity.format


def _factors(trajectory: Trajectory, factors: Factors | None) -> Sequence[float]:
    return (factors or {}).get(trajectory.id, (1.0,) * len(trajectory.turns))


def _overlong(turn: Turn, settings: UpdateConfig) -> float:
    """DAPO's soft punishment of a response (arXiv 2503.14476 eq. 13): 0 up to `overlong_from` tokens, 1 at `overlong_to`."""
    if not settings.overlong_to or turn.call is None:
        return 0.0
    over = (len(turn.call.response) - settings.overlong_from) / (settings.overlong_to - settings.overlong_from)
    return min(max(over, 0.0), 1.0)
