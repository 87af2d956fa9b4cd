"""What the skills of a view are worth, computed from the evidence."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gongfu.skills.bank import SkillBank
    from gongfu.skills.view import BankView

Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""


class Utility(NamedTuple):
    """Success with a skill against success without it, over the uses of its present version."""

    with_n: int = 0
    with_success: int = 0
    without_n: int = 0
    without_success: int = 0
    uplift: float | None = None
    """Success rate with it minus that without it; None when one of them was never tried."""
    low: float = -1.0
    """Lower end of the 95 % interval of the uplift."""
    high: float = 1.0
    last_used: int | None = None
    """Last step with it."""


NEVER_USED = Utility()


def utilities(
    bank: SkillBank, view: BankView, before_step: int | None = None, skills: Collection[str] | None = None
) -> dict[str, Utility]:
    """Skill id -> utility of these skills, or of all of the view. Only uses of steps before `before_step` count (None: all).

    An update starts a version's count at zero. Shadow uses count for nothing. Raises SkillError for a skill that is not there.
    """
    if skills is None:
        wanted = {skill: entry.digest for skill, entry in view.tree.items()}
        versions, counts = bank.tallies(before_step)
    else:
        wanted = {skill: view.get(skill).digest for skill in sorted(skills)}
        versions, counts = bank.tallies(before_step, wanted.values())
    uplift, low, high = newcombe(*counts[:, :4].T)
    measured = (counts[:, 0] > 0) & (counts[:, 2] > 0)
    columns = (
        *counts[:, :4].T.tolist(),
        [u if known else None for u, known in zip(uplift.tolist(), measured.tolist(), strict=True)],
        low.tolist(),
        high.tolist(),
        [step if step >= 0 else None for step in counts[:, 4].tolist()],
    )
    found = dict(zip(versions, map(Utility._make, zip(*columns, strict=True)), strict=True))
    return {skill: found.get(digest, NEVER_USED) for skill, digest in wanted.items()}


def newcombe(
    with_n: NDArray[np.int64], with_success: NDArray[np.int64], without_n: NDArray[np.int64], without_success: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Difference of two proportions and its 95 % interval (Newcombe 1998, method 10: from two Wilson intervals).

    A proportion without any trial may be anything from 0 to 1: the interval then reaches as far as that allows.
    """
    p, p_low, p_high = _wilson(with_success, with_n)
    q, q_low, q_high = _wilson(without_success, without_n)
    known = (with_n > 0) & (without_n > 0)
    low = np.where(known, p - q - np.hypot(p - p_low, q_high - q), p_low - q_high)
    high = np.where(known, p - q + np.hypot(p_high - p, q - q_low), p_high - q_low)
    return p - q, low, high


def _wilson(
    success: NDArray[np.int64], n: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    trials = np.maximum(n, 1)
    p = success / trials
    centre = (p + Z**2 / (2 * trials)) / (1 + Z**2 / trials)
    half = Z / (1 + Z**2 / trials) * np.sqrt(p * (1 - p) / trials + Z**2 / (4 * trials**2))
    return p, np.where(n > 0, centre - half, 0.0), np.where(n > 0, centre + half, 1.0)
