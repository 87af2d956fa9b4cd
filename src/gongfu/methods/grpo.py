"""Group-relative policy optimisation (GRPO, DeepSeekMath arXiv 2402.03300) and its relatives, for multi-turn agents.

One step: draw tasks, play a group of rollouts of each, credit every rollout against its group, update once, publish.
Dr.GRPO, RLOO, REINFORCE++ and REINFORCE++-baseline differ in the estimator of the advantage only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gongfu.config.schema import GRPOConfig
from gongfu.core.records import Trajectory
from gongfu.core.seeds import rng_for
from gongfu.credit import advantages as estimators
from gongfu.credit.batch import Example
from gongfu.credit.losses import PolicyLossConfig
from gongfu.engine.protocol import Engine, OptimParams
from gongfu.methods.base import StepReport
from gongfu.methods.update import TokenRow, token_rows, update
from gongfu.rollout.actor import Actor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.measure import rollout_metrics
from gongfu.rollout.tasks import TaskSampler


@dataclass
class GRPO:
    engine: Engine
    collector: Collector
    actor: Actor
    tasks: TaskSampler
    settings: GRPOConfig
    optim: OptimParams
    warmup_steps: int
    seed: int
    adapter: str
    concurrency: int

    @property
    def adapters(self) -> tuple[str, ...]:
        return (self.adapter,)

    def step(self, k: int) -> StepReport:
        s = self.settings
        started = time.perf_counter()
        played = self.collector.collect(
            self.actor, self.tasks.draw(k, s.tasks), group_size=s.group_size, step=k, concurrency=self.concurrency
        )
        collected = time.perf_counter()
        batch = [t for t in played if not lost(t) and t.turns]
        flat = (
            estimators.zero_variance([returns_of(t, s) for t in batch], [t.group for t in batch])
            if batch
            else np.zeros(0, bool)
        )
        examples = self._examples(batch, flat) if batch else []
        metrics = {**rollout_metrics(played), **_group_metrics(batch, flat)}
        if examples:
            metrics |= update(
                self.engine,
                examples,
                adapter=self.adapter,
                loss=self._loss(),
                optim=replace(self.optim, lr=self.optim.lr * min(1.0, (k + 1) / max(1, self.warmup_steps))),
                epochs=s.epochs,
                minibatches=s.minibatches,
                rng=rng_for(self.seed, purpose="minibatches", step=k),
                max_gap=s.max_gap,
            )
        metrics["train/rows"] = float(len(examples))
        metrics["train/tokens"] = float(sum(e.row.targets for e in examples))
        metrics["train/version"] = float(self.engine.sync())
        ended = time.perf_counter()
        metrics |= {"time/rollout_s": collected - started, "time/train_s": ended - collected, "time/step_s": ended - started}
        return StepReport(metrics, tuple(played))

    def state(self) -> dict[str, Any]:
        """Nothing: every random choice is keyed by (seed, step)."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        del state

    def _loss(self) -> PolicyLossConfig:
        s = self.settings
        in_loss = s.kl.place == "loss"
        return PolicyLossConfig(
            clip_low=s.clip_low,
            clip_high=s.clip_high,
            dual_clip=s.dual_clip,
            aggregation=s.aggregation,
            norm_length=s.norm_length,
            kl_coefficient=s.kl.coefficient if in_loss else 0.0,
            kl_estimator=s.kl.estimator,
        )

    def _examples(self, batch: Sequence[Trajectory], flat: np.ndarray) -> list[Example]:
        """Training rows with their token advantages. A flat group teaches nothing and is left out, KL included."""
        rows = {t.id: token_rows(t) for t in batch}
        needs_reference = self.settings.kl.coefficient > 0
        whole_batch = self.settings.advantage == "reinforce++"
        kept = [t for t, dead in zip(batch, flat, strict=True) if whole_batch or not dead]
        reference = self._reference([r for t in kept for r in rows[t.id]]) if needs_reference else {}
        paid = self._token_advantages(batch, rows, reference)
        in_loss = needs_reference and self.settings.kl.place == "loss"
        examples = []
        for trajectory in kept:
            for r in rows[trajectory.id]:
                ref = reference[r.row.id] if in_loss else None
                examples.append(Example(r.row, "actor", paid[r.row.id], r.logprobs, ref))
        return [e for e in examples if any(e.advantages) or in_loss]

    def _reference(self, rows: Sequence[TokenRow]) -> dict[str, tuple[float, ...]]:
        scored = self.engine.logprobs([r.row for r in rows], adapter=None)
        return {r.row.id: tuple(values.tolist()) for r, values in zip(rows, scored, strict=True)}

    def _token_advantages(
        self, batch: Sequence[Trajectory], rows: Mapping[str, list[TokenRow]], reference: Mapping[str, tuple[float, ...]]
    ) -> dict[str, tuple[float, ...]]:
        """One advantage for each scored token of every row, by row id."""
        s = self.settings
        if s.advantage == "reinforce++":
            return _reinforce_plus_plus(batch, rows, reference, s)
        returns = [returns_of(t, s) for t in batch]
        groups = [t.group for t in batch]
        match s.advantage:
            case "grpo":
                steps = estimators.grpo(returns, groups, std=s.std, statistics=s.statistics)
            case "dr_grpo":
                steps = estimators.dr_grpo(returns, groups, statistics=s.statistics)
            case "rloo":
                steps = estimators.rloo(returns, groups, statistics=s.statistics)
            case "reinforce++_baseline":
                counts = [_tokens_per_turn(t, rows[t.id]) for t in batch]
                steps = estimators.reinforce_plus_plus_baseline(returns, groups, tokens=counts, statistics=s.statistics)
        return {r.row.id: tuple(float(steps[i][turn]) for turn in r.turns) for i, t in enumerate(batch) for r in rows[t.id]}


def returns_of(trajectory: Trajectory, settings: GRPOConfig) -> list[float]:
    """Return of every step: the discounted score at the end, less the penalty of an invalid action."""
    last = len(trajectory.turns) - 1
    return [
        trajectory.score * settings.gamma ** (last - i) - (0.0 if turn.validity.ok else settings.invalid_penalty)
        for i, turn in enumerate(trajectory.turns)
    ]


def _reinforce_plus_plus(
    batch: Sequence[Trajectory],
    rows: Mapping[str, list[TokenRow]],
    reference: Mapping[str, tuple[float, ...]],
    settings: GRPOConfig,
) -> dict[str, tuple[float, ...]]:
    kl = []
    for t in batch:
        gaps = [[a - b for a, b in zip(r.logprobs, reference.get(r.row.id, r.logprobs), strict=True)] for r in rows[t.id]]
        kl.append([value for gap in gaps for value in gap])
    paid = estimators.reinforce_plus_plus([t.score for t in batch], kl, beta=settings.kl.coefficient)
    result = {}
    for t, values in zip(batch, paid, strict=True):
        start = 0
        for r in rows[t.id]:
            result[r.row.id] = tuple(float(v) for v in values[start : start + len(r.turns)])
            start += len(r.turns)
    return result


def _tokens_per_turn(trajectory: Trajectory, rows: Sequence[TokenRow]) -> list[int]:
    counts = [0] * len(trajectory.turns)
    for r in rows:
        for turn in r.turns:
            counts[turn] += 1
    return counts


def _group_metrics(batch: Sequence[Trajectory], flat: np.ndarray) -> dict[str, float]:
    """How many groups could teach, and why the others could not."""
    scores: dict[str, list[float]] = {}
    dead: set[str] = set()
    for t, is_flat in zip(batch, flat, strict=True):
        scores.setdefault(t.group, []).append(t.score)
        if is_flat:
            dead.add(t.group)
    return {
        "train/groups": float(len(scores)),
        "train/zero_variance_groups": float(len(dead)),
        "train/all_fail_groups": float(sum(max(s) == 0 for s in scores.values())),
        "train/all_pass_groups": float(sum(min(s) == 1 for s in scores.values())),
    }
