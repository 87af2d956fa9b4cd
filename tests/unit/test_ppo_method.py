"""PPO on a real tiny model: actor and critic learn, each on its own adapter."""

from __future__ import annotations

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError
from gongfu.methods.ppo import value_rows
from gongfu.run.build import build_collector, build_engine, build_method, build_runner, build_suite
from toy import TOY_RECIPE, tiny_agent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_agent(tmp_path_factory.mktemp("agent"))


def make(folder, tmp_path, *overrides):
    settings = [*TOY_RECIPE, f"--engine.model={folder}", "--method.name=ppo", "--method.critic.lr=1e-2", *overrides]
    recipe = load(Recipe, files=[], overrides=settings).config
    suite = build_suite(recipe.suite)
    engine = build_engine(recipe, tmp_path)
    engine.sync()
    collector = build_collector(recipe, suite, engine.tokenizer, build_runner(recipe, suite))
    return build_method(recipe, engine, collector, suite, tmp_path)


def weights(method, adapter):
    return {name: value.clone() for name, value in method.engine._adapters[adapter].parameters.items()}


def moved(before, after):
    return max(float((before[name] - after[name]).detach().abs().max()) for name in before)


def test_success_rises_and_the_critic_foresees_it(folder, tmp_path):
    method = make(folder, tmp_path, "--method.tasks=12", "--method.group-size=4", "--method.gae-lambda=0.9")
    reports = [method.step(k).metrics for k in range(30)]
    scores = [m["rollout/score"] for m in reports]
    assert sum(scores[-8:]) / 8 > sum(scores[:8]) / 8 + 0.1
    assert reports[-1]["critic/value_loss"] < reports[0]["critic/value_loss"]


def test_one_rollout_a_task_is_enough(folder, tmp_path):
    metrics = make(folder, tmp_path, "--method.tasks=6", "--method.group-size=1").step(0).metrics
    assert metrics["actor/grad_norm"] > 0 and metrics["critic/grad_norm"] > 0


def test_actor_and_critic_are_two_adapters(folder, tmp_path):
    method = make(folder, tmp_path, "--method.critic.warmup=1")
    actor, critic = weights(method, "actor"), weights(method, "critic")
    metrics = method.step(0).metrics
    assert moved(critic, weights(method, "critic")) > 0
    assert moved(actor, weights(method, "actor")) == 0 and "actor/loss" not in metrics, "the warm-up is the critic's alone"
    critic = weights(method, "critic")
    assert "actor/loss" in method.step(1).metrics
    assert moved(actor, weights(method, "actor")) > 0 and moved(critic, weights(method, "critic")) > 0


def test_the_value_of_a_turn_is_asked_at_its_own_prompt(folder, tmp_path):
    method = make(folder, tmp_path)
    (t, *_) = method.step(0).trajectories
    rows = value_rows(t, method.engine.tokenizer)
    assert [row.tokens[:-1] for row in rows] == [turn.call.prompt for turn in t.turns]
    logprobs = method.engine.logprobs(rows, adapter="critic")
    assert all(float(lp.exp()) < 1 and len(lp) == 1 for lp in logprobs)


def test_the_critics_answer_changes_the_update(folder, tmp_path):
    """The cut: a critic that says the same everywhere leaves the return alone, which is another update."""
    whole, cut = make(folder, tmp_path / "a"), make(folder, tmp_path / "b")
    score = cut.engine.logprobs

    def constant(rows, *, adapter):
        found = score(rows, adapter=adapter)
        return [0 * f - 0.7 for f in found] if adapter == "critic" else found

    cut.engine.logprobs = constant
    a, b = whole.step(0).metrics, cut.step(0).metrics
    assert a["actor/grad_norm"] != pytest.approx(b["actor/grad_norm"], rel=1e-4)
    assert b["critic/explained_variance"] == pytest.approx(0)


def test_a_critic_that_is_trained_on_nothing_is_refused_before_it_starts(folder, tmp_path):
    with pytest.raises(ConfigError, match="kl"):
        make(folder, tmp_path, "--method.kl.place=reward")
    with pytest.raises(ConfigError, match="advantage"):
        make(folder, tmp_path, "--method.advantage=grpo")
