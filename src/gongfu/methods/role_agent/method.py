"""Role-Agent (arXiv 2606.10917): GiGPO whose returns grow with foresight, on tasks that lean to what went wrong.

One step: draw tasks by the failure curriculum, play groups, predict (World-In-Agent), credit, read the failures
(Agent-In-World), update, publish.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from gongfu.config.role_agent import RoleAgentConfig
from gongfu.core.records import Task, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.engine.protocol import Engine, OptimParams
from gongfu.methods.actions import action_part, anchors_of, group_metrics
from gongfu.methods.base import Schedule, StepReport
from gongfu.methods.returns import Factors
from gongfu.methods.role_agent.agent_in_world import AgentInWorld
from gongfu.methods.role_agent.curriculum import FailureCurriculum
from gongfu.methods.role_agent.world_in_agent import WorldInAgent, factors, similarities
from gongfu.methods.update import update
from gongfu.rollout.actor import Actor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.measure import rollout_metrics


@dataclass
class RoleAgent:
    engine: Engine
    collector: Collector
    actor: Actor
    curriculum: FailureCurriculum
    world: WorldInAgent | None
    """None: nothing is predicted."""
    onlooker: AgentInWorld | None
    """None: failures are not read, and tasks are drawn as they come."""
    settings: RoleAgentConfig
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
        clock = [time.perf_counter()]
        tasks, replaced = self.curriculum.draw(k, s.tasks)
        played = self.collector.collect(self.actor, tasks, group_size=s.group_size, step=k, concurrency=self.concurrency)
        batch = [t for t in played if not lost(t) and t.turns]
        clock.append(time.perf_counter())
        scale, metrics = self._foresee(batch, k)
        clock.append(time.perf_counter())
        metrics |= self._look_back(batch, k)
        clock.append(time.perf_counter())
        anchors = anchors_of(batch, s)
        metrics |= {**rollout_metrics(played), **group_metrics(batch, s, anchors, scale), **_draws(tasks, replaced)}
        whole = scale if s.prediction.scales == "reward" else {}
        actions = action_part(batch, s, self.engine, anchors=anchors, factors=scale, episode_factors=whole)
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
        metrics["train/rows"] = float(len(actions.examples)) if actions else 0.0
        metrics["train/version"] = float(self.engine.sync())
        clock.append(time.perf_counter())
        names = ("time/rollout_s", "time/predict_s", "time/failures_s", "time/train_s")
        metrics |= {name: b - a for name, a, b in zip(names, clock, clock[1:], strict=False)}
        metrics["time/step_s"] = clock[-1] - clock[0]
        return StepReport(metrics, tuple(played))

    def _foresee(self, batch: Sequence[Trajectory], k: int) -> tuple[Factors, dict[str, float]]:
        """What the score of each step is multiplied by, and how good the predictions were."""
        if self.world is None:
            return {}, {}
        p = self.settings.prediction
        asked = [t for t in batch if p.of == "all" or t.score > 0]
        predicted = self.world.predict(asked, k)
        alike = {t.id: similarities(t, predicted[t.id]) for t in asked}
        values = [r for rows in alike.values() for row in rows for r in row]
        texts = [text for rows in predicted.values() for row in rows for text in row]
        scale = {name: factors(rows, p, self.settings.gamma) for name, rows in alike.items()}
        return scale, {
            "prediction/count": float(len(texts)),
            "prediction/missing": sum(not text for text in texts) / max(1, len(texts)),
            "prediction/cut": float(self.world.cut),
            "prediction/unanswered": float(self.world.unanswered),
            "prediction/similarity": fmean(values) if values else 0.0,
            "prediction/factor": fmean(f for row in scale.values() for f in row) if scale else 1.0,
            "prediction/factor_last": fmean(row[-1] for row in scale.values()) if scale else 1.0,
            **_by_outcome(asked, alike),
        }

    def _look_back(self, batch: Sequence[Trajectory], k: int) -> dict[str, float]:
        """Read the failures, and every few steps let them choose tasks."""
        if self.onlooker is None:
            return {}
        failures, metrics = self.onlooker.read([t for t in batch if not t.success], k)
        self.curriculum.record(batch, failures)
        if self.curriculum.due(k):
            metrics["failures/selected"] = float(self.curriculum.look(k, self.onlooker.select))
        return metrics | {
            "failures/remembered": float(len(self.curriculum.memory)),
            "failures/pool": float(len(self.curriculum.pool)),
        }

    def state(self) -> dict[str, Any]:
        return self.curriculum.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self.curriculum.restore(state)


def _by_outcome(asked: Sequence[Trajectory], alike: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, float]:
    """Mean similarity in successes and in failures; only where there is one."""
    found: dict[str, list[float]] = {}
    for t in asked:
        found.setdefault(t.outcome, []).extend(r for row in alike[t.id] for r in row)
    return {f"prediction/similarity_{outcome}": fmean(values) for outcome, values in found.items() if values}


def _draws(tasks: Sequence[Task], replaced: int) -> dict[str, float]:
    """What was drawn: the share that failures chose, and the share of each kind of task."""
    shares = {f"tasks/{kind}": sum(t.kind == kind for t in tasks) / len(tasks) for kind in sorted({t.kind for t in tasks})}
    return {"tasks/from_failures": replaced / len(tasks), **shares}
