"""Edits that are paid by what came of them: success of later episodes with the skill less success without it.

The peer that R_align competes with (delayed reuse, as in Complementary RL, arXiv 2603.17621): nothing is measured when an edit
is proposed. Once its version was played `uses` times with it, and at least once without, the difference is its skill reward and
its answer joins the proposals of that step, in ratio to the policy that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gongfu.core.records import Choice, Row, from_json
from gongfu.methods.uniskill.learning import Late
from gongfu.methods.uniskill.records import Alignment, Decision, Judged, Proposal
from gongfu.skills.bank import SkillBank


@dataclass(frozen=True, slots=True)
class Waiting:
    """An edit in the bank that is not valued yet; all that a checkpoint must keep of it."""

    id: str
    version: str
    """Digest of the version it made."""
    step: int
    paid: float
    """Its reward for form and operation."""
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    choices: tuple[Choice, ...] = ()


@dataclass
class OutcomeValuer:
    """Values edits later. Implements `gongfu.methods.uniskill.method.Valuer`: at the time of the proposal nothing is known."""

    bank: SkillBank
    uses: int
    """Episodes with a skill before it is valued."""
    patience: int
    """Steps after which an edit that was not used so often is given up."""
    eta: float
    """Bound on the difference, as for R_align."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """By proposal."""

    def value(self, proposals: Sequence[Proposal], step: int) -> list[Alignment | None]:
        return [None] * len(proposals)

    def add(self, decided: Sequence[tuple[Judged, Decision]], made: Mapping[str, str], step: int) -> None:
        """Keep the edits that entered the bank; `made`: proposal id -> digest of the version it made there."""
        for judged, decision in decided:
            if decision.accepted:
                p = judged.proposal
                assert p.call.logprobs is not None
                self.waiting[p.id] = Waiting(
                    p.id,
                    made[p.id],
                    step,
                    judged.rewards.total,
                    p.call.prompt,
                    p.call.response,
                    p.call.logprobs,
                    p.call.temperature,
                    p.choices,
                )

    def due(self, step: int) -> tuple[list[Late], dict[str, float]]:
        """The edits that the episodes before `step` say enough about, with their whole reward. They wait no longer."""
        versions, counts = self.bank.tallies(step, sorted({w.version for w in self.waiting.values()}))
        seen = dict(zip(versions, counts.tolist(), strict=True))
        found: list[Late] = []
        gains: list[float] = []
        given_up = 0
        for w in list(self.waiting.values()):
            with_n, with_success, without_n, without_success, *_ = seen.get(w.version, (0, 0, 0, 0))
            if with_n >= self.uses and without_n:
                gain = with_success / with_n - without_success / without_n
                gains.append(gain)
                found.append(Late(_row(w), w.logprobs, w.paid + min(max(gain, -self.eta), self.eta)))
            elif step - w.step >= self.patience:
                given_up += 1
            else:
                continue
            del self.waiting[w.id]
        metrics = {"proposals/valued_late": float(len(found)), "proposals/given_up": float(given_up)}
        if gains:
            metrics["proposals/late_gain"] = sum(gains) / len(gains)
        return found, metrics | {"proposals/waiting": float(len(self.waiting))}

    def state(self) -> list[dict[str, Any]]:
        return [asdict(w) for w in self.waiting.values()]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        tuples = ("prompt", "response", "logprobs")
        found = [
            Waiting(**{**w, **{name: tuple(w[name]) for name in tuples}, "choices": tuple(map(_choice, w["choices"]))})
            for w in state
        ]
        self.waiting = {w.id: w for w in found}


def _row(w: Waiting) -> Row:
    scored = (False,) * len(w.prompt) + (True,) * len(w.response)
    return Row(w.id, w.prompt + w.response, scored, w.temperature, choices=w.choices)


def _choice(saved: Mapping[str, Any]) -> Choice:
    return from_json(Choice, saved)
