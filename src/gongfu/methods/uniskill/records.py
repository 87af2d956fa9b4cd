"""What flows through a UniSkill step: a proposal, what was said and measured about it, what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, variance
from typing import Literal

from gongfu.core.records import Call, Choice, Task, Trajectory

Op = Literal["ADD", "UPDATE", "KEEP"]
"""KEEP is the paper's NO EDIT."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What a proposal is made from and what it is measured on: four disjoint sets of rollouts of one group."""

    source: Trajectory
    opposite: Trajectory
    """A rollout of the group with the other outcome; the proposer sees it too."""
    successes: tuple[Trajectory, ...]
    """References τ+; the proposer does not see them."""
    failures: tuple[Trajectory, ...]
    """References τ-."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A proposal as read. `op` is None when it is malformed; `problem` then says why."""

    op: Op | None
    text: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An answer of the proposer."""

    id: str
    """Made from the source's id: the same run makes the same ids."""
    task: Task
    pair: Pair
    target: str
    """Id of the skill that was shown to the group, "" when none was."""
    target_text: str
    call: Call
    parsed: Parsed
    may_update: bool = True
    """False: the bank only grows."""
    choices: tuple[Choice, ...] = ()
    """What the parts of a chosen answer were drawn from; starts count from the first token of the prompt."""

    @property
    def legal(self) -> tuple[Op, ...]:
        """UPDATE needs a skill to update."""
        return ("ADD", "UPDATE", "KEEP") if self.target and self.may_update else ("ADD", "KEEP")

    @property
    def is_edit(self) -> bool:
        return self.parsed.op in ("ADD", "UPDATE")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a critic said. None = it was not asked, or had no answer (`error` then says why)."""

    op_ok: bool | None
    content_ok: bool | None
    """None for KEEP, which has no content."""
    reasons: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Alignment:
    """How the skill text moves the current policy's log-likelihood of the references (UniSkill eq. for R_align).

    `plus[i]` is Δ(τ+_i) = J(τ+_i; new skill) - J(τ+_i; old skill), nats per payload token, averaged over scorable steps;
    `minus[j]` the same for the failures.
    """

    plus: tuple[float, ...]
    minus: tuple[float, ...]
    coverage: float = 1.0
    """Smallest share of scorable steps (those whose action is a payload of the sampled tokens) over the references."""

    @property
    def delta_plus(self) -> float:
        return fmean(self.plus)

    @property
    def delta_minus(self) -> float:
        return fmean(self.minus)

    @property
    def r_align(self) -> float:
        return self.delta_plus - self.delta_minus

    @property
    def error(self) -> float | None:
        """Standard error of R_align over the references; None with fewer than two on a side."""
        if min(len(self.plus), len(self.minus)) < 2:
            return None
        return sqrt(variance(self.plus) / len(self.plus) + variance(self.minus) / len(self.minus))


@dataclass(frozen=True, slots=True)
class Rewards:
    """The parts of a proposal's reward. None = not known (left out of the total)."""

    format: float
    op: float | None = None
    skill: float | None = None
    needed: tuple[str, ...] = ("format",)
    """Parts that this proposal must have to be complete."""

    @property
    def total(self) -> float:
        return self.format + (self.op or 0.0) + (self.skill or 0.0)

    @property
    def complete(self) -> bool:
        return all(getattr(self, part) is not None for part in self.needed)


@dataclass(frozen=True, slots=True)
class Judged:
    """A proposal with all that was found out about it."""

    proposal: Proposal
    verdict: Verdict | None
    alignment: Alignment | None
    rewards: Rewards
    duplicate_of: str = ""
    """What its text repeats: a skill's id or an earlier proposal's, "" = nothing."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an edit enters the bank, and why."""

    accepted: bool
    reason: str
    """One word of the funnel: "accepted", "malformed", "keep", "critic", "missing", "duplicate", "delta_plus", "r_align",
    "confidence", "calibration", "superseded", "warm-up"."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one task in one step, with the skill they were shown."""

    task: Task
    trajectories: Sequence[Trajectory] = field(default=())
    skill: str = ""
    skill_text: str = ""
