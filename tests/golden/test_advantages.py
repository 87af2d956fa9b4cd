"""Advantages worked by hand; the arithmetic stands beside each value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gongfu.credit.advantages import (
    dr_grpo,
    grpo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    step_returns,
    whiten,
    zero_variance,
)
from gongfu.credit.batch import CreditError

ONE_OF_FOUR = [[1.0], [0.0], [0.0], [0.0]]
THREE_OF_EIGHT = [[1.0]] * 3 + [[0.0]] * 5
LONG_FAILURE = [[10.0] * 3, [0.0] * 5]
"""A success of 3 steps and a failure of 5: trajectory mean 5, step mean 30 / 8."""


def flat(advantages: list[np.ndarray]) -> list[float]:
    return [float(a) for values in advantages for a in values]


@pytest.mark.parametrize(
    ("returns", "std", "expected"),
    [
        # mean 1/4; squares 9/16 + 3 * 1/16 = 3/4; unbiased sqrt(3/4 / 3) = 1/2, population sqrt(3/16) = sqrt(3) / 4
        (ONE_OF_FOUR, "unbiased", [1.5, -0.5, -0.5, -0.5]),
        (ONE_OF_FOUR, "population", [math.sqrt(3), *[-1 / math.sqrt(3)] * 3]),
        (ONE_OF_FOUR, "none", [0.75, -0.25, -0.25, -0.25]),
        # mean 3/8; squares 3 * 25/64 + 5 * 9/64 = 15/8; unbiased sqrt(15/56), population sqrt(15/64)
        (THREE_OF_EIGHT, "unbiased", [5 / 8 * math.sqrt(56 / 15)] * 3 + [-3 / 8 * math.sqrt(56 / 15)] * 5),
        (THREE_OF_EIGHT, "population", [5 / math.sqrt(15)] * 3 + [-3 / math.sqrt(15)] * 5),
        (THREE_OF_EIGHT, "none", [5 / 8] * 3 + [-3 / 8] * 5),
    ],
)
def test_grpo(returns, std, expected):
    got = grpo(returns, ["g"] * len(returns), std=std, statistics="trajectory", epsilon=0)
    assert flat(got) == pytest.approx(expected)


def test_published_roundings_of_grpo():
    unbiased = grpo(THREE_OF_EIGHT, [0] * 8, std="unbiased", statistics="trajectory")
    population = grpo(THREE_OF_EIGHT, [0] * 8, std="population", statistics="trajectory")
    assert flat(unbiased)[::7] == pytest.approx([1.2076, -0.7246], abs=5e-5)
    assert flat(population)[::7] == pytest.approx([1.2910, -0.7746], abs=5e-5)


def test_epsilon_is_added_to_the_deviation():
    got = grpo(ONE_OF_FOUR, ["g"] * 4, std="unbiased", statistics="trajectory", epsilon=0.5)
    assert flat(got) == pytest.approx([0.75, -0.25, -0.25, -0.25])  # 1/2 + 1/2


def test_grpo_over_steps_weighs_long_episodes_more():
    trajectory = grpo(LONG_FAILURE, "gg", std="none", statistics="trajectory")
    step = grpo(LONG_FAILURE, "gg", std="none", statistics="step")
    assert flat(trajectory) == pytest.approx([5.0] * 3 + [-5.0] * 5)
    assert flat(step) == pytest.approx([6.25] * 3 + [-3.75] * 5)


def test_deviation_over_trajectories_and_over_steps():
    equal = [[10.0] * 3, [0.0] * 3]
    over_trajectories = grpo(equal, "gg", std="unbiased", statistics="trajectory", epsilon=0)
    over_steps = grpo(equal, "gg", std="unbiased", statistics="step", epsilon=0)
    assert flat(over_trajectories)[::5] == pytest.approx([5 / math.sqrt(50), -5 / math.sqrt(50)])  # ±.7071
    assert flat(over_steps)[::5] == pytest.approx([5 / math.sqrt(30), -5 / math.sqrt(30)])  # 6 * 25 / 5; ±.9129


def test_unequal_step_returns_share_the_weight_of_their_trajectory():
    returns = [[3.0, 1.0], [0.0]]
    # trajectory: weights 1/2, 1/2, 1: mean (3/2 + 1/2) / 2 = 1, population variance (1/2 * 4 + 0 + 1) / 2 = 3/2
    trajectory = grpo(returns, "gg", std="population", statistics="trajectory", epsilon=0)
    assert flat(trajectory) == pytest.approx([2 / math.sqrt(1.5), 0.0, -1 / math.sqrt(1.5)])
    # step: mean 4/3, population variance (25/9 + 1/9 + 16/9) / 3 = 14/9
    step = grpo(returns, "gg", std="population", statistics="step", epsilon=0)
    assert flat(step) == pytest.approx([5 / math.sqrt(14), -1 / math.sqrt(14), -4 / math.sqrt(14)])


def test_dr_grpo_divides_by_nothing():
    assert flat(dr_grpo(ONE_OF_FOUR, "gggg", statistics="trajectory")) == [0.75, -0.25, -0.25, -0.25]


def test_rloo():
    assert flat(rloo(ONE_OF_FOUR, "gggg", statistics="trajectory")) == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    eight = rloo(THREE_OF_EIGHT, "g" * 8, statistics="trajectory")
    assert flat(eight) == pytest.approx([1 - 2 / 7] * 3 + [-3 / 7] * 5)


def test_rloo_leaves_out_the_episode_or_the_step():
    # trajectory: the others' mean is 0 and 10; step: 1 - 2 others of 7 are 10, and 3 of 7
    assert flat(rloo(LONG_FAILURE, "gg", statistics="trajectory")) == pytest.approx([10.0] * 3 + [-10.0] * 5)
    assert flat(rloo(LONG_FAILURE, "gg", statistics="step")) == pytest.approx([10 - 20 / 7] * 3 + [-30 / 7] * 5)
    # own episode left out: (3, 1) against 0, and 0 against the mean 2 of the other episode
    assert flat(rloo([[3.0, 1.0], [0.0]], "gg", statistics="trajectory")) == pytest.approx([3, 1, -2])


def test_groups_do_not_mix():
    got = grpo([[1.0], [10.0], [0.0], [30.0]], ["a", "b", "a", "b"], std="none", statistics="trajectory")
    assert flat(got) == pytest.approx([0.5, -10, -0.5, 10])


@pytest.mark.parametrize("statistics", ["trajectory", "step"])
def test_zero_variance_is_exactly_zero(statistics):
    returns = [[0.1] * 3] * 7  # the float mean of 21 times 0.1 need not be 0.1
    for got in (
        grpo(returns, "g" * 7, std="unbiased", statistics=statistics, epsilon=0),
        grpo(returns, "g" * 7, std="none", statistics=statistics),
        rloo(returns, "g" * 7, statistics=statistics),
        reinforce_plus_plus_baseline(returns, "g" * 7, tokens=[[1] * 3] * 7, statistics=statistics),
    ):
        assert flat(got) == [0.0] * 21


@pytest.mark.parametrize("statistics", ["trajectory", "step"])
def test_group_of_one_is_exactly_zero(statistics):
    alone = [[5.0, 1.0], [1.0], [0.0]]
    groups = ["alone", "pair", "pair"]
    for got in (
        grpo(alone, groups, std="unbiased", statistics=statistics, epsilon=0),
        rloo(alone, groups, statistics=statistics),
        reinforce_plus_plus_baseline(alone, groups, tokens=[[1, 1], [1], [1]], statistics=statistics),
    ):
        assert got[0].tolist() == [0.0, 0.0]
        assert got[1][0] > 0 > got[2][0]


def test_zero_variance_names_the_dead_groups():
    returns = [[1.0], [1.0], [0.0], [1.0], [7.0, 2.0]]
    assert zero_variance(returns, ["a", "a", "b", "b", "alone"]).tolist() == [True, True, False, False, True]


def test_noise_and_penalty_amplification():
    """Standardising blows tiny differences up: known, kept, and the reason why `std` is named."""
    noisy = grpo([[10.60 + 0.02 * k] for k in range(8)], [0] * 8, std="unbiased", statistics="trajectory", epsilon=0)
    # centred -7..7 in units of .01: squares 2 * (49 + 25 + 9 + 1) = 168, over 7 = 24
    assert flat(noisy) == pytest.approx([k / math.sqrt(24) for k in range(-7, 8, 2)])
    for n in (8, 100):
        penalised = grpo([[-0.1]] + [[0.0]] * (n - 1), [0] * n, std="unbiased", statistics="trajectory", epsilon=0)
        assert flat(penalised)[:2] == pytest.approx([-(1 - 1 / n) * math.sqrt(n), 1 / math.sqrt(n)])


def test_reinforce_plus_plus():
    # rewards (-.05, 1 - .1) and (-.15): returns (.85, .9) and (-.15); mean 1.6 / 3; squares .701667 / 2 = .350833
    got = reinforce_plus_plus([1.0, 0.0], [[0.1, 0.2], [0.3]], beta=0.5)
    assert flat(got) == pytest.approx([0.534628, 0.619043, -1.153671], abs=2e-6)


def test_reinforce_plus_plus_discounts_along_the_tokens():
    # no KL: returns (.25, .5, 1) and (0); mean 1.75 / 4 = .4375, nothing divided
    got = reinforce_plus_plus([1.0, 0.0], [[0.0] * 3, [0.0]], beta=0.0, gamma=0.5, std="none")
    assert flat(got) == pytest.approx([-0.1875, 0.0625, 0.5625, -0.4375])


def test_reinforce_plus_plus_baseline_whitens_over_tokens():
    # centred .5 (1 token), -.5 (3 tokens), 0 (4 tokens): mean -1/8; squares .390625 + .421875 + .0625 = .875, / 7 = 1/8
    got = reinforce_plus_plus_baseline(
        [[1.0], [0.0], [1.0], [1.0]],
        ["a", "a", "b", "b"],
        tokens=[[1], [3], [2], [2]],
        statistics="trajectory",
        epsilon=0,
    )
    assert flat(got) == pytest.approx([0.625 * math.sqrt(8), -0.375 * math.sqrt(8), 0, 0])
    assert flat(got)[2:] == [0.0, 0.0]


def test_whiten_of_equal_values_is_zero():
    assert flat(whiten([[0.1, 0.1], [0.1]], epsilon=0)) == [0.0] * 3
    # a value of no token is not part of the statistics
    assert flat(whiten([[0.1, 0.1], [0.7]], counts=[[1, 2], [0]], epsilon=0)) == [0.0] * 3


def test_step_returns():
    assert step_returns([0, 0, 10], 0.95).tolist() == pytest.approx([9.025, 9.5, 10])
    assert step_returns([1, 2, 3], 1.0).tolist() == [6, 5, 3]
    assert step_returns([1, 2, 3], 0.0).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: grpo([[1.0]], ["a", "b"], std="none", statistics="step"), "1 trajectories but 2 group names"),
        (lambda: grpo([[]], ["a"], std="none", statistics="step"), "non-empty"),
        (lambda: grpo([[math.nan], [1]], "aa", std="none", statistics="step"), "trajectory 0 .* not finite"),
        (lambda: grpo([[0], [1]], "aa", std="biased", statistics="step"), "unknown std 'biased'"),  # type: ignore[arg-type]
        (lambda: rloo([[0], [1]], "aa", statistics="token"), "unknown statistics 'token'"),  # type: ignore[arg-type]
        (lambda: reinforce_plus_plus([1.0], [], beta=0), "1 scores but KL values of 0"),
        (lambda: whiten([[1.0]], counts=[[1, 2]]), "one token count for each value"),
        (lambda: whiten([[1.0]], counts=[[0]]), "at least one token"),
    ],
)
def test_what_cannot_be_used_is_refused(call, message):
    with pytest.raises(CreditError, match=message):
        call()
