"""Any loss on a trainer that can only score tokens and take gradients with respect to their log-probs.

A loss of our methods is a function of log-probs of given tokens. So a remote trainer scores the rows, the loss is
differentiated here in these log-probs, and its linearisation goes back: Σ c_t log p_t with c_t = dL/dlog p_t has the same
gradient in the weights. The price is one more forward pass than a loss that runs beside the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.local.trees import Branches, combine
from gongfu.engine.protocol import LossFn


class Plain:
    """Rows as plain token sequences, and the way back.

    A row whose responses were chosen from lists becomes itself without these responses, and one sequence for every option: the
    prompt before it, and its tokens at temperature 1.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.sequences: list[Row] = []
        self._spans: list[slice] = []
        for row in rows:
            start = len(self.sequences)
            self.sequences += _unfolded(row) if row.choices else [row]
            self._spans.append(slice(start, len(self.sequences)))

    def fold(self, logprobs: Sequence[Tensor]) -> list[Tensor]:
        """Log-probs [targets] of every row from those of every sequence; differentiable."""
        return [self._whole(row, logprobs[span]) for row, span in zip(self.rows, self._spans, strict=True)]

    def gradients(self, loss: LossFn, logprobs: Sequence[Tensor]) -> tuple[list[Tensor], dict[str, float]]:
        """dL/dlogprob of every sequence's scored tokens, and the metrics with their "loss".

        Raises EngineError for a loss that is no scalar, or depends on none of the log-probs.
        """
        leaves = [values.detach().float().requires_grad_() for values in logprobs]
        value, metrics = loss(self.rows, self.fold(leaves))
        if not value.requires_grad or value.ndim:
            raise EngineError("the loss must be a scalar tensor that depends on the log-probs")
        found = torch.autograd.grad(value, leaves, allow_unused=True)
        gradients = [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
        return gradients, {**{key: float(number) for key, number in metrics.items()}, "loss": float(value.detach())}

    def _whole(self, row: Row, parts: Sequence[Tensor]) -> Tensor:
        return combine(row, Branches(row, len(row.tokens)), torch.cat(list(parts))) if row.choices else parts[0]


def _unfolded(row: Row) -> list[Row]:
    """In the order in which `Branches` lists what is scored."""
    free = list(row.mask)
    for choice in row.choices:
        length = len(row.response(choice))
        free[choice.start : choice.start + length] = [False] * length
    sequences = [Row(row.id, row.tokens, tuple(free), row.temperature)] if any(free) else []
    for choice in row.choices:
        before = row.tokens[: choice.start]
        for option in choice.options:
            mask = (False,) * len(before) + (True,) * len(option)
            sequences.append(Row(f"{row.id}#{len(sequences)}", (*before, *option), mask))
    return sequences
