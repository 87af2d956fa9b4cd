"""Generalised advantage estimation (arXiv 1506.02438) over turns, and the loss of a critic that says yes or no."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gongfu.core.records import Row
from gongfu.credit.advantages import Array
from gongfu.credit.batch import CreditError
from gongfu.credit.losses import _check, _refuse_non_finite, _wide

_MOST = -1e-6
"""A critic is never quite certain: log(1 - p) must stay finite."""


def gae(rewards: Sequence[float], values: Sequence[float], *, gamma: float, lam: float) -> Array:
    """A_t = Σ_l (γλ)^l δ_{t+l} with δ_t = r_t + γ V_{t+1} - V_t; nothing follows the last turn (V = 0 there). Shaped [turns].

    >>> gae([0.0, 1.0], [0.5, 0.6], gamma=1.0, lam=0.0).round(6).tolist()
    [0.1, 0.4]
    >>> gae([0.0, 1.0], [0.5, 0.6], gamma=1.0, lam=1.0).round(6).tolist()
    [0.5, 0.4]
    """
    if len(rewards) != len(values):
        raise CreditError(f"{len(rewards)} rewards but {len(values)} values: GAE needs one of each a turn")
    found = np.zeros(len(values))
    later = after = 0.0
    for t in reversed(range(len(values))):
        later = rewards[t] + gamma * after - values[t] + gamma * lam * later
        found[t], after = later, values[t]
    return found


class ValueLoss:
    """Cross entropy of a critic's answer against the return it should foresee; called once a micro-batch, with sum semantics.

    `rows` hold one scored token each, whose probability (among the two answers) is the value. `targets`: row id -> return, in
    [0, 1]. Batch loss: the mean over the rows of -(y log V + (1 - y) log (1 - V)). Metrics, keyed "component/name": value_loss
    and value (its mean). Raises CreditError for a target outside [0, 1] and for rows of another batch.
    """

    def __init__(self, targets: Mapping[str, float], *, component: str = "critic") -> None:
        if not targets:
            raise CreditError("a critic's loss needs at least one row; skip the update when a batch has none")
        if bad := {name: y for name, y in targets.items() if not 0 <= y <= 1}:
            raise CreditError(f"a return to foresee must lie in [0, 1], got {bad}")
        self._targets, self._component = dict(targets), component
        self._scales = dict.fromkeys(targets, 1 / len(targets))

    def __call__(self, rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        _check(rows, logprobs, self._scales)
        flat = _wide(torch.cat(list(logprobs)))
        _refuse_non_finite(rows, flat, flat)
        yes = flat.clamp(max=_MOST)
        no = torch.log(-torch.expm1(yes))
        y = torch.tensor([self._targets[row.id] for row in rows], dtype=flat.dtype, device=flat.device)
        scale = 1 / len(self._targets)
        loss = -(y * yes + (1 - y) * no).sum() * scale
        found = {"value_loss": float(loss.detach()), "value": float(flat.detach().exp().sum()) * scale}
        return loss, {f"{self._component}/{name}": value for name, value in found.items()}


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float:
    """1 - Var(return - value) / Var(return): 1 = foreseen, 0 = no better than the mean; 0 where returns do not vary.

    >>> explained_variance([0.0, 1.0], [0.0, 1.0])
    1.0
    """
    spread = float(np.var(returns)) if len(returns) else 0.0
    if math.isclose(spread, 0.0):
        return 0.0
    return 1.0 - float(np.var(np.asarray(returns) - np.asarray(values))) / spread
