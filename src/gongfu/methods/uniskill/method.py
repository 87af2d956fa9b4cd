"""UniSkill (arXiv 2610.10164): one policy acts and writes the skills it acts with.

One step: draw tasks, choose each a skill, play groups; from groups with both outcomes the policy proposes edits of the skill; a
critic judges them and the shift of the policy's own log-likelihood of recorded successes against failures values them; actions
(GRPO) and proposals (REINFORCE++) are learned in joint optimiser steps; what passes the gate enters the bank in one commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from gongfu.config.uniskill import UniSkillConfig
from gongfu.core.records import Task, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.engine.protocol import Engine, OptimParams
from gongfu.methods.actions import action_part, anchors_of, group_metrics
from gongfu.methods.base import Schedule, StepReport
from gongfu.methods.uniskill.conformal import Calibration
from gongfu.methods.uniskill.critics import Critic
from gongfu.methods.uniskill.delayed import OutcomeValuer
from gongfu.methods.uniskill.gate import GateRules, choose_edits, find_duplicates
from gongfu.methods.uniskill.learning import ProposalLoss, make_part
from gongfu.methods.uniskill.library import Library
from gongfu.methods.uniskill.lifecycle import Canary
from gongfu.methods.uniskill.measuring import funnel
from gongfu.methods.uniskill.proposing import Proposer
from gongfu.methods.uniskill.records import Alignment, Decision, Group, Judged, Proposal
from gongfu.methods.uniskill.rewards import RewardRules, reward
from gongfu.methods.uniskill.trials import Trials
from gongfu.methods.update import Part, update
from gongfu.rollout.actor import Actor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.measure import rollout_metrics
from gongfu.rollout.tasks import TaskSampler
from gongfu.skills.skill import Skill


class Valuer(Protocol):
    """Says how good edits are: by likelihoods, by rollouts, or nothing yet (None) where later episodes will tell."""

    def value(self, proposals: Sequence[Proposal], step: int) -> list[Alignment | None]: ...


@dataclass
class UniSkill:
    engine: Engine
    collector: Collector
    actor: Actor
    tasks: TaskSampler
    library: Library
    proposer: Proposer
    critic: Critic
    valuer: Valuer
    trials: Trials
    calibration: Calibration
    canary: Canary
    settings: UniSkillConfig
    rewards: RewardRules
    gate: GateRules
    proposal_loss: ProposalLoss
    optim: OptimParams
    schedule: Schedule
    seed: int
    adapter: str
    concurrency: int
    trusted: str = ""
    """The bank's commit at the last canary comparison."""

    def __post_init__(self) -> None:
        self.trusted = self.trusted or self.library.view.commit

    @property
    def delayed(self) -> OutcomeValuer | None:
        """The valuer, when it pays edits later."""
        return self.valuer if isinstance(self.valuer, OutcomeValuer) else None

    @property
    def adapters(self) -> tuple[str, ...]:
        return (self.adapter,)

    def shown(self, tasks: Sequence[Task]) -> list[dict[str, str]]:
        """Skill id -> text: what the bank as it is shows with each of these tasks."""
        return _texts(self.library.choose(tasks), tasks)

    def step(self, k: int) -> StepReport:
        s = self.settings
        clock = _Clock()
        tasks = self.tasks.draw(k, s.tasks)
        chosen = self.library.choose(tasks)
        clock.lap("retrieve")
        played = self._play(tasks, chosen, k)
        clock.lap("rollout")
        batch = [t for t in played if not lost(t) and t.turns]
        proposals, metrics = self.proposer.propose(self._groups(batch, chosen), k)
        clock.lap("propose")
        judged = self._judge(proposals, k)
        clock.lap("value")
        metrics |= self._learn(batch, judged, k)
        metrics["train/version"] = float(self.engine.sync())
        clock.lap("train")
        decided = self._decide(judged, k)
        self.library.record(played, chosen, k)
        metrics |= self.library.write(decided, k)
        if self.delayed:
            self.delayed.add(decided, self.library.entered, k)
        clock.lap("commit")
        metrics |= self._probe(judged, k) | self._watch(k)
        clock.lap("probe")
        metrics |= rollout_metrics(played) | funnel(decided) | clock.metrics()
        return StepReport(metrics, tuple(played))

    def state(self) -> dict[str, Any]:
        """The bank's commit and what was learned about the gate; the weights are the engine's."""
        return {
            "bank": self.library.view.commit,
            "calibration": self.calibration.state(),
            "trusted": self.trusted,
            "waiting": self.delayed.state() if self.delayed else [],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError when the bank is not the checkpoint's."""
        self.library.restore(state["bank"])
        self.calibration.restore(state["calibration"])
        self.trusted = state["trusted"]
        if self.delayed:
            self.delayed.restore(state["waiting"])

    # ------------------------------------------------------------------ the parts of a step

    def _play(self, tasks: Sequence[Task], chosen: Mapping[str, Skill], k: int) -> list[Trajectory]:
        return self.collector.collect(
            self.actor,
            tasks,
            group_size=self.settings.group_size,
            step=k,
            skills=_texts(chosen, tasks),
            withheld=self.settings.lifecycle.withheld,
            concurrency=self.concurrency,
        )

    def _groups(self, batch: Sequence[Trajectory], chosen: Mapping[str, Skill]) -> list[Group]:
        """The rollouts of each group that saw the same prompt: those without the group's skill are for comparison only."""
        groups: dict[str, list[Trajectory]] = {}
        for t in batch:
            if bool(t.skills) == (t.task.id in chosen):
                groups.setdefault(t.group, []).append(t)
        found = []
        for members in groups.values():
            skill = chosen.get(members[0].task.id)
            found.append(Group(members[0].task, members, skill.id if skill else "", skill.text if skill else ""))
        return found

    def _judge(self, proposals: Sequence[Proposal], k: int) -> list[Judged]:
        """Verdict, value and reward of every proposal. In the warm-up form alone counts, and nothing is asked or measured."""
        if k < self.settings.warmup:
            return [Judged(p, None, None, reward(p, None, None, "", self.rewards, warm_up=True)) for p in proposals]
        verdicts = self.critic.judge(proposals)
        repeats = find_duplicates(proposals, self.library.texts(), self.gate)
        worth_measuring = [
            p
            for p, verdict in zip(proposals, verdicts, strict=True)
            if (p.is_edit and verdict.content_ok is not False and not (repeats.get(p.id) and self.rewards.duplicate_factor))
            or (p.parsed.op == "KEEP" and p.target and self.rewards.keep_feedback)
        ]
        values = dict(
            zip([p.id for p in worth_measuring], self.valuer.value(worth_measuring, k), strict=True)
            if self.rewards.use_align or self.gate.use_align
            else ()
        )
        judged = []
        for p, verdict in zip(proposals, verdicts, strict=True):
            repeat, value = repeats.get(p.id, ""), values.get(p.id)
            judged.append(Judged(p, verdict, value, reward(p, verdict, value, repeat, self.rewards), repeat))
        return judged

    def _learn(self, batch: Sequence[Trajectory], judged: Sequence[Judged], k: int) -> dict[str, float]:
        """Joint optimiser steps on actions and proposals."""
        s = self.settings
        anchors = anchors_of(batch, s)
        metrics = group_metrics(batch, s, anchors)
        parts: list[Part] = []
        if s.train_actor and (actions := action_part(batch, s, self.engine, anchors=anchors)):
            parts.append(actions)
        late, found = self.delayed.due(k) if self.delayed else ([], {})
        metrics |= found
        if s.train_proposer and (judged or late):
            part = make_part(judged, self.engine, s.proposer.format, self.proposal_loss, late)
            parts += [part] if part else []
            metrics["train/decisions_placed"] = float(len(part.support)) if part else 0.0
        metrics |= {f"train/rows_{part.component}": float(len(part)) for part in parts}
        metrics["train/tokens"] = float(sum(part.tokens for part in parts))
        if parts:
            metrics |= update(
                self.engine,
                parts,
                adapter=self.adapter,
                optim=replace(self.optim, lr=self.optim.lr * self.schedule.at(k)),
                epochs=s.epochs,
                minibatches=s.minibatches,
                rng=rng_for(self.seed, purpose="minibatches", step=k),
                max_gap=s.max_gap,
            )
        return metrics

    def _decide(self, judged: Sequence[Judged], k: int) -> list[tuple[Judged, Decision]]:
        alpha = self.settings.calibration.alpha
        threshold = self.calibration.threshold(alpha, k) if alpha else None
        return choose_edits(judged, self.gate, bank=self.library.texts(), threshold=threshold, warm_up=k < self.settings.warmup)

    def _probe(self, judged: Sequence[Judged], k: int) -> dict[str, float]:
        """Measure a few edits by rollouts, drawn at random whatever the gate says: what they show calibrates it."""
        c = self.settings.calibration
        edits = [j for j in judged if j.proposal.is_edit and j.alignment is not None]
        if not c.alpha or (k + 1) % c.every or not edits:
            return {}
        drawn = rng_for(self.seed, purpose="probes", step=k).sample(edits, min(c.proposals, len(edits)))
        for j, (new, old) in zip(drawn, self.trials.compare([j.proposal for j in drawn], c.rollouts, k), strict=True):
            if new and old and j.alignment is not None:
                self.calibration.add(j.alignment.r_align, fmean(new) - fmean(old), k)
        threshold = self.calibration.threshold(c.alpha, k)
        return {"calibration/pairs": float(len(self.calibration)), "calibration/open": float(threshold is not None)} | (
            {} if threshold is None else {"calibration/threshold": threshold}
        )

    def _watch(self, k: int) -> dict[str, float]:
        """The canary: the bank against itself at the last comparison, on held-out tasks, by the present policy."""
        c = self.settings.canary
        before, after = self.trusted, self.library.view.commit
        if not c.every or (k + 1) % c.every or before == after:
            return {}
        self.canary.begin(before, after)
        old, new = self.trials.compare_banks(self.library, before, after, k)
        self.canary.count(before, success=old, n=c.tasks)
        self.canary.count(after, success=new, n=c.tasks)
        worse = self.canary.verdict() == "roll back"
        if worse:
            self.library.back_to(before, f"canary at step {k}: {new} of {c.tasks} succeeded, {old} with the bank before")
        self.trusted = self.library.view.commit
        return {"canary/before": old / c.tasks, "canary/after": new / c.tasks, "canary/rolled_back": float(worse)}


def _texts(chosen: Mapping[str, Skill], tasks: Sequence[Task]) -> list[dict[str, str]]:
    found = [chosen.get(task.id) for task in tasks]
    return [{skill.id: skill.text} if skill else {} for skill in found]


class _Clock:
    """Seconds of the parts of a step."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[f"time/{name}_s"] = now - self._last
        self._last = now

    def metrics(self) -> dict[str, float]:
        return {**self._laps, "time/step_s": self._last - self._started}
