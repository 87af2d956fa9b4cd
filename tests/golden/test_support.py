"""The support floor worked by hand, on its own and through rows and a stub of an engine."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gongfu.core import Row
from gongfu.credit.batch import CreditError
from gongfu.credit.support import SupportLoss, support_loss, support_rows

P_MIN = 0.1
TOKENS = {"ADD": 11, "UPDATE": 12, "KEEP": 13}
PROMPT = (5, 6, 7)

# softmax(4, 0, -4): Z = e^4 + 1 + e^-4 = 55.616466, ln Z = 4.0184793, so ln p = (-.0184793, -4.0184793, -8.0184793).
# Shortfalls of ln .1 = -2.3025851: 0, 1.7158942, 5.7158942; squares 2.9442929 and 32.6714466; a third of their sum: 11.8719132.
SHARP = ((4.0, 0.0, -4.0), 11.871913)
# UPDATE is illegal: its logit of 20 is not looked at, the other two are even.
MASKED = ((0.0, 0.0), 0.0)
# p(2nd) = 1 / (1 + e^3) = .0474259: ln .1 - ln .0474259 = .7460023, squared .5565194, a half of it.
LEANING = ((2.0, -1.0), 0.278260)


def operations(logits: tuple[float, ...]) -> dict[str, int]:
    return TOKENS if len(logits) == 3 else {op: TOKENS[op] for op in ("ADD", "KEEP")}


def stub(rows: list[Row], logits: dict[str, dict[int, float]]) -> list[Tensor]:
    """What an engine answers for such rows: log softmax over the options at the row's temperature."""
    answers = []
    for row in rows:
        values = logits[row.meta["decision"]]
        scores = [torch.tensor(values[option[0]], dtype=torch.float64) / row.temperature for option in row.choices[0].options]
        taken = row.choices[0].options.index(row.response(row.choices[0]))
        answers.append(torch.stack(scores).log_softmax(0)[taken : taken + 1].requires_grad_())
    return answers


@pytest.mark.parametrize(("logits", "loss"), [SHARP, MASKED, LEANING])
def test_the_function(logits, loss):
    found, metrics = support_loss([torch.tensor(logits, dtype=torch.float64).log_softmax(0)], P_MIN)
    assert float(found) == pytest.approx(loss, abs=2e-6)
    assert metrics["support_loss"] == pytest.approx(loss, abs=2e-6)


@pytest.mark.parametrize(("logits", "loss"), [SHARP, MASKED, LEANING])
def test_rows_and_loss(logits, loss):
    tokens = operations(logits)
    rows = support_rows(PROMPT, tokens, id="d")
    values = dict(zip(tokens.values(), logits, strict=True)) | ({12: 20.0} if len(logits) == 2 else {})
    found, metrics = SupportLoss(rows, P_MIN)(rows, stub(rows, {"d": values}))
    assert float(found.detach()) == pytest.approx(loss, abs=2e-6)
    assert metrics["proposer/support_loss"] == pytest.approx(loss, abs=2e-6)


def test_the_rows_of_a_decision():
    add, update, keep = support_rows(PROMPT, TOKENS, id="d", temperature=0.7)
    assert (add.tokens, update.tokens, keep.tokens) == ((5, 6, 7, 11), (5, 6, 7, 12), (5, 6, 7, 13))
    for row in (add, update, keep):
        assert row.mask == (False, False, False, True)
        assert row.choices[0].options == ((11,), (12,), (13,))
        assert row.temperature == 0.7
    assert [row.id for row in (add, update, keep)] == ["d/ADD", "d/UPDATE", "d/KEEP"]


def test_a_decision_weighs_the_same_with_two_and_with_three_operations():
    decisions = [torch.tensor(logits, dtype=torch.float64).log_softmax(0) for logits, _ in (SHARP, LEANING)]
    loss, metrics = support_loss(decisions, P_MIN)
    assert float(loss) == pytest.approx((11.871913 + 0.278260) / 2, abs=2e-6)
    assert metrics["below_floor"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_splitting_the_rows_changes_nothing():
    rows = support_rows(PROMPT, TOKENS, id="a") + support_rows(PROMPT, {"ADD": 11, "KEEP": 13}, id="b")
    logits = {"a": {11: 4.0, 12: 0.0, 13: -4.0}, "b": {11: 2.0, 13: -1.0}}
    loss = SupportLoss(rows, P_MIN, weight=0.01)
    whole, metrics = loss(rows, stub(rows, logits))
    parts = [loss([row], stub([row], logits)) for row in reversed(rows)]
    assert float(whole.detach()) == pytest.approx(0.01 * (11.871913 + 0.278260) / 2, abs=2e-8)
    assert metrics["proposer/support_loss"] == pytest.approx(float(whole.detach()))
    assert sum(float(part.detach()) for part, _ in parts) == pytest.approx(float(whole.detach()))
    for name, value in metrics.items():
        assert sum(found.get(name, 0.0) for _, found in parts) == pytest.approx(value), name
    # p(UPDATE) of a = e^-4.018479 = .017980; it is illegal in b
    assert metrics["proposer/p_UPDATE"] == pytest.approx(0.017980 / 2, abs=1e-6)
    # a: .981690 * .018479 + .017980 * 4.018479 + .000329 * 8.018479; b: .952574 * .048587 + .047426 * 3.048587
    assert metrics["proposer/op_entropy"] == pytest.approx((0.093035 + 0.190865) / 2, abs=1e-6)
    assert loss.smallest == pytest.approx(math.exp(-8.0184793), rel=1e-6)


def test_only_operations_below_the_floor_are_pushed():
    rows = support_rows(PROMPT, TOKENS, id="d")
    logprobs = stub(rows, {"d": {11: 4.0, 12: 0.0, 13: -4.0}})
    SupportLoss(rows, P_MIN)(rows, logprobs)[0].backward()
    # d/d ln p of (ln p_min - ln p)² / 3 = -2 / 3 * shortfall
    assert [float(values.grad[0]) for values in logprobs] == pytest.approx(
        [0.0, -2 / 3 * 1.715894, -2 / 3 * 5.715894], abs=2e-6
    )


def test_a_floor_that_all_respect_still_gives_a_gradient_of_zero():
    rows = support_rows(PROMPT, {"ADD": 11, "KEEP": 13}, id="d")
    logprobs = stub(rows, {"d": {11: 0.0, 13: 0.0}})
    loss, _ = SupportLoss(rows, P_MIN)(rows, logprobs)
    loss.backward()
    assert [float(values.grad[0]) for values in logprobs] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("prompt", "tokens", "message"),
    [
        (PROMPT, {"ADD": 11, "UPDATE": 11, "KEEP": 13}, "share their first token"),
        (PROMPT, {"KEEP": 13}, "leaves no choice"),
        ((), TOKENS, "no prompt"),
    ],
)
def test_decisions_that_cannot_be_supported(prompt, tokens, message):
    with pytest.raises(CreditError, match=message):
        support_rows(prompt, tokens, id="d")


@pytest.mark.parametrize("p_min", [0.0, 1 / 3, 0.5, -0.1])
def test_a_floor_that_three_operations_cannot_hold(p_min):
    rows = support_rows(PROMPT, TOKENS, id="d")
    with pytest.raises(CreditError, match="p_min must lie between 0 and 1/3"):
        SupportLoss(rows, p_min)
    with pytest.raises(CreditError, match="p_min must lie between 0 and 1/3"):
        support_loss([torch.zeros(3).log_softmax(0)], p_min)


def test_rows_that_are_missing_repeated_or_strange():
    rows = support_rows(PROMPT, TOKENS, id="d")
    with pytest.raises(CreditError, match="has 3 legal operations, but rows of ADD, UPDATE"):
        SupportLoss(rows[:2], P_MIN)
    for wrong, found in (([*rows, rows[0]], "ADD, UPDATE, KEEP, ADD"), ([rows[0], rows[0], rows[2]], "ADD, ADD, KEEP")):
        with pytest.raises(CreditError, match=f"rows of {found}"):
            SupportLoss(wrong, P_MIN)
    with pytest.raises(CreditError, match="no decision"):
        SupportLoss([], P_MIN)
    with pytest.raises(CreditError, match="no decision"):
        support_loss([], P_MIN)
    other = support_rows(PROMPT, TOKENS, id="e")
    with pytest.raises(CreditError, match="not in the batch"):
        SupportLoss(rows, P_MIN)(other, stub(other, {"e": dict.fromkeys(TOKENS.values(), 0.0)}))
    with pytest.raises(CreditError, match="NaN or infinite"):
        SupportLoss(rows, P_MIN)(rows, [torch.tensor([-math.inf]) for _ in rows])
