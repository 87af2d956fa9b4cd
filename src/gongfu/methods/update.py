"""From advantages to an optimiser step: examples, minibatches, the engine's calls. Shared by the methods."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gongfu.core.errors import EngineError
from gongfu.core.records import Row, Trajectory
from gongfu.credit.batch import Example
from gongfu.credit.losses import PolicyLossConfig, policy_loss
from gongfu.engine.protocol import Engine, OptimParams
from gongfu.rollout.rows import rows_of


@dataclass(frozen=True)
class TokenRow:
    """A row, and for each of its scored tokens the turn that produced it and its sampled log-prob."""

    row: Row
    turns: tuple[int, ...]
    logprobs: tuple[float, ...]


def token_rows(trajectory: Trajectory) -> list[TokenRow]:
    """The trajectory's training rows with what the sampler said of every token."""
    rows = []
    for row in rows_of(trajectory):
        turns: list[int] = []
        logprobs: list[float] = []
        for turn, start, end in row.meta["spans"]:
            call = trajectory.turns[turn].call
            assert call is not None
            if call.logprobs is None:
                raise EngineError(
                    f"{trajectory.id}, turn {turn}: no policy sampled this response, so it has no ratio to train on"
                )
            turns += [turn] * (end - start)
            logprobs += call.logprobs
        rows.append(TokenRow(row, tuple(turns), tuple(logprobs)))
    return rows


def update(
    engine: Engine,
    examples: Sequence[Example],
    *,
    adapter: str,
    loss: PolicyLossConfig,
    optim: OptimParams,
    epochs: int,
    minibatches: int,
    rng: random.Random,
    max_gap: float,
) -> dict[str, float]:
    """`epochs` x `minibatches` optimiser steps on the examples of one component. Metrics are means over these steps.

    The first pass sees the very weights that sampled, so there |log ratio| is the gap between sampler and trainer: one
    beyond `max_gap` (mean, nats) means that the sampler does not serve the trained weights, and raises EngineError.
    """
    component = examples[0].component
    totals: dict[str, float] = {}
    steps, gap = 0, 0.0
    for _ in range(epochs):
        for batch in _minibatches(examples, minibatches, rng):
            metrics = engine.forward_backward([e.row for e in batch], policy_loss(batch, loss), adapter=adapter)
            if steps == 0:
                gap = _check_gap(metrics, component, max_gap, adapter)
            metrics[f"{component}/grad_norm"] = engine.optim_step(optim, adapter=adapter)["grad_norm"]
            for name, value in metrics.items():
                totals[name] = totals.get(name, 0.0) + value
            steps += 1
    averaged = {name: value / steps for name, value in totals.items()}
    averaged[f"{component}/loss"] = averaged.pop("loss")
    return {**averaged, f"{component}/sampler_gap": gap, f"{component}/optimiser_steps": float(steps)}


def _minibatches(examples: Sequence[Example], count: int, rng: random.Random) -> Iterator[list[Example]]:
    order = list(examples)
    if count > 1:
        rng.shuffle(order)
    count = min(count, len(order))
    for i in range(count):
        yield order[i * len(order) // count : (i + 1) * len(order) // count]


def _check_gap(metrics: dict[str, float], component: str, limit: float, adapter: str) -> float:
    gap = metrics[f"{component}/log_ratio_abs"]
    if gap > limit:
        raise EngineError(
            f"sampler and trainer disagree on adapter {adapter!r}: mean |log-prob difference| is {gap:.3g}, "
            f"method.max_gap allows {limit:.3g}; the sampler probably serves other weights than the trainer's"
        )
    return gap
