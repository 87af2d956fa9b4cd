"""Group-relative policy optimisation (GRPO, DeepSeekMath arXiv 2402.03300) and its relatives, for multi-turn agents.

One step: draw tasks, play a group of rollouts of each, credit every rollout against its group, update once, publish.
Dr.GRPO, RLOO, REINFORCE++ and REINFORCE++-baseline differ in the estimator of the advantage only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gongfu.config.methods import ActionConfig
from gongfu.core.seeds import rng_for
from gongfu.engine.protocol import Engine, OptimParams
from gongfu.methods.actions import action_part, group_metrics
from gongfu.methods.base import StepReport
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
    settings: ActionConfig
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
        actions = action_part(batch, s, self.engine)
        metrics = {**rollout_metrics(played), **group_metrics(batch, s)}
        if actions:
            metrics |= update(
                self.engine,
                [actions],
                adapter=self.adapter,
                optim=replace(self.optim, lr=self.optim.lr * min(1.0, (k + 1) / max(1, self.warmup_steps))),
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

    def state(self) -> dict[str, Any]:
        """Nothing: every random choice is keyed by (seed, step)."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        del state
