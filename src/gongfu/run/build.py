"""The only room that knows all parts: a recipe becomes suite, engine, collector and method."""

from __future__ import annotations

from pathlib import Path

from gongfu.config.methods import PPOConfig
from gongfu.config.role_agent import RoleAgentConfig
from gongfu.config.schema import Recipe
from gongfu.config.uniskill import ProposerConfig, UniSkillConfig
from gongfu.engine.protocol import Engine, OptimParams, Tokenizer
from gongfu.envs.protocol import Suite
from gongfu.envs.runner import EnvRunner, InlineRunner
from gongfu.methods.base import Method, Schedule
from gongfu.methods.uniskill.prompt import ProposerRules
from gongfu.rollout.actor import ModelActor
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build_engine import ACTOR as ACTOR
from gongfu.run.build_engine import CRITIC
from gongfu.run.build_engine import build_engine as build_engine
from gongfu.run.build_suite import build_suite as build_suite
from gongfu.run.build_suite import check_offers
from gongfu.run.build_suite import load_suite as load_suite


def build_runner(recipe: Recipe, suite: Suite) -> EnvRunner:
    workers = recipe.rollout.workers
    if not workers.count:
        return InlineRunner(suite)
    from gongfu.envs.workers import WorkerRunner

    return WorkerRunner(
        suite,
        workers=workers.count,
        kind=workers.kind,
        ray_address=workers.ray_address or getattr(recipe.engine, "ray_address", ""),
        reset_timeout=workers.reset_timeout,
        step_timeout=workers.step_timeout,
    )


def build_rules(recipe: Recipe) -> TextRules:
    r = recipe.rollout
    return TextRules(r.context, r.window, r.format, r.instructions, r.list_actions, r.remind)


def proposer_rules(config: ProposerConfig) -> ProposerRules:
    return ProposerRules(**config.model_dump(include={"format", "instructions", "observations", "updates", "prefill"}))


def build_collector(recipe: Recipe, suite: Suite, tokenizer: Tokenizer, runner: EnvRunner) -> Collector:
    r = recipe.rollout
    return Collector(
        runner=runner,
        tokenizer=tokenizer,
        rules=build_rules(recipe),
        instructions=suite.instructions(),
        max_steps=suite.max_steps,
        max_tokens=r.max_context,
        schedule=r.schedule,
        retries=r.retries,
        episode_timeout=r.episode_timeout,
    )


def build_actor(recipe: Recipe, engine: Engine, *, purpose: str, temperature: float, adapter: str | None = ACTOR) -> ModelActor:
    r = recipe.rollout
    return ModelActor(
        engine,
        adapter,
        recipe.run.seed,
        purpose=purpose,
        mode=r.mode,
        format=r.format,
        temperature=temperature,
        max_tokens=r.max_response,
        sessions=r.context == "append",
    )


def build_method(recipe: Recipe, engine: Engine, collector: Collector, suite: Suite, folder: Path) -> Method:
    """The method of a recipe; what it keeps beside the weights (a skill bank) lies in `folder`."""
    from gongfu.methods.grpo import GRPO

    check_offers(recipe.method, suite)
    if isinstance(recipe.method, UniSkillConfig):
        from gongfu.run.build_uniskill import build_uniskill

        return build_uniskill(recipe, recipe.method, engine, collector, suite, folder)
    if isinstance(recipe.method, RoleAgentConfig):
        from gongfu.run.build_role_agent import build_role_agent

        return build_role_agent(recipe, recipe.method, engine, collector, suite)
    if isinstance(recipe.method, PPOConfig):
        return _build_ppo(recipe, recipe.method, engine, collector, suite)
    return GRPO(
        engine=engine,
        collector=collector,
        actor=build_actor(recipe, engine, purpose="train", temperature=recipe.rollout.temperature),
        tasks=TaskSampler(suite.tasks("train"), recipe.run.seed),
        settings=recipe.method,
        optim=optim_params(recipe, recipe.optim.lr),
        schedule=schedule(recipe),
        seed=recipe.run.seed,
        adapter=ACTOR,
        concurrency=recipe.rollout.concurrency,
    )


def _build_ppo(recipe: Recipe, s: PPOConfig, engine: Engine, collector: Collector, suite: Suite) -> Method:
    from gongfu.methods.ppo import PPO, answers

    answers(engine.tokenizer)
    return PPO(
        engine=engine,
        collector=collector,
        actor=build_actor(recipe, engine, purpose="train", temperature=recipe.rollout.temperature),
        tasks=TaskSampler(suite.tasks("train"), recipe.run.seed),
        settings=s,
        optim=optim_params(recipe, recipe.optim.lr),
        schedule=schedule(recipe),
        seed=recipe.run.seed,
        adapter=ACTOR,
        critic=CRITIC,
        concurrency=recipe.rollout.concurrency,
    )


def schedule(recipe: Recipe) -> Schedule:
    return Schedule(recipe.run.steps, recipe.optim.warmup_steps, recipe.optim.decay)


def optim_params(recipe: Recipe, lr: float) -> OptimParams:
    o = recipe.optim
    return OptimParams(lr, o.betas, o.eps, o.weight_decay, o.clip)
