"""Losses, KL estimators and aggregations worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from gongfu.core import Row
from gongfu.credit.batch import CreditError, Example, row_scales
from gongfu.credit.losses import PolicyLossConfig, clipped_surrogate, kl_estimate, policy_loss, sft_loss

OLD = -1.5


def row(name: str, targets: int) -> Row:
    return Row(name, tuple(range(targets + 2)), (False, False, *(True,) * targets))


def example(name: str, advantages: list[float], *, component: str = "actor", weight: float = 1.0, ref=None) -> Example:
    return Example(row(name, len(advantages)), component, tuple(advantages), (OLD,) * len(advantages), ref, weight)


def at_ratios(*ratios: float) -> torch.Tensor:
    return torch.tensor([OLD + math.log(r) for r in ratios], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient", "acting"),
    [
        # dL / dlogprob = -A ρ where the ratio is free, 0 where a clip holds it
        (1.0, 2.0, -1.2, 0.0, "clip_high"),
        (1.0, 0.5, -0.5, -0.5, None),
        (-1.0, 0.5, 0.8, 0.0, "clip_low"),
        (-1.0, 5.0, 3.0, 0.0, "clip_dual"),
        (-1.0, 2.0, 2.0, 2.0, None),
        (2.0, 1.0, -2.0, -2.0, None),
        (0.0, 9.0, 0.0, 0.0, None),
    ],
)
def test_clipping(advantage, ratio, loss, gradient, acting):
    logprobs = at_ratios(ratio)
    compute = policy_loss([example("r", [advantage])], PolicyLossConfig(dual_clip=3.0))
    got, metrics = compute([row("r", 1)], [logprobs])
    got.backward()
    assert got.item() == pytest.approx(loss)
    assert logprobs.grad.item() == pytest.approx(gradient)
    acted = {name for name in ("clip_low", "clip_high", "clip_dual") if metrics[f"actor/{name}"]}
    assert acted == ({acting} if acting else set())
    assert metrics["actor/log_ratio_abs"] == pytest.approx(abs(math.log(ratio)))


@pytest.mark.parametrize(("advantage", "loss", "moves"), [(1.0, -1.0004, False), (-1.0, 1.0050125, True)])
def test_the_ratio_of_a_sequence(advantage, loss, moves):
    """Log-ratios 0.02 and -0.01: s = exp(0.005) = 1.00501, clipped to 1.0004 where the advantage is positive."""
    logprobs = at_ratios(math.exp(0.02), math.exp(-0.01))
    config = PolicyLossConfig(clip_low=3e-4, clip_high=4e-4, ratio="sequence", aggregation="seq-mean-token-mean")
    got, metrics = policy_loss([example("r", [advantage] * 2)], config)([row("r", 2)], [logprobs])
    got.backward()
    assert got.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad.tolist() == pytest.approx([1.0050125 / 2 if moves else 0.0] * 2, abs=1e-6)
    assert metrics["actor/clip_high"] == (0.0 if moves else 1.0)


def test_every_row_has_its_own_sequence_ratio_however_the_batch_is_split():
    config = PolicyLossConfig(ratio="sequence", aggregation="seq-mean-token-mean")
    compute = policy_loss([example("a", [-1.0] * 2), example("b", [-1.0])], config)
    a, b = at_ratios(1.1, 0.9), at_ratios(1.05)
    whole = compute([row("a", 2), row("b", 1)], [a, b])[0].item()
    assert whole == pytest.approx(compute([row("a", 2)], [a])[0].item() + compute([row("b", 1)], [b])[0].item())
    assert whole == pytest.approx((math.sqrt(1.1 * 0.9) + 1.05) / 2)


def test_without_dual_clip_the_loss_is_unbounded():
    got, metrics = policy_loss([example("r", [-1.0])], PolicyLossConfig())([row("r", 1)], [at_ratios(5.0)])
    assert got.item() == pytest.approx(5.0)
    assert metrics["actor/clip_dual"] == 0


def test_bounds_are_separate():
    loss, low, high, _ = clipped_surrogate(
        torch.tensor([0.25, 0.25, 0.85, 0.75]).log(), torch.tensor([-1.0, 1.0, -1.0, -1.0]), clip_low=0.2, clip_high=0.28
    )
    assert loss.tolist() == pytest.approx([0.8, -0.25, 0.85, 0.8])
    assert (low.tolist(), high.tolist()) == ([True, False, False, True], [False] * 4)
    loss, _, high, _ = clipped_surrogate(torch.tensor([1.25]).log(), torch.tensor([1.0]), clip_low=0.2, clip_high=0.28)
    assert (loss.tolist(), high.tolist()) == (pytest.approx([-1.25]), [False])


def test_a_runaway_ratio_gives_no_nan_gradient():
    logprobs = torch.tensor([OLD + 1000.0], requires_grad=True)
    loss, _ = policy_loss([example("r", [1.0])], PolicyLossConfig())([row("r", 1)], [logprobs])
    loss.backward()
    assert loss.item() == pytest.approx(-1.2)
    assert logprobs.grad.item() == 0


@pytest.mark.parametrize(
    ("d", "k1", "k2", "k3"),
    [(-1.0, -1.0, 0.5, math.e - 2), (0.1, 0.1, 0.005, 0.0048374), (3.0, 3.0, 4.5, 2.0497871), (0.0, 0.0, 0.0, 0.0)],
)
def test_kl_estimators(d, k1, k2, k3):
    for estimator, value, gradient in (("k1", k1, 1.0), ("k2", k2, d), ("k3", k3, 1 - math.exp(-d))):
        log_ratio = torch.tensor([d], dtype=torch.float64, requires_grad=True)
        got = kl_estimate(log_ratio, estimator)
        got.sum().backward()
        assert got.item() == pytest.approx(value, abs=1e-7)
        assert log_ratio.grad.item() == pytest.approx(gradient)


def test_k3_still_pulls_where_the_policy_has_fallen_far_below_the_reference():
    log_ratio = torch.tensor([-6.0], dtype=torch.float64, requires_grad=True)
    kl_estimate(log_ratio, "k3").sum().backward()
    assert log_ratio.grad.item() == pytest.approx(1 - math.exp(6))


@pytest.mark.parametrize(("estimator", "value"), [("k1", -1.0), ("k2", 0.5), ("k3", math.e - 2)])
def test_kl_enters_the_loss_with_its_coefficient(estimator, value):
    made = example("r", [2.0], ref=(OLD + 1.0,))
    config = PolicyLossConfig(kl_coefficient=0.1, kl_estimator=estimator)
    got, metrics = policy_loss([made], config)([row("r", 1)], [at_ratios(1.0)])
    assert got.item() == pytest.approx(-2.0 + 0.1 * value)
    assert metrics["actor/policy_loss"] == pytest.approx(-2.0)
    assert metrics["actor/kl_loss"] == pytest.approx(0.1 * value)
    assert (metrics["actor/kl_k1"], metrics["actor/kl_k3"]) == pytest.approx((-1.0, math.e - 2))


def test_kl_is_measured_without_being_paid():
    got, metrics = policy_loss([example("r", [2.0], ref=(OLD + 1.0,))], PolicyLossConfig())([row("r", 1)], [at_ratios(1.0)])
    assert got.item() == pytest.approx(-2.0)
    assert metrics["actor/kl_k1"] == pytest.approx(-1.0)
    assert "actor/kl_loss" not in metrics


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # token losses at ρ = 1: row a -1, -1, -1; row b -4
        ("token-mean", -7 / 4),
        ("seq-mean-token-mean", -(1 + 4) / 2),
        ("seq-mean-token-sum", -(3 + 4) / 2),
        ("seq-mean-token-sum-norm", -(3 + 4) / 2 / 10),
    ],
)
def test_aggregation(aggregation, expected):
    batch = [example("a", [1.0] * 3), example("b", [4.0])]
    config = PolicyLossConfig(aggregation=aggregation, norm_length=10)
    rows, logprobs = [e.row for e in batch], [at_ratios(1, 1, 1), at_ratios(1)]
    got, metrics = policy_loss(batch, config)(rows, logprobs)
    assert got.item() == pytest.approx(expected)
    assert metrics["actor/tokens"] == 4
    supervised, measured = sft_loss(rows, aggregation=aggregation, norm_length=10)(rows, logprobs)
    assert supervised.item() == pytest.approx(
        {
            "token-mean": 1.5,
            "seq-mean-token-mean": 1.5,
            "seq-mean-token-sum": 4 * 1.5 / 2,
            "seq-mean-token-sum-norm": 4 * 1.5 / 20,
        }[aggregation]
    )
    assert measured == pytest.approx({"sft/tokens": 4, "sft/sft_loss": supervised.item(), "sft/nll": 1.5})


def test_components_are_normalised_on_their_own_and_weights_are_not_normalised_away():
    batch = [example("a", [1.0] * 3), example("p", [4.0], component="proposer", weight=0.5)]
    got, metrics = policy_loss(batch, PolicyLossConfig())([e.row for e in batch], [at_ratios(1, 1, 1), at_ratios(1)])
    assert got.item() == pytest.approx(-1 - 0.5 * 4)
    assert metrics["actor/policy_loss"] == pytest.approx(-1)
    assert metrics["proposer/policy_loss"] == pytest.approx(-2)
    assert (metrics["actor/tokens"], metrics["proposer/tokens"]) == (3, 1)


def test_sft_weights():
    rows = [row("a", 1), row("b", 1)]
    got, _ = sft_loss(rows, weights=[1.0, 0.0])(rows, [at_ratios(1), at_ratios(1)])
    assert got.item() == pytest.approx(1.5 / 2)


def test_means_are_over_the_whole_batch_and_the_maximum_is_kept():
    batch = [example("a", [1.0]), example("b", [1.0])]
    loss = policy_loss(batch, PolicyLossConfig())
    _, first = loss([batch[0].row], [at_ratios(math.exp(-3))])
    _, second = loss([batch[1].row], [at_ratios(math.e)])
    assert first["actor/log_ratio_abs"] + second["actor/log_ratio_abs"] == pytest.approx((1 + 3) / 2)
    assert first["actor/clip_high"] + second["actor/clip_high"] == 1 / 2
    assert loss.log_ratio_max == pytest.approx({"actor": 3.0})


def test_half_precision_logprobs_are_widened():
    logprobs = torch.full((1,), OLD, dtype=torch.bfloat16, requires_grad=True)
    loss, _ = policy_loss([example("r", [1.0])], PolicyLossConfig())([row("r", 1)], [logprobs])
    assert loss.dtype == torch.float32


def run(loss, rows, logprobs):
    return lambda: loss(rows, logprobs)


def test_a_loss_that_is_not_finite_names_its_rows():
    batch = [example(n, [1.0]) for n in "abc"]
    loss = policy_loss(batch, PolicyLossConfig())
    for bad in (math.nan, -math.inf):
        with pytest.raises(CreditError, match="rows b; no gradient"):
            loss([e.row for e in batch], [at_ratios(1), torch.tensor([bad]).double(), at_ratios(1)])
    with pytest.raises(CreditError, match="rows b; no gradient"):
        sft_loss([e.row for e in batch])([batch[1].row], [torch.tensor([-math.inf])])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: policy_loss([], PolicyLossConfig()), "at least one example"),
        (lambda: policy_loss([example("a", [1.0])] * 2, PolicyLossConfig()), "row a occurs twice"),
        (
            lambda: policy_loss([example("a", [1.0])], PolicyLossConfig(kl_coefficient=0.1)),
            "actor: rows without ref_logprobs.*a",
        ),
        (
            lambda: policy_loss([example("a", [1.0]), example("b", [1.0], ref=(OLD,))], PolicyLossConfig()),
            "rows without ref_logprobs.*a",
        ),
        (run(policy_loss([example("a", [1.0])], PolicyLossConfig()), [row("b", 1)], [at_ratios(1)]), "not in the batch.*b"),
        (
            run(policy_loss([example("a", [1.0])], PolicyLossConfig()), [row("a", 1)], [at_ratios(1, 1)]),
            r"row a has 1 .*\(2,\)",
        ),
        (run(policy_loss([example("a", [1.0])], PolicyLossConfig()), [row("a", 1)], []), "got 1 and 0"),
        (lambda: example("a", []), "row a has no scored token"),
        (lambda: example("a", [math.inf]), "row a: advantages must be finite"),
        (lambda: example("a", [1.0], weight=-1), "row a: weight"),
        (lambda: Example(row("a", 2), "actor", (1.0, 1.0), (0.0,)), "2 scored tokens but 1 old_logprobs"),
        (lambda: row_scales({"a": 1}, "seq-mean-token-sum-norm"), "positive norm_length"),
        (lambda: row_scales({"a": 1}, "mean"), "unknown aggregation 'mean'"),  # type: ignore[arg-type]
        (lambda: PolicyLossConfig(dual_clip=0.9), "dual_clip must be above 1"),
        (lambda: PolicyLossConfig(clip_low=0), "clip_low must lie"),
        (lambda: PolicyLossConfig(kl_coefficient=-1), "kl_coefficient"),
        (lambda: PolicyLossConfig(kl_estimator="k4"), "unknown kl_estimator"),  # type: ignore[arg-type]
        (lambda: sft_loss([row("a", 1)], weights=[]), "1 rows but 0 weights"),
        (lambda: sft_loss([]), "at least one example"),
    ],
)
def test_what_cannot_be_used_is_refused(call, message):
    with pytest.raises(CreditError, match=message):
        call()
