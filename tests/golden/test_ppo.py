"""GAE and the critic's loss, worked by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

from gongfu.core.records import Choice, Row
from gongfu.credit.batch import CreditError
from gongfu.credit.gae import ValueLoss, explained_variance, gae


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (0.0, [0.9 * 0.5 - 0.4, 0.9 * 0.8 - 0.5, 1.0 - 0.8]),
        (1.0, [0.81 - 0.4, 0.9 - 0.5, 1.0 - 0.8]),
        # δ = (.05, .22, .2), γλ = .45: .05 + .45 (.22 + .45 * .2), .22 + .45 * .2, .2
        (0.5, [0.1895, 0.31, 0.2]),
    ],
)
def test_gae_between_the_one_step_error_and_the_return(lam, expected):
    """Rewards 0, 0, 1; values .4, .5, .8; gamma .9."""
    assert gae([0.0, 0.0, 1.0], [0.4, 0.5, 0.8], gamma=0.9, lam=lam).tolist() == pytest.approx(expected)


def test_a_perfect_critic_leaves_nothing_to_learn():
    assert gae([0.0, 0.0, 1.0], [0.81, 0.9, 1.0], gamma=0.9, lam=0.7).tolist() == pytest.approx([0, 0, 0])


def rows(*names):
    return [Row(n, (5, 1), (False, True), choices=(Choice(((1,), (2,)), start=1),)) for n in names]


def test_the_critics_loss_is_the_cross_entropy_of_its_answer():
    """Values .8 and .3, returns 1 and .5: -(ln .8 + .5 ln .3 + .5 ln .7) / 2, gradients in ln V: (V - y) / (1 - V) / 2."""
    loss = ValueLoss({"a": 1.0, "b": 0.5})
    lp = [torch.tensor([log(0.8)], requires_grad=True), torch.tensor([log(0.3)], requires_grad=True)]
    value, metrics = loss(rows("a", "b"), lp)
    assert float(value.detach()) == pytest.approx(-(log(0.8) + 0.5 * log(0.3) + 0.5 * log(0.7)) / 2, abs=1e-6)
    assert metrics["critic/value"] == pytest.approx(0.55)
    value.backward()
    assert lp[0].grad.item() == pytest.approx((0.8 - 1) / 0.2 / 2, abs=1e-5)
    assert lp[1].grad.item() == pytest.approx((0.3 - 0.5) / 0.7 / 2, abs=1e-5)


def test_splitting_the_batch_changes_nothing():
    loss = ValueLoss({"a": 1.0, "b": 0.0})
    lp = [torch.tensor([log(0.8)]), torch.tensor([log(0.3)])]
    whole, _ = loss(rows("a", "b"), lp)
    parts = [loss(rows(name), [one])[0] for name, one in zip("ab", lp, strict=True)]
    assert float(sum(parts)) == pytest.approx(float(whole))


def test_a_certain_critic_stays_finite():
    value, _ = ValueLoss({"a": 0.0})(rows("a"), [torch.tensor([0.0])])
    assert torch.isfinite(value)


def test_returns_outside_of_what_a_probability_can_say_are_refused():
    with pytest.raises(CreditError, match=r"\[0, 1\]"):
        ValueLoss({"a": 1.5})
    with pytest.raises(CreditError, match="one of each"):
        gae([1.0], [0.5, 0.5], gamma=1.0, lam=1.0)


def test_explained_variance():
    assert explained_variance([0.5, 0.5], [0.0, 1.0]) == 0.0
    assert explained_variance([0.0, 0.5], [0.0, 1.0]) == pytest.approx(0.75)
    assert explained_variance([0.1, 0.9], [1.0, 1.0]) == 0.0
