"""Runs recipes over several seeds and puts before and after, or arm and arm, side by side."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from _record import commit as commit
from _record import machine as machine
from _record import record as record

from gongfu.config.load import load, to_toml
from gongfu.config.schema import Recipe
from gongfu.run.evaluate import Evaluation, compare, evaluate_runs
from gongfu.run.folder import read_metrics, write_atomic
from gongfu.run.stats import paired_bootstrap, wilson

SPLITS = ("seen", "unseen")

Wins = Mapping[str, Mapping[str, list[bool]]]
"""Split -> "start", "with" or "without" -> success on each task. "with" is there when the run has a bank."""

Metrics = Sequence[Mapping[str, Any]]
"""The records of a run's metrics.jsonl, oldest first."""


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


def metrics_of(run: Path) -> Metrics:
    return read_metrics(run / "metrics.jsonl")


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


def held_out(run: Path, recipe: Recipe, tasks: int) -> Wins:
    """Success of the starting and of the last policy, task by task; kept in the run's folder."""
    kept = run / f"held-out-{tasks}.json"
    if not kept.exists():
        names = ["with", "without"] if recipe.method.name == "uniskill" else ["without"]
        found = {}
        for split, start in _at_start(run, recipe, tasks).items():
            results = evaluate_runs([str(run)], split=split, tasks=tasks, rollouts=1, temperature=None)
            found[split] = {"start": start, **{n: _successes(r) for n, r in zip(names, results, strict=True)}}
        write_atomic(kept, json.dumps(found))
    return json.loads(kept.read_bytes())


def _at_start(run: Path, recipe: Recipe, tasks: int) -> Mapping[str, list[bool]]:
    """Split -> success of the starting policy on each task: played once for all arms that begin alike, kept beside them."""
    alike = (recipe.run.seed, recipe.run.start_from, recipe.engine, recipe.suite, recipe.rollout, tasks)
    kept = run.parent / f"start-{hashlib.sha256(repr(alike).encode()).hexdigest()[:16]}.json"
    if not kept.exists():
        results = {s: evaluate_runs([f"{run}@start"], split=s, tasks=tasks, rollouts=1, temperature=None) for s in SPLITS}
        write_atomic(kept, json.dumps({split: _successes(start) for split, (start,) in results.items()}))
    return json.loads(kept.read_bytes())


def _successes(result: Evaluation) -> list[bool]:
    return [t.success for t in result.trajectories]


def shares(won: Wins) -> dict[str, dict[str, dict[str, float]]]:
    """Split -> policy -> success and its 95 % Wilson interval."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for split, policies in won.items():
        for name, successes in policies.items():
            low, high = wilson(sum(successes), len(successes))
            row = {"success": fmean(successes), "low": round(low, 4), "high": round(high, 4)}
            found.setdefault(split, {})[name] = row
    return found


def mean_shares(won: Sequence[Wins]) -> dict[str, dict[str, float]]:
    """Split -> policy -> success, the mean over seeds."""
    return {
        split: {name: round(fmean(fmean(w[split][name]) for w in won), 4) for name in policies}
        for split, policies in won[0].items()
    }


def differences(
    won: Sequence[Wins], base: Sequence[Wins], names: Sequence[str] = ("with", "without")
) -> dict[str, dict[str, Any]]:
    """Split -> "with" or "without" -> success less that of the other arm.

    `low` and `high`: 95 % of resamples of the tasks. They do not say how much another training would differ; `seeds` does.
    """
    found: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        for name in names:
            d = paired_bootstrap(by_task(base, split, "without"), by_task(won, split, name), seed=0)
            row: dict[str, Any] = {"mean": round(d.mean, 4), "low": round(d.low, 4), "high": round(d.high, 4)}
            each = [fmean(w[split][name]) - fmean(b[split]["without"]) for w, b in zip(won, base, strict=True)]
            row["seeds"] = [round(value, 4) for value in each]
            found.setdefault(split, {})[name] = row
    return found


def by_task(won: Sequence[Wins], split: str, name: str) -> list[float]:
    """Mean success on each task over the seeds."""
    return [fmean(successes) for successes in zip(*(w[split][name] for w in won), strict=True)]


def curves(runs: Mapping[str, Sequence[Metrics]]) -> dict[str, list[tuple[int, float]]]:
    """Held-out success during training, the mean over seeds; of arms with a bank also without its skills."""
    found = {}
    for arm, seeds in runs.items():
        for label, key in ((arm, "success"), (f"{arm}, no skills shown", "success_without_skills")):
            points: dict[int, list[float]] = defaultdict(list)
            for m in (m for metrics in seeds for m in metrics if m["phase"] == "eval" and key in m):
                points[m["step"]].append(m[key])
            if points:
                found[label] = [(step, fmean(values)) for step, values in sorted(points.items())]
    return found


def step_seconds(metrics: Metrics) -> list[float]:
    return [m["time/step_s"] for m in metrics if m["phase"] == "train"]


def curve(metrics: Metrics) -> list[tuple[int, float]]:
    """(step, held-out success) of the evaluations during training."""
    return [(m["step"], m["success"]) for m in metrics if m["phase"] == "eval"]


def sampled(metrics: Metrics) -> list[tuple[int, float]]:
    """(step, success of the training rollouts); their tasks differ from step to step."""
    return [(m["step"], m["rollout/success"]) for m in metrics if m["phase"] == "train"]


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


def forest(found: Mapping[str, Mapping[str, Mapping[str, Any]]], title: str, path: Path, name: str = "without") -> None:
    """What `differences` gives, one line an arm, one panel a split: the mean, its interval and each seed (a ring)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (10, 1.4 + 0.36 * len(found))
    figure, row = plt.subplots(1, len(SPLITS), figsize=size, dpi=140, sharex=True, sharey=True, squeeze=False)
    for axes, split in zip(row[0], SPLITS, strict=True):
        for y, rows in enumerate(found.values()):
            d = rows[split][name]
            axes.plot([d["low"], d["high"]], [y, y], color="#1f77b4", lw=2)
            axes.plot(d["mean"], y, "o", color="#1f77b4")
            axes.plot(d["seeds"], [y] * len(d["seeds"]), "o", mfc="none", color="#888888", ms=5)
        axes.axvline(0, color="black", lw=0.8)
        axes.set(title=f"held out, {split}", yticks=range(len(found)), yticklabels=found)
        axes.grid(axis="x", alpha=0.3)
    row[0][0].invert_yaxis()
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def stacked(panels: Mapping[str, Mapping[str, Sequence[float]]], title: str, path: Path, *, window: int = 5) -> None:
    """Shares over the steps, one panel an arm (arm -> name -> share in each step), as running means."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, row = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 4.6), dpi=140, sharey=True, squeeze=False)
    names = sorted({name for shares in panels.values() for name in shares})
    for axes, (arm, shares) in zip(row[0], panels.items(), strict=True):
        length = max(map(len, shares.values()), default=0)
        values = [shares.get(name, [0.0] * length) for name in names]
        smooth = [[fmean(v[max(0, k + 1 - window) : k + 1]) for k in range(length)] for v in values]
        axes.stackplot(range(1, length + 1), smooth, labels=[name.replace("_", " ") for name in names], alpha=0.8, lw=0)
        axes.set(title=arm, xlabel="training step", ylim=(0, 1), xlim=(1, max(2, length)))
    row[0][0].set_ylabel("share of the tasks drawn")
    figure.suptitle(title)
    figure.legend(*row[0][0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
