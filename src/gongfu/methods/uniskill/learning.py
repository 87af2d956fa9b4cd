"""The proposals' share of an optimiser step: REINFORCE++ on complete ones, KL on all, and the support floor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gongfu.core.records import Row
from gongfu.credit.advantages import whiten
from gongfu.credit.batch import Example
from gongfu.credit.losses import PolicyLossConfig, policy_loss
from gongfu.credit.support import SupportLoss, support_rows
from gongfu.engine.protocol import Engine, LossFn, Tokenizer
from gongfu.methods.uniskill.answers import LABELS, ProposalFormat
from gongfu.methods.uniskill.records import Judged, Proposal
from gongfu.methods.update import LossSum, deal

COMPONENT = "proposer"
LATE = "proposer_late"
"""Proposals of earlier steps: their ratio is not 1 at the first step, so the gap to the sampler is not measured on them."""


@dataclass(frozen=True)
class ProposalLoss:
    """Settings of the proposals' loss."""

    policy: PolicyLossConfig
    """Of the complete proposals: every row weighs the same, whatever its length."""
    weight: float
    """λ, beside the actions' loss."""
    kl: float
    """Weight of the KL to the base model over the tokens of all proposals."""
    support: float
    p_min: float
    scale: Literal["per_step", "per_update"]


@dataclass(frozen=True, slots=True)
class Late:
    """A proposal of an earlier step whose reward is known now."""

    row: Row
    logprobs: tuple[float, ...]
    """Of its answer, when it was sampled."""
    total: float


@dataclass(frozen=True)
class Proposals:
    """Implements `gongfu.methods.update.Part`. `complete` are the ids of the rows that have a whole reward."""

    examples: Sequence[Example]
    complete: frozenset[str]
    support: dict[str, list[Row]]
    """Proposal row id -> its support rows; rows whose operation cannot be placed have none."""
    loss: ProposalLoss

    @property
    def component(self) -> str:
        return COMPONENT

    @property
    def tokens(self) -> int:
        return sum(e.row.targets for e in self.examples)

    def __len__(self) -> int:
        return len(self.examples)

    def slices(self, count: int, rng: random.Random) -> list[tuple[list[Row], LossFn]]:
        return [self._slice(part) for part in deal(self.examples, count, rng) if part]

    def _slice(self, part: Sequence[Example]) -> tuple[list[Row], LossFn]:
        s = self.loss
        whole = s.scale == "per_step"
        paid = [e for e in part if e.row.id in self.complete]
        floor = [row for e in part for row in self.support.get(e.row.id, [])]
        losses: list[tuple[frozenset[str], LossFn, float]] = []

        def add(ids: Sequence[str], loss: LossFn, weight: float, of: int) -> None:
            losses.append((frozenset(ids), loss, s.weight * weight * (1.0 if whole else len(ids) / of)))

        for own in ([e for e in paid if e.component == COMPONENT], [e for e in paid if e.component == LATE]):
            if own:
                share = len(own) / len(paid) if whole else 1.0
                add([e.row.id for e in own], policy_loss(own, s.policy), share, len(self.complete))
        if s.kl:
            config = PolicyLossConfig(aggregation="token-mean", kl_coefficient=1.0, kl_estimator="k3")
            flat = [replace(e, component="proposer_kl", advantages=(0.0,) * e.row.targets) for e in part]
            add([e.row.id for e in part], policy_loss(flat, config), s.kl, len(self.examples))
        if floor and s.support:
            everything = sum(map(len, self.support.values()))
            add([row.id for row in floor], SupportLoss(floor, s.p_min, component=COMPONENT), s.support, everything)
        wanted = frozenset().union(*(ids for ids, _, _ in losses))
        return [row for row in [*(e.row for e in part), *floor] if row.id in wanted], LossSum(losses)


def proposal_rows(proposals: Sequence[Proposal]) -> list[Row]:
    """Prompt and answer of each, the answer scored."""
    return [
        Row(
            p.id,
            p.call.prompt + p.call.response,
            (False,) * len(p.call.prompt) + (True,) * len(p.call.response),
            p.call.temperature,
            choices=p.choices,
        )
        for p in proposals
    ]


def advantages(judged: Sequence[Judged], late: Sequence[Late] = ()) -> dict[str, float]:
    """Proposal id -> whitened total reward over the complete and the late ones of the step (REINFORCE++; one alone has 0)."""
    totals = {j.proposal.id: j.rewards.total for j in judged if j.rewards.complete} | {one.row.id: one.total for one in late}
    if len(totals) < 2:
        return dict.fromkeys(totals, 0.0)
    whitened = whiten([[total] for total in totals.values()], std="unbiased", epsilon=1e-8)
    return {name: float(values[0]) for name, values in zip(totals, whitened, strict=True)}


def make_part(
    judged: Sequence[Judged], engine: Engine, format: ProposalFormat, loss: ProposalLoss, late: Sequence[Late] = ()
) -> Proposals | None:
    """The part of a step's proposals and of earlier ones that are paid late, None when there is nothing to learn from them."""
    paid = advantages(judged, late)
    rows = [*proposal_rows([j.proposal for j in judged]), *(one.row for one in late)]
    reference = [tuple(t.tolist()) for t in engine.logprobs(rows, adapter=None)] if loss.kl and rows else [None] * len(rows)
    examples, support = [], {}
    for one, row, ref in zip(late, rows[len(judged) :], reference[len(judged) :], strict=True):
        examples.append(Example(row, LATE, (paid[row.id],) * row.targets, one.logprobs, ref))
    for j, row, ref in zip(judged, rows, reference, strict=False):
        call = j.proposal.call
        assert call.logprobs is not None
        advantage = paid.get(j.proposal.id, 0.0)
        examples.append(Example(row, COMPONENT, (advantage,) * row.targets, call.logprobs, ref))
        if loss.support and j.proposal.parsed.op is not None:
            found = decision_rows(j.proposal, engine.tokenizer, format)
            if found:
                support[row.id] = found
    if not any(paid.values()) and not support and not loss.kl:
        return None
    return Proposals(examples, frozenset(paid), support, loss)


def decision_rows(proposal: Proposal, tokenizer: Tokenizer, format: ProposalFormat) -> list[Row]:
    """Support rows at the place where the operation was sampled; none when it cannot be told where that is.

    The label must begin there with its usual first token: then every legal label could have been sampled instead.
    """
    op, call = proposal.parsed.op, proposal.call
    firsts = {legal: tokenizer.encode(LABELS[format][legal])[0] for legal in proposal.legal}
    if op not in firsts or firsts[op] not in call.response:
        return []
    place = call.response.index(firsts[op])
    prompt = call.prompt + call.response[:place]
    return support_rows(prompt, firsts, id=proposal.id, temperature=call.temperature)
