"""Runs one recipe over several seeds and puts before and after side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from _record import record as record

from gongfu.config.load import load, to_toml
from gongfu.config.schema import Recipe
from gongfu.run.evaluate import compare, evaluate_runs
from gongfu.run.folder import read_metrics


def recipe_of(name: str, overrides: Sequence[str]) -> Recipe:
    return load(Recipe, files=[ROOT / "recipes" / name], overrides=list(overrides)).config


def trained(recipe: Recipe) -> Path:
    """The finished run of a recipe: trained now, gone on with where it was killed, or left alone where it is finished."""
    from gongfu.run.checkpoint import CheckpointStore
    from gongfu.run.train import resume_run, train_run

    run = Path(recipe.run.folder) / recipe.run.name
    if not (run / "run.json").exists():
        train_run(recipe)
        return run
    if (run / "config.toml").read_text(encoding="utf-8") != to_toml(recipe):
        raise SystemExit(f"{run} is a run of other settings: choose another folder with --runs")
    if recipe.run.steps not in CheckpointStore(run / "checkpoints").list():
        resume_run(run)
    return run


def before_and_after(run: Path, split: str, tasks: int) -> dict[str, Any]:
    """Success of the starting and of the last weights on the same tasks, with the paired difference."""
    before, after = compare(evaluate_runs([f"{run}@start", str(run)], split=split, tasks=tasks, rollouts=1, temperature=None))
    return {
        "before": before["success"],
        "after": after["success"],
        "difference": after["difference"],
        "n": after["n"],
        "turns": [before["turns"], after["turns"]],
        "by_kind": {"before": before["success_by_kind"], "after": after["success_by_kind"]},
    }


def curve(run: Path) -> list[tuple[int, float]]:
    """(step, held-out success) of the evaluations during training."""
    return [(m["step"], m["success"]) for m in read_metrics(run / "metrics.jsonl") if m["phase"] == "eval"]


def sampled(run: Path) -> list[tuple[int, float]]:
    """(step, success of the training rollouts); their tasks differ from step to step."""
    return [(m["step"], m["rollout/success"]) for m in read_metrics(run / "metrics.jsonl") if m["phase"] == "train"]


def plot(curves: dict[str, list[tuple[int, float]]], title: str, path: Path, ylabel: str = "success on held-out tasks") -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), dpi=140)
    for label, points in curves.items():
        axes.plot([s for s, _ in points], [v for _, v in points], marker="o", label=label)
    axes.set(title=title, xlabel="training step", ylabel=ylabel, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
