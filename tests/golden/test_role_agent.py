"""Role-Agent's numbers, worked by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from gongfu.config.role_agent import PredictionConfig
from gongfu.credit.gigpo import gigpo
from gongfu.methods.role_agent.world_in_agent import factors, horizon_of, prediction_rewards

GAMMA = 0.95


def test_the_prediction_reward_is_discounted_over_the_steps_ahead():
    """gamma .95, two steps ahead, alike .6 and .5: R_pre = .6 + .95 * .5. What it multiplies: test_returns.py."""
    (r_pre,) = prediction_rewards([[0.6, 0.5]], GAMMA)
    assert r_pre == pytest.approx(1.075)
    (factor,) = factors([[0.6, 0.5]], PredictionConfig(), GAMMA)
    assert factor == pytest.approx(2.075)


def test_the_public_code_scales_the_reward_by_a_fifth_of_the_last_likeness():
    paid = factors([[0.1], [0.9], [0.6]], PredictionConfig(weight=0.2, scales="reward"), GAMMA)
    assert [10 * f for f in paid] == pytest.approx([11.2] * 3)


@pytest.mark.parametrize(
    ("share", "steps", "horizon"), [(0.05, 50, 2), (0.05, 15, 1), (0.05, 4, 1), (0.1, 50, 5), (0.2, 15, 3)]
)
def test_the_horizon_is_a_share_of_the_longest_episode(share, steps, horizon):
    assert horizon_of(PredictionConfig(horizon=share), steps) == horizon
    assert horizon_of(PredictionConfig(horizon=0), steps) == 0


def test_states_are_compared_over_the_whole_batch_and_the_episode_term_has_its_own_weight():
    """State a: returns 2 and 0 in two tasks, so ±1/sqrt(2) * ... with F = 1: ±1. Each task's episode term is +-.5 in itself."""
    returns = [[2.0], [0.0], [0.0], [0.0]]
    scores = [[1.0], [0.0], [0.0], [0.0]]
    states = [["a"], ["b"], ["a"], ["c"]]
    tasks = ["one", "one", "other", "other"]
    found = gigpo(
        scores, returns, states, tasks, omega=1.0, alpha=2.0, scopes=["batch"] * 4, std="none", statistics="trajectory"
    )
    assert [float(row[0]) for row in found] == pytest.approx([2 * 0.5 + 1.0, -2 * 0.5, -1.0, 0.0])
    apart = gigpo(scores, returns, states, tasks, omega=1.0, alpha=2.0, std="none", statistics="trajectory")
    assert [float(row[0]) for row in apart] == pytest.approx([1.0, -1.0, 0.0, 0.0])


def test_a_deviation_blows_small_differences_in_prediction_up():
    """Eight successes alike .30 to .37, scaled as the public code does: rewards 10.60 to 10.74."""
    alike = [0.30 + 0.01 * i for i in range(8)]
    paid = [10 * factors([[a]], PredictionConfig(weight=0.2, scales="reward"), GAMMA)[0] for a in alike]
    found = gigpo(
        [[p] for p in paid],
        [[0.0]] * 8,
        [[i] for i in range(8)],
        ["task"] * 8,
        omega=0.0,
        std="unbiased",
        statistics="trajectory",
        epsilon=0.0,
    )
    assert float(found[0][0]) == pytest.approx(-3.5 / sqrt(6), abs=1e-6)
    assert float(found[-1][0]) == pytest.approx(3.5 / sqrt(6), abs=1e-6)
