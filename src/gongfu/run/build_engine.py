"""The engine of a recipe."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gongfu.config.engines import VerlEngineConfig
from gongfu.config.methods import PPOConfig
from gongfu.config.schema import Recipe
from gongfu.core.errors import MissingExtra
from gongfu.core.seeds import seed_for
from gongfu.engine.protocol import Engine, LoraSpec

if TYPE_CHECKING:
    from gongfu.engine.local.engine import LocalEngine
    from gongfu.engine.verl.engine import VerlEngine

ACTOR = "actor"
"""Name of the adapter that acts."""
CRITIC = "critic"
"""Name of PPO's adapter that values."""


def build_engine(recipe: Recipe, store: Path, *, sample_only: bool = False) -> Engine:
    """The engine of a recipe with the actor's adapter; `store` receives what the engine saves.

    `sample_only`: for evaluations; a checkpoint of any engine can be played by the local one, which starts no workers. A new
    engine that trains elsewhere is compared with the local one first, if the recipe says so.
    """
    from gongfu.engine.runtime import prepare_cpu

    prepare_cpu()
    if sample_only or not isinstance(recipe.engine, VerlEngineConfig):
        engine = _local(recipe, store)
    else:
        if recipe.engine.check:
            _check(recipe)
        engine = _verl(recipe, recipe.engine, store)
    for name in (ACTOR, *([CRITIC] if isinstance(recipe.method, PPOConfig) else [])):
        engine.create_adapter(name, lora_spec(recipe, name))
    return engine


def lora_spec(recipe: Recipe, name: str = ACTOR) -> LoraSpec:
    lora = recipe.lora
    return LoraSpec(lora.rank, lora.alpha, tuple(lora.targets), seed=seed_for(recipe.run.seed, purpose=f"adapter {name}"))


def require_engine_extra(recipe: Recipe) -> None:
    """Raises MissingExtra where the packages of a recipe's engine are not installed. Imports nothing."""
    if isinstance(recipe.engine, VerlEngineConfig) and (find_spec("verl") is None or find_spec("ray") is None):
        raise MissingExtra('engine.name = "verl"', "verl")


def _local(recipe: Recipe, store: Path) -> LocalEngine:
    from gongfu.engine.local.engine import LocalEngine
    from gongfu.engine.models import resolve_model

    e = recipe.engine
    return LocalEngine(
        resolve_model(e.model),
        store=store,
        dtype=e.dtype,
        device=e.sampler_device if isinstance(e, VerlEngineConfig) else e.device,
        micro_batch_tokens=e.micro_batch_tokens,
        score_batch_tokens=e.score_batch_tokens,
        cache_tokens=e.cache_tokens,
        fast=e.fast,
        threads=recipe.run.threads or None,
    )


def _verl(recipe: Recipe, e: VerlEngineConfig, store: Path) -> VerlEngine:
    require_engine_extra(recipe)
    from gongfu.engine.verl.engine import VerlEngine

    return VerlEngine(
        _local(recipe, store),
        workers=e.workers,
        device=e.device,
        micro_batch_tokens=e.micro_batch_tokens,
        timeout=e.timeout,
        ray_address=e.ray_address,
    )


def _check(recipe: Recipe) -> None:
    """Train a throw-away engine and the local one a few steps; raises EngineError where they part."""
    from gongfu.engine.check import check

    assert isinstance(recipe.engine, VerlEngineConfig)
    with tempfile.TemporaryDirectory() as folder:
        engine = _verl(recipe, recipe.engine, Path(folder))
        try:
            tolerance = 0.05 if engine.half else 1e-3
            check(engine, reference=_local(recipe, Path(folder) / "reference"), steps=2, tolerance=tolerance)
        finally:
            engine.close()
