"""How the servers of the Tinker API differ: what a row is sent as so that a step takes the gradient of Σ c_t log p_t."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from gongfu.core.records import Row

Dialect = Literal["skyrl", "tinker"]
"""skyrl: SkyRL 0.4 (JAX). tinker: the hosted service, as it is documented."""


def scoring_data(types: Any, rows: Sequence[Row]) -> list[Any]:
    """For `forward` with cross_entropy, which answers with the log-prob of every token."""
    return [_datum(types, row, weights=[1.0] * row.targets) for row in rows]


def training_data(
    types: Any, dialect: Dialect, rows: Sequence[Row], coefficients: Sequence[Tensor], logprobs: Sequence[Tensor]
) -> tuple[str, list[Any]]:
    """The name of the server's loss, and all rows of a step.

    tinker: cross_entropy sums weight x (-log p), so the weights are -c. skyrl divides a row's loss by the sum of its weights
    and a step's gradient by its rows; with signed weights the first is wrong, so importance_sampling is asked for: at the
    weights that gave `logprobs` its gradient is -advantage in log p, and advantages are -c x tokens of the row x rows.
    """
    if dialect == "tinker":
        return "cross_entropy", [_datum(types, r, weights=(-c).tolist()) for r, c in zip(rows, coefficients, strict=True)]
    count = len(rows)
    return "importance_sampling", [
        _datum(types, r, advantages=(-c * (r.targets * count)).tolist(), logprobs=lp.tolist(), weights=[1.0] * r.targets)
        for r, c, lp in zip(rows, coefficients, logprobs, strict=True)
    ]


def _datum(types: Any, row: Row, **inputs: Sequence[float]) -> Any:
    """Inputs have one value a scored token, and are spread over all predicted places: the servers accept wrong lengths."""
    places = [i - 1 for i, scored in enumerate(row.mask) if scored]
    spread: dict[str, list[float] | list[int]] = {"target_tokens": list(row.tokens[1:])}
    for name, values in inputs.items():
        whole = [0.0] * (len(row.tokens) - 1)
        for place, value in zip(places, values, strict=True):
            whole[place] = float(value)
        spread[name] = whole
    return types.Datum(model_input=types.ModelInput.from_ints(list(row.tokens[:-1])), loss_fn_inputs=spread)
