"""Group-relative policy optimisation (GRPO, DeepSeekMath arXiv 2402.03300) and its relatives, for multi-turn agents.

One step: draw tasks, play a group of rollouts of each, credit every rollout against its group, update once, publish.
Dr.GRPO, RLOO, REINFORCE++, REINFORCE++-baseline and GiGPO differ in the estimator of the advantage only, GSPO in the ratio;
DAPO also plays further tasks for those whose rollouts all end alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gongfu.config.methods import GRPOConfig
from gongfu.core.records import Trajectory
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.protocol import Engine, OptimParams
from gongfu.methods.actions import action_part, group_metrics
from gongfu.methods.base import Schedule, StepReport
from gongfu.methods.update import update
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
    schedule: Schedule
    seed: int
    adapter: str
    concurrency: int

    @property
    def adapters(self) -> tuple[str, ...]:
        return (self.adapter,)

    def step(self, k: int) -> StepReport:
        s = self.settings
        started = time.perf_counter()
        played, rounds = self._play(k)
        collected = time.perf_counter()
        batch = [t for t in played if not lost(t) and t.turns]
        metrics = {**rollout_metrics(played), **group_metrics(batch, s)}
        if s.dynamic_rounds:
            batch = _trimmed(batch, s.tasks)
            metrics["train/dynamic_rounds"] = float(rounds)
        actions = action_part(batch, s, self.engine)
        if actions:
            metrics |= update(
                self.engine,
                [actions],
                adapter=self.adapter,
                optim=replace(self.optim, lr=self.optim.lr * self.schedule.at(k)),
                epochs=s.epochs,
                minibatches=s.minibatches,
                rng=rng_for(self.seed, purpose="minibatches", step=k),
                max_gap=s.max_gap,
            )
        examples = actions.examples if actions else ()
        metrics["train/rows"] = float(len(examples))
        metrics["train/tokens"] = float(sum(e.row.targets for e in examples))
        metrics["train/version"] = float(self.engine.sync())
        ended = time.perf_counter()
        metrics |= {"time/rollout_s": collected - started, "time/train_s": ended - collected, "time/step_s": ended - started}
        return StepReport(metrics, tuple(played))

    def _play(self, k: int) -> tuple[list[Trajectory], int]:
        """The rollouts of a step and how many further rounds they took: one task is never played twice."""
        s = self.settings
        played: list[Trajectory] = []
        seen: set[str] = set()
        for n in range(s.dynamic_rounds + 1):
            drawn = self.tasks.draw(k, s.tasks) if n == 0 else self.extra.draw(k * s.dynamic_rounds + n - 1, s.tasks)
            tasks = [task for task in drawn if task.id not in seen] if n else drawn
            seen |= {task.id for task in tasks}
            played += self.collector.collect(self.actor, tasks, group_size=s.group_size, step=k, concurrency=self.concurrency)
            if len(_live([t for t in played if not lost(t) and t.turns])) >= s.tasks:
                return played, n
        return played, s.dynamic_rounds

    @property
    def extra(self) -> TaskSampler:
        """An order of its own, so that further rounds change no later step."""
        return TaskSampler(self.tasks.tasks, seed_for(self.seed, purpose="dynamic sampling"))

    def state(self) -> dict[str, Any]:
        """Nothing: every random choice is keyed by (seed, step)."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        del state


def _live(batch: Sequence[Trajectory]) -> list[str]:
    """The groups with different scores: those of the task itself, before any penalty."""
    scores: dict[str, set[float]] = {}
    for t in batch:
        scores.setdefault(t.group, set()).add(t.score)
    return [group for group, found in scores.items() if len(found) > 1]


def _trimmed(batch: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """The rollouts of the first `count` groups that teach something."""
    kept = set(_live(batch)[:count])
    return [t for t in batch if t.group in kept]
