"""What must not change an advantage or a loss: the order of the batch, its split into micro-batches, a shift of the rewards."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gongfu.core import Row
from gongfu.credit.advantages import grpo, reinforce_plus_plus, reinforce_plus_plus_baseline, rloo
from gongfu.credit.batch import Example
from gongfu.credit.losses import PolicyLossConfig, policy_loss, sft_loss

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
values = st.integers(-40, 40).map(lambda k: k / 8)  # exact in binary: a shift makes no new rounding differences
batches = st.lists(st.tuples(st.sampled_from("ab"), st.lists(values, min_size=1, max_size=4)), min_size=2, max_size=8)
statistics = st.sampled_from(("trajectory", "step"))
stds = st.sampled_from(("unbiased", "population", "none"))


def estimators(returns, groups, over, std):
    tokens = [[1 + (7 * i + t) % 3 for t in range(len(r))] for i, r in enumerate(returns)]
    return {
        "grpo": grpo(returns, groups, std=std, statistics=over),
        "rloo": rloo(returns, groups, statistics=over),
        "baseline": reinforce_plus_plus_baseline(returns, groups, tokens=tokens, statistics=over, std=std),
    }


@given(batches, st.randoms(use_true_random=False), statistics, stds)
def test_order_of_the_batch_changes_no_bit(batch, random, over, std):
    order = list(range(len(batch)))
    random.shuffle(order)
    groups, returns = zip(*batch, strict=True)
    straight = grpo(returns, groups, std=std, statistics=over), rloo(returns, groups, statistics=over)
    shuffled_returns, shuffled_groups = [returns[i] for i in order], [groups[i] for i in order]
    shuffled = (
        grpo(shuffled_returns, shuffled_groups, std=std, statistics=over),
        rloo(shuffled_returns, shuffled_groups, statistics=over),
    )
    for a, b in zip(straight, shuffled, strict=True):
        assert [a[i].tolist() for i in order] == [x.tolist() for x in b]
    scores = [r[0] for r in returns]
    a = reinforce_plus_plus(scores, returns, beta=0.5)
    b = reinforce_plus_plus([scores[i] for i in order], shuffled_returns, beta=0.5)
    assert [a[i].tolist() for i in order] == [x.tolist() for x in b]


@given(batches, statistics, stds, st.integers(-64, 64))
def test_a_shift_of_the_rewards_changes_nothing(batch, over, std, shift):
    groups, returns = zip(*batch, strict=True)
    moved = [[r + shift for r in values] for values in returns]
    for name, before in estimators(returns, groups, over, std).items():
        after = estimators(moved, groups, over, std)[name]
        np.testing.assert_allclose(np.concatenate(after), np.concatenate(before), atol=1e-9)


@given(batches, statistics, st.sampled_from((0.25, 4.0, 1024.0)))
def test_a_scale_of_the_rewards_passes_through_unless_standardised(batch, over, scale):
    groups, returns = zip(*batch, strict=True)
    scaled = [[r * scale for r in values] for values in returns]
    for std, factor in (("none", scale), ("unbiased", 1.0), ("population", 1.0)):
        before = grpo(returns, groups, std=std, statistics=over, epsilon=0)
        after = grpo(scaled, groups, std=std, statistics=over, epsilon=0)
        np.testing.assert_allclose(np.concatenate(after), factor * np.concatenate(before), rtol=1e-9, atol=1e-9)
    before, after = rloo(returns, groups, statistics=over), rloo(scaled, groups, statistics=over)
    np.testing.assert_allclose(np.concatenate(after), scale * np.concatenate(before), rtol=1e-9, atol=1e-9)


@given(batches, statistics)
def test_each_unit_pulls_equally(batch, over):
    """Advantages of a group sum to zero, each unit of the statistics weighing the same."""
    groups, returns = zip(*batch, strict=True)
    advantages = grpo(returns, groups, std="none", statistics=over)
    for group in set(groups):
        own = [a for a, g in zip(advantages, groups, strict=True) if g == group]
        assert sum(a.mean() if over == "trajectory" else a.sum() for a in own) == pytest.approx(0, abs=1e-9)


@st.composite
def examples(draw):
    made = []
    numbers = st.floats(-2, 2)
    for i in range(draw(st.integers(2, 6))):
        n = draw(st.integers(1, 4))
        drawn = [tuple(draw(st.lists(numbers, min_size=n, max_size=n))) for _ in range(3)]
        row = Row(f"row-{i}", tuple(range(n + 1)), (False, *(True,) * n))
        made.append(Example(row, draw(st.sampled_from(("actor", "proposer"))), *drawn, weight=draw(st.floats(0, 2))))
    return made


def total(loss, rows, cuts):
    """Loss, gradients by row and summed metrics over micro-batches that end at `cuts`."""
    logprobs = {
        row.id: torch.linspace(-2, 0.3 * len(row.id) - 1, row.targets, dtype=torch.float64, requires_grad=True) for row in rows
    }
    loss_sum, metrics = 0.0, {}
    borders = [0, *sorted(cuts), len(rows)]
    for start, end in itertools.pairwise(borders):
        if part := rows[start:end]:
            value, found = loss(part, [logprobs[row.id] for row in part])
            value.backward()
            loss_sum += value.item()
            metrics |= {k: metrics.get(k, 0.0) + v for k, v in found.items()}
    return loss_sum, {name: t.grad.tolist() for name, t in logprobs.items()}, metrics


@settings(max_examples=60, deadline=None)
@given(examples(), st.sampled_from(AGGREGATIONS), st.randoms(use_true_random=False))
def test_micro_batches_and_order_change_nothing(batch, aggregation, random):
    config = PolicyLossConfig(aggregation=aggregation, norm_length=7, dual_clip=3.0, kl_coefficient=0.1)
    rows = [e.row for e in batch]
    shuffled = random.sample(batch, len(batch))
    cuts = [random.randint(0, len(rows)) for _ in range(2)]
    pairs = [
        (policy_loss(batch, config), policy_loss(shuffled, config)),
        (sft_loss(rows, aggregation=aggregation, norm_length=7),) * 2,
    ]
    for whole, other in pairs:
        loss, gradients, metrics = total(whole, rows, [])
        split_loss, split_gradients, split_metrics = total(other, [e.row for e in shuffled], cuts)
        assert split_loss == pytest.approx(loss, abs=1e-12)
        assert split_metrics == pytest.approx(metrics, abs=1e-12)
        assert split_gradients.keys() == gradients.keys()
        for name, gradient in gradients.items():
            assert split_gradients[name] == pytest.approx(gradient, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(examples())
def test_gradient_is_the_derivative_of_the_loss(batch):
    rows = [e.row for e in batch]
    loss = policy_loss(batch, PolicyLossConfig(kl_coefficient=0.1, kl_estimator="k2"))
    at = [torch.full((row.targets,), -0.513, dtype=torch.float64, requires_grad=True) for row in rows]
    assert torch.autograd.gradcheck(lambda *logprobs: loss(rows, logprobs)[0], at, eps=1e-7, atol=1e-4)
