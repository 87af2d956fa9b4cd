"""From advantages to optimiser steps: examples, minibatches, the engine's calls. Shared by the methods."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gongfu.core.errors import EngineError
from gongfu.core.records import Row, Trajectory
from gongfu.credit.batch import Example
from gongfu.credit.losses import PolicyLossConfig, policy_loss
from gongfu.engine.protocol import Engine, LossFn, OptimParams
from gongfu.rollout.rows import rows_of

if TYPE_CHECKING:
    from torch import Tensor


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


class Part(Protocol):
    """What one role contributes to the optimiser steps of an adapter."""

    @property
    def component(self) -> str: ...

    @property
    def tokens(self) -> int:
        """Scored tokens of its rows."""
        ...

    def __len__(self) -> int:
        """Units that can be dealt to minibatches."""
        ...

    def slices(self, count: int, rng: random.Random) -> list[tuple[list[Row], LossFn]]:
        """`count` pieces of rows with the loss of each; a piece may be empty."""
        ...


@dataclass(frozen=True)
class Actions:
    """Policy gradient on the examples of one component: each minibatch is normalised on its own."""

    examples: Sequence[Example]
    loss: PolicyLossConfig

    @property
    def component(self) -> str:
        return self.examples[0].component

    @property
    def tokens(self) -> int:
        return sum(e.row.targets for e in self.examples)

    def __len__(self) -> int:
        return len(self.examples)

    def slices(self, count: int, rng: random.Random) -> list[tuple[list[Row], LossFn]]:
        return [([e.row for e in part], policy_loss(part, self.loss)) for part in deal(self.examples, count, rng) if part]


class LossSum:
    """The sum of several losses over one set of rows, each with a weight and its own rows."""

    def __init__(self, parts: Sequence[tuple[frozenset[str], LossFn, float]]) -> None:
        """`parts`: (ids of the rows that the loss wants, loss, weight)."""
        self._parts = parts

    def __call__(self, rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        total: Tensor | None = None
        metrics: dict[str, float] = {}
        for ids, loss, weight in self._parts:
            own = [i for i, row in enumerate(rows) if row.id in ids]
            if own:
                value, found = loss([rows[i] for i in own], [logprobs[i] for i in own])
                total = weight * value if total is None else total + weight * value
                metrics |= found
        if total is None:
            raise EngineError(f"no loss wants the rows {', '.join(row.id for row in rows[:5])}")
        return total, metrics


def update(
    engine: Engine,
    parts: Sequence[Part],
    *,
    adapter: str,
    optim: OptimParams,
    epochs: int,
    minibatches: int,
    rng: random.Random,
    max_gap: float,
) -> dict[str, float]:
    """`epochs` x `minibatches` optimiser steps; in each, every part's gradients are accumulated before the one step.

    Metrics are means over the steps, keyed "component/name"; the gradient norm, of all parts together, stands with the first.
    The first step sees the very weights that sampled, so there |log ratio| is the gap between sampler and trainer: one beyond
    `max_gap` (mean, nats) means that the sampler does not serve the trained weights, and raises EngineError.
    """
    parts = [part for part in parts if len(part)]
    lead = parts[0].component
    count = min(minibatches, max(len(part) for part in parts))
    totals: dict[str, float] = {}
    steps = 0
    for _ in range(epochs):
        dealt = [part.slices(min(count, len(part)), rng) for part in parts]
        for k in range(count):
            for part, slices in zip(parts, dealt, strict=True):
                if k < len(slices) and slices[k][0]:
                    rows, loss = slices[k]
                    metrics = engine.forward_backward(rows, loss, adapter=adapter)
                    if steps == 0 and (gap := metrics.get(f"{part.component}/log_ratio_abs")) is not None:
                        metrics[f"{part.component}/sampler_gap"] = _check_gap(gap, max_gap, adapter)
                    metrics[f"{part.component}/loss"] = metrics.pop("loss")
                    _add(totals, metrics)
            _add(totals, {f"{lead}/grad_norm": engine.optim_step(optim, adapter=adapter)["grad_norm"]})
            steps += 1
    gaps = {name for name in totals if name.endswith("/sampler_gap")}
    averaged = {name: value if name in gaps else value / steps for name, value in totals.items()}
    return {**averaged, f"{lead}/optimiser_steps": float(steps)}


def deal(items: Sequence[Example], count: int, rng: random.Random) -> list[list[Example]]:
    """`items` in `count` pieces of nearly equal size, shuffled when there is more than one."""
    order = list(items)
    if count > 1:
        rng.shuffle(order)
    return [order[i * len(order) // count : (i + 1) * len(order) // count] for i in range(count)]


def _add(totals: dict[str, float], metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        totals[name] = totals.get(name, 0.0) + value


def _check_gap(gap: float, limit: float, adapter: str) -> float:
    if gap > limit:
        raise EngineError(
            f"sampler and trainer disagree on adapter {adapter!r}: mean |log-prob difference| is {gap:.3g}, "
            f"method.max_gap allows {limit:.3g}; the sampler probably serves other weights than the trainer's"
        )
    return gap
