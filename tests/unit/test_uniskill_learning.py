"""The proposals' share of an update: advantages, normalisers, KL, support, and what the scale does."""

from __future__ import annotations

import random
from dataclasses import replace
from math import exp, log, sqrt
from typing import ClassVar

import pytest
import torch

from gongfu.core.records import Call
from gongfu.credit.losses import PolicyLossConfig
from gongfu.methods.uniskill.learning import (
    Late,
    ProposalLoss,
    Proposals,
    advantages,
    decision_rows,
    make_part,
    proposal_rows,
)
from gongfu.methods.uniskill.records import Rewards
from uniskill_cases import proposal

POLICY = PolicyLossConfig(aggregation="seq-mean-token-mean")
LOSS = ProposalLoss(POLICY, weight=0.5, kl=0.0, support=0.0, p_min=0.1, scale="per_step")


class Words:
    """One token a word: add = 10, update = 11, keep = 12, anything else its length."""

    stop_ids = (1,)
    ids: ClassVar = {"add": 10, "update": 11, "keep": 12}

    def encode(self, text):
        return [self.ids.get(word, 20 + len(word)) for word in text.split()]


class Engine:
    tokenizer = Words()

    def logprobs(self, rows, *, adapter):
        assert adapter is None
        return [torch.full((row.targets,), -2.0) for row in rows]


def judged(name, total, *, op="ADD", complete=True, response=(10, 30, 1), target=""):
    from gongfu.methods.uniskill.records import Judged

    p = proposal(op, id=name, target=target)
    p = replace(p, call=Call("proposer", "actor", 0, (5, 6), response, (-1.0,) * len(response), "", "stop"))
    rewards = Rewards(total, needed=("format",) if complete else ("format", "op"))
    return Judged(p, None, None, rewards)


def test_advantages_are_the_whitened_rewards_of_the_specification():
    rewards = (0.15, 0.10, -0.05, 0.05, 0.0)
    found = advantages([judged(str(i), r) for i, r in enumerate(rewards)])
    assert list(found.values()) == pytest.approx([1.26491, 0.632455, -1.26491, 0.0, -0.632455], abs=1e-4)


def test_one_complete_proposal_has_no_advantage_and_incomplete_ones_do_not_count():
    found = advantages([judged("a", 0.1), judged("b", 9.0, complete=False)])
    assert found == {"a": 0.0}
    mean = advantages([judged("a", 0.1), judged("b", 9.0, complete=False), judged("c", 0.3)])
    assert mean == pytest.approx({"a": -sqrt(0.5), "c": sqrt(0.5)}, abs=1e-4)


def value(part, count=1, seed=0):
    """Sum of the losses of all slices when the policy has not moved: every ratio 1, every log-prob -1."""
    total = 0.0
    for rows, loss in part.slices(count, random.Random(seed)):
        logprobs = [torch.full((row.targets,), -1.0, requires_grad=True) for row in rows]
        total += float(loss(rows, logprobs)[0])
    return total


def test_every_proposal_weighs_the_same_whatever_its_length():
    part = make_part([judged("a", 0.2), judged("b", 0.0, response=(10, *range(30, 50), 1))], Engine(), "plain", LOSS)
    (rows, loss) = part.slices(1, random.Random(0))[0]
    logprobs = [torch.full((row.targets,), -1.0, requires_grad=True) for row in rows]
    loss(rows, logprobs)[0].backward()
    pull = {row.id: float(lp.grad.sum()) for row, lp in zip(rows, logprobs, strict=True)}
    assert pull == pytest.approx({"a": -0.5 * sqrt(0.5) / 2, "b": 0.5 * sqrt(0.5) / 2}, abs=1e-4)  # λ A / N


def test_per_step_is_a_full_mean_in_every_optimiser_step_and_per_update_one_in_all():
    judgments = [judged(str(i), i / 10) for i in range(8)]
    whole = make_part(judgments, Engine(), "plain", replace(LOSS, kl=0.1))
    once = make_part(judgments, Engine(), "plain", replace(LOSS, kl=0.1, scale="per_update"))
    assert value(once, 4) == pytest.approx(value(once, 1)) == pytest.approx(value(whole, 1))
    assert value(whole, 4) == pytest.approx(4 * value(whole, 1), rel=1e-4)
    kl = 0.5 * 0.1 * (torch.expm1(torch.tensor(-1.0)).item() + 1.0)  # k3 at log π - log π_ref = 1
    assert value(whole, 1) == pytest.approx(kl)


def test_kl_covers_incomplete_proposals_too():
    def pulled(kl):
        part = make_part([judged("a", 0.1), judged("b", 0.0, complete=False)], Engine(), "plain", replace(LOSS, kl=kl))
        return None if part is None else {row.id for row in part.slices(1, random.Random(0))[0][0]}

    assert pulled(0.1) == {"a", "b"} and pulled(0.0) is None


def test_support_rows_stand_where_the_operation_was_sampled():
    rows = decision_rows(judged("p", 0, target="s").proposal, Words(), "plain")
    assert [(row.meta["op"], row.tokens) for row in rows] == [
        ("ADD", (5, 6, 10)),
        ("UPDATE", (5, 6, 11)),
        ("KEEP", (5, 6, 12)),
    ]
    assert [row.meta["op"] for row in decision_rows(judged("p", 0).proposal, Words(), "plain")] == ["ADD", "KEEP"]


def test_no_support_where_the_operation_cannot_be_placed():
    assert decision_rows(judged("p", 0, response=(99, 30, 1)).proposal, Words(), "plain") == []


def test_the_support_floor_is_part_of_the_loss():
    settings = replace(LOSS, support=0.01)
    part = make_part([judged("a", 0.1)], Engine(), "plain", settings)
    assert isinstance(part, Proposals) and len(part.support["a"]) == 2
    (rows, loss) = part.slices(1, random.Random(0))[0]
    given = {"a/ADD": log(0.99), "a/KEEP": log(0.01)}
    logprobs = [torch.full((row.targets,), given.get(row.id, -1.0), requires_grad=True) for row in rows]
    value, metrics = loss(rows, logprobs)
    assert float(value) == pytest.approx(0.5 * 0.01 * (log(0.1) - log(0.01)) ** 2 / 2, rel=1e-4)
    assert metrics["proposer/below_floor"] == 0.5


def late(name, total, logprob=-1.0):
    (row,) = proposal_rows([judged(name, total).proposal])
    return Late(row, (logprob,) * row.targets, total)


def test_a_proposal_of_an_earlier_step_is_paid_with_the_fresh_ones_in_ratio_to_its_own_policy():
    part = make_part([judged("a", 0.0)], Engine(), "plain", LOSS, [late("b", 1.0, logprob=-1.1)])
    (rows, loss) = part.slices(1, random.Random(0))[0]
    logprobs = [torch.full((row.targets,), -1.0, requires_grad=True) for row in rows]
    _, metrics = loss(rows, logprobs)
    assert metrics["proposer/log_ratio_abs"] == 0 and metrics["proposer_late/log_ratio_abs"] == pytest.approx(0.1)
    loss(rows, logprobs)[0].backward()
    pull = {row.id: float(lp.grad.sum()) for row, lp in zip(rows, logprobs, strict=True)}
    assert pull == pytest.approx({"a": 0.5 * sqrt(0.5) / 2, "b": -0.5 * sqrt(0.5) / 2 * exp(0.1)}, abs=1e-4)  # λ A ρ / N
    once = make_part([judged("a", 0.0)], Engine(), "plain", replace(LOSS, scale="per_update"), [late("b", 1.0)])
    whole = make_part([judged("a", 0.0)], Engine(), "plain", LOSS, [late("b", 1.0)])
    assert value(once) == pytest.approx(value(whole), abs=1e-6)


def test_nothing_to_learn_gives_no_part():
    assert make_part([judged("a", 0.1)], Engine(), "plain", LOSS) is None
