"""The command side of `gongfu pretrain`: a recipe in, a model folder out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gongfu.config.schema import Recipe
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.runner import InlineRunner
from gongfu.rollout.collector import Collector
from gongfu.run.build import build_collector, load_suite
from gongfu.run.preflight import require_train_extra

Report = Callable[[int, dict[str, float]], None]


def pretrain_run(recipe: Recipe, *, report: Report, snapshots: tuple[int, ...] = ()) -> Path:
    """Train the nano model of a recipe; returns its folder. Use it with --engine.model FOLDER."""
    require_train_extra()
    from gongfu.engine.runtime import prepare_cpu

    prepare_cpu()
    import torch

    from gongfu.run.pretrain import pretrain

    if recipe.run.threads:
        torch.set_num_threads(recipe.run.threads)
    suite = load_suite(recipe)
    runner = InlineRunner(suite)

    def make_collector(tokenizer: Tokenizer) -> Collector:
        return build_collector(recipe, suite, tokenizer, runner)

    return pretrain(recipe, suite, make_collector, Path(recipe.pretrain.out), report=report, snapshots=snapshots)
