"""Group-relative policy optimisation (GRPO, DeepSeekMath arXiv 2402.03300) and its relatives, for multi-turn agents.

One step: draw tasks, play a group of rollouts of each, credit every rollout against its group, update once, publish.
Dr.GRPO, RLOO, REINFORCE++, REINFORCE++-baseline and GiGPO differ in the estimator of the advantage only, GSPO in the ratio;
DAPO also plays further tasks for those whose rollouts all end alike. With `one_step_off` the next step's rollouts are played
with the weights of before the update, beside it where the engine can do both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from gongfu.config.methods import GRPOConfig
from gongfu.core.records import Trajectory
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.protocol import Capability, Engine, OptimParams
from gongfu.methods.actions import action_part, anchors_of, group_metrics
from gongfu.methods.base import Schedule, StepReport
from gongfu.methods.stale import corrected, version_lag
from gongfu.methods.update import update
from gongfu.rollout.actor import Actor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.measure import rollout_metrics
from gongfu.rollout.pack import pack, unpack
from gongfu.rollout.tasks import TaskSampler


@dataclass(frozen=True)
class Rollouts:
    """What one step plays."""

    trajectories: tuple[Trajectory, ...]
    rounds: int
    """Further rounds of dynamic sampling."""
    seconds: float


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
    _ahead: Rollouts | None = field(default=None, init=False)
    """The next step's rollouts, played already (`one_step_off`)."""

    @property
    def adapters(self) -> tuple[str, ...]:
        return (self.adapter,)

    def step(self, k: int) -> StepReport:
        started = time.perf_counter()
        rollouts = self._ahead or self._play(k)
        if self.settings.one_step_off and k + 1 < self.schedule.steps:
            metrics, self._ahead = self._learn_and_play(rollouts, k)
        else:
            metrics, self._ahead = self._learn(rollouts, k), None
        metrics["train/version"] = float(self.engine.sync())
        metrics |= {"time/rollout_s": rollouts.seconds, "time/step_s": time.perf_counter() - started}
        return StepReport(metrics, rollouts.trajectories)

    def _learn_and_play(self, rollouts: Rollouts, k: int) -> tuple[dict[str, float], Rollouts]:
        """Learn from a step's rollouts while the next one's are played, with the weights of before."""
        if Capability.OVERLAP not in self.engine.capabilities:
            ahead = self._play(k + 1)
            return self._learn(rollouts, k), ahead
        with ThreadPoolExecutor(1, "rollouts") as thread:
            playing = thread.submit(self._play, k + 1)
            return self._learn(rollouts, k), playing.result()

    def _learn(self, rollouts: Rollouts, k: int) -> dict[str, float]:
        s = self.settings
        started = time.perf_counter()
        played = rollouts.trajectories
        batch = [t for t in played if not lost(t) and t.turns]
        anchors = anchors_of(batch, s)
        metrics = {**rollout_metrics(played), **group_metrics(batch, s, anchors)}
        if s.dynamic_rounds:
            batch = _trimmed(batch, s.tasks)
            anchors = anchors_of(batch, s)
            metrics["train/dynamic_rounds"] = float(rollouts.rounds)
        metrics["train/version_lag"] = float(version_lag(batch, self.engine.version, most=int(s.one_step_off)))
        actions = action_part(batch, s, self.engine, anchors=anchors)
        if actions and s.one_step_off:
            examples, found = corrected(
                actions.examples, self.engine, adapter=self.adapter, cap=s.importance_cap, max_gap=s.max_gap
            )
            actions, metrics = replace(actions, examples=examples), metrics | found
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
        metrics["time/train_s"] = time.perf_counter() - started
        return metrics

    def _play(self, k: int) -> Rollouts:
        """What a step plays: no task twice."""
        s, started = self.settings, time.perf_counter()
        played: list[Trajectory] = []
        seen: set[str] = set()
        rounds = 0
        for n in range(s.dynamic_rounds + 1):
            rounds = n
            drawn = self.tasks.draw(k, s.tasks) if n == 0 else self.extra.draw(k * s.dynamic_rounds + n - 1, s.tasks)
            tasks = [task for task in drawn if task.id not in seen] if n else drawn
            seen |= {task.id for task in tasks}
            played += self.collector.collect(self.actor, tasks, group_size=s.group_size, step=k, concurrency=self.concurrency)
            if len(_live([t for t in played if not lost(t) and t.turns])) >= s.tasks:
                break
        return Rollouts(tuple(played), rounds, time.perf_counter() - started)

    @property
    def extra(self) -> TaskSampler:
        """An order of its own, so that further rounds change no later step."""
        return TaskSampler(self.tasks.tasks, seed_for(self.seed, purpose="dynamic sampling"))

    def state(self) -> dict[str, Any]:
        """Rollouts that wait to be learned from. Every random choice is keyed by (seed, step)."""
        if self._ahead is None:
            return {}
        lines = [json.dumps(pack(t), separators=(",", ":")) for t in self._ahead.trajectories]
        return {"ahead": {"rounds": self._ahead.rounds, "trajectories": lines}}

    def restore(self, state: Mapping[str, Any]) -> None:
        ahead = state.get("ahead")
        self._ahead = None
        if ahead is not None:
            played = tuple(unpack(json.loads(line)) for line in ahead["trajectories"])
            self._ahead = Rollouts(played, ahead["rounds"], seconds=0.0)


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
