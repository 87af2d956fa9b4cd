"""PPO (arXiv 1707.06347) for multi-turn agents, with a critic on an adapter of its own.

One step: draw tasks, play them, ask the critic at every turn whether the episode will succeed, credit the turns by GAE, update
actor and critic, publish. The critic is the model under another adapter: its value of a turn is the probability of the word
"success" against "failure" after the turn's prompt, trained by cross entropy on the return. So it needs no head that an
engine would have to know, and starts from what the model believes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gongfu.config.methods import PPOConfig
from gongfu.core.errors import ConfigError
from gongfu.core.records import Choice, Row, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.credit.advantages import whiten
from gongfu.credit.batch import Example
from gongfu.credit.gae import ValueLoss, explained_variance, gae
from gongfu.engine.protocol import Engine, LossFn, OptimParams, Tokenizer
from gongfu.methods.actions import policy_config, reference_logprobs
from gongfu.methods.base import Schedule, StepReport
from gongfu.methods.returns import is_valid, rewards_of
from gongfu.methods.update import Actions, token_rows, update
from gongfu.rollout.actor import Actor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.measure import rollout_metrics
from gongfu.rollout.tasks import TaskSampler

COMPONENT = "critic"


@dataclass
class PPO:
    engine: Engine
    collector: Collector
    actor: Actor
    tasks: TaskSampler
    settings: PPOConfig
    optim: OptimParams
    schedule: Schedule
    seed: int
    adapter: str
    critic: str
    concurrency: int

    @property
    def adapters(self) -> tuple[str, ...]:
        return (self.adapter, self.critic)

    def step(self, k: int) -> StepReport:
        s = self.settings
        started = time.perf_counter()
        tasks = self.tasks.draw(k, s.tasks)
        played = self.collector.collect(self.actor, tasks, group_size=s.group_size, step=k, concurrency=self.concurrency)
        batch = [t for t in played if not lost(t) and t.turns]
        collected = time.perf_counter()
        metrics = rollout_metrics(played)
        if batch:
            metrics |= self._learn(batch, k)
        metrics["train/version"] = float(self.engine.sync())
        ended = time.perf_counter()
        metrics |= {"time/rollout_s": collected - started, "time/train_s": ended - collected, "time/step_s": ended - started}
        return StepReport(metrics, tuple(played))

    def _learn(self, batch: Sequence[Trajectory], k: int) -> dict[str, float]:
        s = self.settings
        asked = {t.id: value_rows(t, self.engine.tokenizer) for t in batch}
        rows = [row for t in batch for row in asked[t.id]]
        found = iter(self.engine.logprobs(rows, adapter=self.critic))
        values = [[float(next(found).exp()) for _ in asked[t.id]] for t in batch]
        credit = [gae(rewards_of(t, s), v, gamma=s.gamma, lam=s.gae_lambda) for t, v in zip(batch, values, strict=True)]
        returns = [float(y) for a, v in zip(credit, values, strict=True) for y in a + v]
        foreseen = [min(max(y, 0.0), 1.0) for y in returns]
        targets = {row.id: y for row, y in zip(rows, foreseen, strict=True)}
        flat = [v for row in values for v in row]
        metrics = {
            "critic/explained_variance": explained_variance(flat, foreseen),
            "critic/clipped_returns": sum(y != z for y, z in zip(returns, foreseen, strict=True)) / len(returns),
        }
        if k >= s.critic.warmup:
            metrics |= self._update_actor(batch, credit, k)
        return metrics | update(
            self.engine,
            [Values(rows, targets)],
            adapter=self.critic,
            optim=replace(self.optim, lr=s.critic.lr * self.schedule.at(k)),
            epochs=s.critic.epochs,
            minibatches=s.critic.minibatches,
            rng=rng_for(self.seed, purpose="critic minibatches", step=k),
            max_gap=s.max_gap,
        )

    def _update_actor(self, batch: Sequence[Trajectory], credit: Sequence[np.ndarray], k: int) -> dict[str, float]:
        s = self.settings
        tokens = {t.id: token_rows(t) for t in batch}
        counts = [[sum(turn == i for r in tokens[t.id] for turn in r.turns) for i in range(len(t.turns))] for t in batch]
        advantages = whiten([list(a) for a in credit], epsilon=1e-8, counts=counts)
        if s.cap_invalid:
            valid = [np.array([is_valid(turn, s) for turn in t.turns]) for t in batch]
            advantages = [np.where(ok, a, np.minimum(a, 0.0)) for ok, a in zip(valid, advantages, strict=True)]
        in_loss = s.kl.coefficient > 0
        reference = reference_logprobs(self.engine, [r for t in batch for r in tokens[t.id]]) if in_loss else {}
        examples = [
            Example(r.row, "actor", tuple(float(a[turn]) for turn in r.turns), r.logprobs, reference.get(r.row.id))
            for t, a in zip(batch, advantages, strict=True)
            for r in tokens[t.id]
        ]
        metrics = {
            "train/rows": float(len(examples)),
            "train/tokens": float(sum(e.row.targets for e in examples)),
            "train/advantage_sd": float(np.std(np.concatenate(list(credit)))),
        }
        return metrics | update(
            self.engine,
            [Actions(examples, policy_config(s))],
            adapter=self.adapter,
            optim=replace(self.optim, lr=self.optim.lr * self.schedule.at(k)),
            epochs=s.epochs,
            minibatches=s.minibatches,
            rng=rng_for(self.seed, purpose="minibatches", step=k),
            max_gap=s.max_gap,
        )

    def state(self) -> dict[str, Any]:
        """Nothing: every random choice is keyed by (seed, step); the critic's weights are the engine's."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        del state


@dataclass(frozen=True)
class Values:
    """The critic's share of an update. Implements `gongfu.methods.update.Part`."""

    rows: Sequence[Row]
    targets: Mapping[str, float]

    @property
    def component(self) -> str:
        return COMPONENT

    @property
    def tokens(self) -> int:
        return len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def slices(self, count: int, rng: random.Random) -> list[tuple[list[Row], LossFn]]:
        order = list(self.rows)
        if count > 1:
            rng.shuffle(order)
        cut = [order[i * len(order) // count : (i + 1) * len(order) // count] for i in range(count)]
        return [(part, ValueLoss({row.id: self.targets[row.id] for row in part})) for part in cut if part]


def answers(tokenizer: Tokenizer) -> tuple[int, int]:
    """The first tokens of the critic's two answers. Raises ConfigError when this tokenizer begins them alike."""
    yes, no = tokenizer.encode("success")[0], tokenizer.encode("failure")[0]
    if yes == no:
        raise ConfigError(
            'this tokenizer begins "success" and "failure" with the same token, so a critic cannot tell them apart there: '
            "train with another method, or another model"
        )
    return yes, no


def value_rows(trajectory: Trajectory, tokenizer: Tokenizer) -> list[Row]:
    """For every turn its prompt, answered by "success" and scored against "failure"."""
    yes, no = answers(tokenizer)
    rows = []
    for i, turn in enumerate(trajectory.turns):
        assert turn.call is not None
        prompt = turn.call.prompt
        choice = Choice(((yes,), (no,)), start=len(prompt))
        rows.append(
            Row(f"{trajectory.id}/value/{i}", (*prompt, yes), (*[False] * len(prompt), True), 1.0, {"turn": i}, (choice,))
        )
    return rows
