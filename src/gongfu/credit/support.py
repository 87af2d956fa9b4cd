"""The support floor: no legal operation of a decision may become so rare that it is never tried (UniSkill, L_sup).

At the decision the policy is restricted to the first tokens of the legal labels: p(op) = softmax over them alone. Then

    L_sup = mean over decisions of (1/|O|) Σ_{op in O} max(0, ln p_min - ln p(op))².
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gongfu.core.records import Choice, Row
from gongfu.credit.batch import CreditError
from gongfu.credit.losses import _check, _refuse_non_finite, _wide


def support_rows(prompt: Sequence[int], first_tokens: Mapping[str, int], *, id: str, temperature: float = 1.0) -> list[Row]:
    """One row for each legal operation of a decision: `prompt`, then the first token of its label, scored among them all.

    `first_tokens` maps the legal operations to these tokens; `temperature` is that of sampling. Raises CreditError when there
    are fewer than two, or two labels share their first token (they are then not told apart there).
    """
    if not prompt:
        raise CreditError(f"decision {id} has no prompt before its operation")
    if len(first_tokens) < 2:
        raise CreditError(f"decision {id} leaves no choice: {', '.join(first_tokens) or 'nothing'} is all that is legal")
    if len(set(first_tokens.values())) < len(first_tokens):
        raise CreditError(
            f"decision {id}: labels share their first token ({dict(first_tokens)}), so their support cannot be measured there; "
            "use labels that this tokenizer begins differently"
        )
    tokens, mask = (*prompt, 0), (*[False] * len(prompt), True)
    choice = Choice(tuple((token,) for token in first_tokens.values()), start=len(prompt))
    return [
        Row(f"{id}/{op}", (*tokens[:-1], token), mask, temperature, {"decision": id, "op": op}, (choice,))
        for op, token in first_tokens.items()
    ]


def support_loss(logprobs_by_row: Sequence[Tensor], p_min: float) -> tuple[Tensor, dict[str, float]]:
    """L_sup of decisions given as log-probs [|O|] that are normalised over the legal operations, one row a decision.

    Metrics: support_loss, and below_floor, the mean share of a decision's operations that lie under `p_min`. Raises CreditError
    for a decision without a choice, or a floor that cannot hold for all operations at once (|O| p_min >= 1).
    """
    if not logprobs_by_row:
        raise CreditError("the support of no decision; skip it when a step has none")
    scales = []
    for logprobs in logprobs_by_row:
        _check_floor(len(logprobs), p_min)
        scales += [1 / (len(logprobs) * len(logprobs_by_row))] * len(logprobs)
    return _floor(_wide(torch.cat(list(logprobs_by_row))), scales, p_min)


class SupportLoss:
    """λ L_sup over the `support_rows` of all decisions of a batch; called once a micro-batch, with sum semantics.

    Metrics, keyed "component/name": those of `support_loss` (that one times λ, `weight`), op_entropy (nats, mean over the
    decisions) and p_<op>, the mean probability of an operation (0 where it is not legal). Raises CreditError as `support_loss`
    does, for rows of another batch, and for a decision that lacks the row of an operation.
    """

    def __init__(self, rows: Sequence[Row], p_min: float, *, weight: float = 1.0, component: str = "proposer") -> None:
        if not rows:
            raise CreditError("the support of no decision; skip it when a step has none")
        if not (math.isfinite(weight) and weight >= 0):
            raise CreditError(f"the weight of the support loss must be finite and not negative, got {weight}")
        self._p_min, self._weight, self._component = p_min, weight, component
        operations: dict[str, list[str]] = {}
        for row in rows:
            operations.setdefault(row.meta["decision"], []).append(row.meta["op"])
        for row in rows:
            decision, legal = row.meta["decision"], len(row.choices[0].options)
            _check_floor(legal, p_min)
            found = operations[decision]
            if len(found) != legal or len(set(found)) != legal:
                raise CreditError(f"decision {decision} has {legal} legal operations, but rows of {', '.join(found)}")
        self._decisions = len(operations)
        self._scales = {row.id: 1 / (len(operations[row.meta["decision"]]) * self._decisions) for row in rows}
        self.smallest = 1.0
        """Smallest probability of a legal operation in any call so far."""

    def __call__(self, rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Loss (scalar, differentiable) and metrics; `logprobs[i]` is shaped [1]: that of row i's operation."""
        _check(rows, logprobs, self._scales)
        flat = _wide(torch.cat(list(logprobs)))
        _refuse_non_finite(rows, flat, flat)
        loss, metrics = _floor(flat, [self._scales[row.id] for row in rows], self._p_min)
        metrics["support_loss"] *= self._weight
        p = flat.detach().exp()
        self.smallest = min(self.smallest, float(p.min()))
        metrics["op_entropy"] = float(-(p * flat.detach()).sum()) / self._decisions
        for row, value in zip(rows, p.tolist(), strict=True):
            name = f"p_{row.meta['op']}"
            metrics[name] = metrics.get(name, 0.0) + value / self._decisions
        return self._weight * loss, {f"{self._component}/{name}": value for name, value in metrics.items()}


def _floor(logprobs: Tensor, scales: Sequence[float], p_min: float) -> tuple[Tensor, dict[str, float]]:
    """Σ scale * shortfall² and what it is made of."""
    scale = torch.tensor(scales, dtype=logprobs.dtype, device=logprobs.device)
    shortfall = (math.log(p_min) - logprobs).clamp(min=0)
    loss = (scale * shortfall.square()).sum()
    return loss, {"support_loss": float(loss.detach()), "below_floor": float(scale[shortfall > 0].sum())}


def _check_floor(operations: int, p_min: float) -> None:
    if operations < 2:
        raise CreditError(f"a decision needs at least two legal operations to choose from, got {operations}")
    if not 0 < p_min * operations < 1:
        raise CreditError(f"p_min must lie between 0 and 1/{operations} for {operations} legal operations, got {p_min}")
