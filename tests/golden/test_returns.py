"""Returns of steps, worked by hand: three steps, the second inadmissible, discount a half, a success."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gongfu.config.methods import GRPOConfig
from gongfu.config.role_agent import PredictionConfig, RoleAgentConfig
from gongfu.core.records import Validity
from gongfu.methods.returns import episode_returns, returns_of, rewards_of
from gongfu.methods.role_agent.world_in_agent import factors
from uniskill_cases import rollout

FINE, ODD, MALFORMED = Validity(True, True), Validity(True, False), Validity(False, False)


def played(*validity, rewards=(0.0, 0.0, 0.0), score=1.0):
    episode = rollout(0, score == 1, "go; open; take")
    turns = [replace(t, validity=v, reward=r) for t, v, r in zip(episode.turns, validity, rewards, strict=True)]
    return replace(episode, turns=tuple(turns), score=score)


def gigpo(**settings):
    return GRPOConfig(advantage="gigpo", **{"gamma": 0.5, "invalid_penalty": 0.1, **settings})


@pytest.mark.parametrize(
    ("validity", "settings", "steps", "episode"),
    [
        # 1 at the end: 0.25, 0.5, 1; the penalty for the second step alone, or half of it for the first, too.
        ((FINE, ODD, FINE), {}, [0.25, 0.4, 1.0], [1.0, 0.9, 1.0]),
        ((FINE, ODD, FINE), {"penalties": "discounted"}, [0.25 - 0.05, 0.4, 1.0], [0.9] * 3),
        ((FINE, ODD, FINE), {"invalid": "malformed"}, [0.25, 0.5, 1.0], [1.0] * 3),
        ((FINE, MALFORMED, FINE), {"invalid": "malformed"}, [0.25, 0.4, 1.0], [1.0, 0.9, 1.0]),
        # -0.2 in place of what the second step earns.
        ((FINE, MALFORMED, FINE), {"format_score": -0.2}, [0.25, -0.2, 1.0], [1.0, -0.2, 1.0]),
        ((FINE, MALFORMED, FINE), {"format_score": -0.2, "penalties": "discounted"}, [0.25 - 0.1, 0.5 - 0.2, 1.0], [0.8] * 3),
        # In place of the last step's reward, which is the score: nothing else is earned.
        ((FINE, FINE, MALFORMED), {"format_score": -0.2, "penalties": "discounted"}, [-0.05, -0.1, -0.2], [-0.2] * 3),
    ],
)
def test_a_score_with_penalties(validity, settings, steps, episode):
    assert returns_of(played(*validity), gigpo(**settings)) == pytest.approx(steps)
    assert episode_returns(played(*validity), gigpo(**settings)) == pytest.approx(episode)


def test_rewards_of_every_step():
    """Sokoban: a step costs 0.1, a box on its target is worth 1, the last one 10 more."""
    t = played(FINE, ODD, FINE, rewards=(-0.1, 0.9, 10.9))
    assert returns_of(t, gigpo(rewards="steps")) == pytest.approx([-0.1 + 0.45 + 2.725, 0.9 + 5.45 - 0.1, 10.9])
    assert episode_returns(t, gigpo(rewards="steps")) == pytest.approx([11.7, 11.6, 11.7])
    assert returns_of(t, gigpo()) == pytest.approx([0.25, 0.4, 1.0]), "the score alone"


def test_factors_multiply_what_is_earned_and_no_penalty():
    """R_t = R_task(t) (1 + R_pre(t)): each step by its own predictions, the fourth vector of the specification among them."""
    alike = [[0.6, 0.5], [1.0, 0.0], [0.2]]
    times = {"x": factors(alike, PredictionConfig(), 0.5)}
    assert times["x"] == pytest.approx([1.85, 2.0, 1.2])
    t = replace(played(FINE, ODD, FINE), id="x")
    assert returns_of(t, gigpo(), times) == pytest.approx([0.25 * 1.85, 0.5 * 2.0 - 0.1, 1.2])
    assert returns_of(t, gigpo(penalties="discounted"), times) == pytest.approx([0.25 * 1.85 - 0.05, 0.9, 1.2])
    assert returns_of(replace(t, id="other"), gigpo(), times) == pytest.approx([0.25, 0.4, 1.0])
    reward = {"x": factors(alike, PredictionConfig(scales="reward", weight=0.2), 0.5)}
    assert episode_returns(t, gigpo(), reward) == pytest.approx([1.04, 0.94, 1.04])


def test_the_papers_worked_return():
    """gamma .95, likeness .6 and .5 for two steps ahead: R_pre = 1.075; success one step later is worth .95 now."""
    t = replace(rollout(0, True, "go; take"), id="x")
    times = {"x": factors([[0.6, 0.5], [0.0]], PredictionConfig(), 0.95)}
    assert returns_of(t, RoleAgentConfig(), times) == pytest.approx([0.95 * 2.075, 1.0])
    failed = replace(t, score=0.0)
    assert returns_of(failed, RoleAgentConfig(), times) == [0.0, 0.0], "prediction alone earns nothing"


def test_rewards_of_steps_for_a_critic():
    t = played(FINE, ODD, MALFORMED)
    assert rewards_of(t, gigpo()) == pytest.approx([0.0, -0.1, 0.9])
    assert rewards_of(t, gigpo(format_score=-0.2)) == pytest.approx([0.0, -0.1, -0.2])
    assert rewards_of(t, gigpo(invalid="malformed")) == pytest.approx([0.0, 0.0, 0.9])


def test_settings_that_would_do_nothing_are_refused():
    with pytest.raises(ValueError, match="does nothing without invalid_penalty"):
        gigpo(penalties="discounted", invalid_penalty=0.0)
    with pytest.raises(ValueError, match="rewards are not used by reinforce"):
        GRPOConfig(advantage="reinforce++", rewards="steps")
