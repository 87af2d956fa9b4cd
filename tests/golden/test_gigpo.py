"""GiGPO's numbers, worked by hand: one task, two rollouts, state a seen three times."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from gongfu.config.load import load
from gongfu.config.methods import GRPOConfig
from gongfu.config.schema import Recipe
from gongfu.credit.advantages import step_returns
from gongfu.credit.batch import CreditError
from gongfu.credit.gigpo import gigpo, merge_similar, step_advantages

WIN = step_returns([0.0, 0.0, 10.0], 0.95)
LOSS = step_returns([0.0, 0.0, 0.0], 0.95)
STATES = [["a", "b", "c"], ["a", "a", "d"]]
GROUPS = ["task", "task"]
EPISODES = [[10.0] * 3, [0.0] * 3]
PRESETS = Path(__file__).parents[2] / "recipes" / "gigpo"


def test_steps_of_one_state_are_compared_and_lonely_ones_are_worth_nothing():
    win, loss = step_advantages([WIN, LOSS], STATES, GROUPS, std="none")
    assert win.tolist() == pytest.approx([6.0167, 0, 0], abs=1e-4)
    assert loss.tolist() == pytest.approx([-3.0083, -3.0083, 0], abs=1e-4)


def test_divided_by_the_deviation_of_the_anchor_group():
    win, loss = step_advantages([WIN, LOSS], STATES, GROUPS, std="unbiased")
    assert win[0] == pytest.approx(2 / sqrt(3), abs=1e-5) and loss[0] == pytest.approx(-1 / sqrt(3), abs=1e-5)
    population, _ = step_advantages([WIN, LOSS], STATES, GROUPS, std="population")
    assert population[0] == pytest.approx(sqrt(2), abs=1e-5)


@pytest.mark.parametrize(("statistics", "episode"), [("trajectory", sqrt(0.5)), ("step", 5 / 5.477226)])
def test_the_unit_of_the_episode_term(statistics, episode):
    win, loss = gigpo(EPISODES, [WIN, LOSS], STATES, GROUPS, omega=0.0, std="unbiased", statistics=statistics)
    assert win.tolist() == pytest.approx([episode] * 3, abs=1e-5) and loss.tolist() == pytest.approx([-episode] * 3, abs=1e-5)


def test_the_presets_differ_in_what_the_public_code_does():
    """A short success beside a failure twice as long: over steps the mean is nearer to the failure."""
    found = {}
    for layers in (["paper"], ["paper", "reference"]):
        s = load(Recipe, files=[PRESETS / f"{name}.toml" for name in layers]).config.method
        assert isinstance(s, GRPOConfig) and s.advantage == "gigpo"
        short, long = [np.array([1.0])], [np.zeros(2)]
        win, loss = gigpo(
            [[1.0], [0.0] * 2], [*short, *long], [["a"], ["b", "c"]], GROUPS,
            omega=s.step_weight, std=s.std, statistics=s.statistics,
        )  # fmt: skip
        found[layers[-1]] = (win[0], loss[0]), (s.aggregation, s.dual_clip)
    assert found["paper"][0] == pytest.approx((sqrt(0.5), -sqrt(0.5)), abs=1e-5)
    assert found["reference"][0] == pytest.approx((2 / sqrt(3), -1 / sqrt(3)), abs=1e-5)
    assert (found["paper"][1], found["reference"][1]) == (("seq-mean-token-mean", 0.0), ("token-mean", 3.0))


@pytest.mark.parametrize(("omega", "first"), [(0.0, 5.0), (1.0, 11.016667), (2.0, 17.033333)])
def test_the_two_terms_are_added(omega, first):
    win, _ = gigpo(EPISODES, [WIN, LOSS], STATES, GROUPS, omega=omega, std="none", statistics="trajectory")
    assert win[0] == pytest.approx(first, abs=1e-5)
    assert win[1:].tolist() == [5.0, 5.0]


def test_all_successes_still_learn_from_the_shorter_one():
    """The episode term is flat; from state a one rollout was done in one step and the other in two."""
    short, long = [np.array([10.0]), step_returns([0.0, 10.0], 0.95)]
    first, second = gigpo(
        [[10.0], [10.0] * 2], [short, long], [["a"], ["a", "b"]], GROUPS, omega=1, std="none", statistics="trajectory"
    )
    assert first.tolist() == pytest.approx([0.25]) and second.tolist() == pytest.approx([-0.25, 0])


def test_states_of_different_tasks_are_never_compared():
    win, loss = step_advantages([WIN, LOSS], STATES, ["one", "other"], std="none")
    assert not win.any() and not loss.any()


def test_similar_states_are_merged_within_a_task_only():
    texts = [["You see a mug 1.", "Nothing happens."], ["You see a mug 2.", "You see a mug 1."], ["You see a mug 1.", "x"]]
    assert merge_similar(texts, ["t", "t", "u"], 0.9) == [[0, 1], [0, 0], [0, 1]]
    assert merge_similar(texts, ["t", "t", "u"], 1.0) == [[0, 1], [2, 0], [0, 1]]


def test_every_step_needs_an_anchor():
    with pytest.raises(CreditError, match="3 steps but 2 anchors"):
        step_advantages([WIN], [["a", "b"]], ["t"], std="none")
