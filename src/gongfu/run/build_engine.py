"""The engine of a recipe."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gongfu.config.engines import LocalEngineConfig, TinkerEngineConfig, VerlEngineConfig
from gongfu.config.methods import PPOConfig
from gongfu.config.schema import Recipe
from gongfu.core.errors import MissingExtra
from gongfu.core.seeds import seed_for
from gongfu.engine.protocol import Engine, LoraSpec

if TYPE_CHECKING:
    from gongfu.engine.local.engine import LocalEngine
    from gongfu.engine.tinker.engine import TinkerEngine
    from gongfu.engine.verl.engine import VerlEngine
    from gongfu.engine.vllm.sampler import VllmSampler

ACTOR = "actor"
"""Name of the adapter that acts."""
CRITIC = "critic"
"""Name of PPO's adapter that values."""


def build_engine(recipe: Recipe, store: Path, *, sample_only: bool = False) -> Engine:
    """The engine of a recipe with the actor's adapter; `store` receives what the engine saves.

    `sample_only`: for evaluations; what was trained on verl's workers is played by the local engine, which starts none. A new
    engine that trains elsewhere is compared with the local one first, if the recipe says so.
    """
    from gongfu.engine.runtime import prepare_cpu

    prepare_cpu()
    e = recipe.engine
    if not sample_only:
        require_engine_extra(recipe)
    if not isinstance(e, LocalEngineConfig) and e.check and not sample_only:
        _check(recipe)
    if isinstance(e, TinkerEngineConfig):
        engine: Engine = _tinker(e, store)
    elif isinstance(e, VerlEngineConfig) and not sample_only:
        engine = _verl(recipe, e, store)
    else:
        engine = _local(recipe, store)
    for name in (ACTOR, *([CRITIC] if isinstance(recipe.method, PPOConfig) else [])):
        engine.create_adapter(name, lora_spec(recipe, name))
    return engine


def lora_spec(recipe: Recipe, name: str = ACTOR) -> LoraSpec:
    lora = recipe.lora
    return LoraSpec(lora.rank, lora.alpha, tuple(lora.targets), seed=seed_for(recipe.run.seed, purpose=f"adapter {name}"))


def require_engine_extra(recipe: Recipe) -> None:
    """Raises MissingExtra where the packages of a recipe's engine are not installed. Imports nothing."""
    needed = {"verl": ("verl", "ray"), "tinker": ("tinker",)}.get(recipe.engine.name, ())
    if any(find_spec(package) is None for package in needed):
        raise MissingExtra(f'engine.name = "{recipe.engine.name}"', recipe.engine.name)


def _local(recipe: Recipe, store: Path) -> LocalEngine:
    """The local engine of a recipe; beside an engine elsewhere one that samples, or that it is compared with."""
    from gongfu.engine.local.engine import LocalEngine
    from gongfu.engine.models import resolve_model

    e, threads = recipe.engine, recipe.run.threads or None
    if isinstance(e, TinkerEngineConfig):
        return LocalEngine(resolve_model(e.model), store=store, threads=threads)
    return LocalEngine(
        resolve_model(e.model),
        store=store,
        dtype=e.dtype,
        device=e.sampler_device if isinstance(e, VerlEngineConfig) else e.device,
        micro_batch_tokens=e.micro_batch_tokens,
        score_batch_tokens=e.score_batch_tokens,
        cache_tokens=e.cache_tokens,
        fast=e.fast,
        threads=threads,
    )


def _verl(recipe: Recipe, e: VerlEngineConfig, store: Path) -> VerlEngine:
    from gongfu.engine.verl.engine import VerlEngine

    driver = _local(recipe, store)
    return VerlEngine(
        driver,
        sampler=_sampler(e, driver, store) if e.samplers else None,
        workers=e.workers,
        device=e.device,
        micro_batch_tokens=e.micro_batch_tokens,
        timeout=e.timeout,
        ray_address=e.ray_address,
    )


def _sampler(e: VerlEngineConfig, driver: LocalEngine, store: Path) -> VllmSampler:
    from gongfu.engine.vllm.sampler import VllmSampler

    return VllmSampler(
        e.samplers,
        folder=Path(e.sampler_adapters) if e.sampler_adapters else store / "published",
        backbone=driver.backbone,
        vocab_size=driver.vocab_size,
        stop_ids=driver.tokenizer.stop_ids,
        timeout=e.timeout,
    )


def _tinker(e: TinkerEngineConfig, store: Path) -> TinkerEngine:
    from gongfu.engine.models import resolve_model
    from gongfu.engine.tinker.engine import TinkerEngine

    model = resolve_model(e.model)
    base = e.base_model or str(model)
    return TinkerEngine(model, store=store, base_model=base, url=e.url, dialect=e.dialect, timeout=e.timeout)


def _check(recipe: Recipe) -> None:
    """Train a throw-away engine and the local one a few steps; raises EngineError where they part."""
    from gongfu.engine.check import check

    e = recipe.engine
    assert not isinstance(e, LocalEngineConfig)
    with tempfile.TemporaryDirectory() as folder:
        engine = _tinker(e, Path(folder)) if isinstance(e, TinkerEngineConfig) else _verl(recipe, e, Path(folder))
        try:
            reference = _local(recipe, Path(folder) / "reference")
            check(engine, reference=reference, steps=2, tolerance=0.05 if reference.half else 2e-3)
        finally:
            engine.close()
