"""Everything about a recipe that can be checked without loading a model."""

from __future__ import annotations

from importlib.util import find_spec

from gongfu.config.schema import HouseholdConfig, Recipe
from gongfu.core.errors import ConfigError, MissingExtra
from gongfu.engine.models import find_model
from gongfu.run.build import build_suite


def preflight(recipe: Recipe) -> list[str]:
    """Raises the first problem; returns lines that say what was found. Imports no torch."""
    require_train_extra()
    if recipe.run.tensorboard and find_spec("tensorboardX") is None:
        raise MissingExtra("run.tensorboard = true", "tensorboard")
    if isinstance(recipe.suite, HouseholdConfig) and recipe.suite.engine == "official" and find_spec("alfworld") is None:
        raise MissingExtra('suite.engine = "official"', "alfworld")
    model = find_model(recipe.engine.model)
    suite = build_suite(recipe.suite)
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
        f"model {recipe.engine.model}: {model or 'on the Hugging Face hub, downloaded when it is first used'}",
        f"suite {suite.name}: " + ", ".join(f"{count} tasks in {split!r}" for split, count in counts.items()),
        f"first task starts with {len(start.text.split())} words and {len(start.actions or ())} admissible actions",
        f"each step plays {method.tasks} tasks x {method.group_size} rollouts = {method.tasks * method.group_size} episodes "
        f"of at most {suite.max_steps} turns",
    ]


def require_train_extra() -> None:
    for package in ("torch", "transformers", "peft", "safetensors", "tokenizers", "matplotlib"):
        if find_spec(package) is None:
            raise MissingExtra("training and evaluation", "train")
