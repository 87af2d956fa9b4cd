"""From a recipe to Role-Agent with its predictions and its failure curriculum."""

from __future__ import annotations

from functools import partial
from typing import Any

from gongfu.config.role_agent import RoleAgentConfig
from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError, TokenError
from gongfu.engine.protocol import Engine
from gongfu.envs.protocol import Suite
from gongfu.envs.takeover import critical_step
from gongfu.methods.role_agent.agent_in_world import AgentInWorld
from gongfu.methods.role_agent.curriculum import FailureCurriculum
from gongfu.methods.role_agent.method import RoleAgent
from gongfu.methods.role_agent.world_in_agent import WorldInAgent, horizon_of
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import conversation_gap
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import ACTOR, build_actor, optim_params, schedule
from gongfu.run.demonstrations import expert_for


def build_role_agent(recipe: Recipe, s: RoleAgentConfig, engine: Engine, collector: Collector, suite: Suite) -> RoleAgent:
    seed = recipe.run.seed
    horizon = horizon_of(s.prediction, suite.max_steps)
    system = collector.rules.system(collector.instructions)
    concurrency = recipe.rollout.concurrency
    if horizon:
        _can_go_on(engine, system)
    world = WorldInAgent(engine, ACTOR, collector.rules, system, s.prediction, horizon, seed, concurrency)
    return RoleAgent(
        engine=engine,
        collector=collector,
        actor=build_actor(recipe, engine, purpose="train", temperature=recipe.rollout.temperature),
        curriculum=FailureCurriculum(TaskSampler(suite.tasks("train"), seed), s.failures, seed),
        world=world if horizon else None,
        onlooker=_onlooker(s, engine, suite, seed) if s.failures.share else None,
        settings=s,
        optim=optim_params(recipe, recipe.optim.lr),
        schedule=schedule(recipe),
        seed=seed,
        adapter=ACTOR,
        concurrency=concurrency,
    )


def _onlooker(s: RoleAgentConfig, engine: Engine, suite: Any, seed: int) -> AgentInWorld:
    point = None
    if hasattr(suite, "expert"):
        point = partial(critical_step, suite, expert_for=expert_for(suite, seed))
    diagnose = suite if hasattr(suite, "diagnose") else None
    return AgentInWorld(engine, ACTOR, s.failures, suite.failure_modes, seed, diagnose, point)


def _can_go_on(engine: Engine, system: str | None) -> None:
    """Predictions are asked for after the action, in the same conversation."""
    try:
        conversation_gap(engine.tokenizer, system)
    except TokenError as e:
        raise ConfigError(
            "this model's chat template rewrites earlier turns, so nothing can be asked after an action: set "
            "method.prediction.horizon = 0, or give the model a template that keeps them"
        ) from e
