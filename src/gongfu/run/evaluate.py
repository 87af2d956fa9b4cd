"""Success on a fixed list of tasks: during training, and for several checkpoints side by side."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.config.uniskill import UniSkillConfig
from gongfu.core.errors import CheckpointError, ConfigError
from gongfu.core.records import Task, Trajectory
from gongfu.engine.protocol import Engine
from gongfu.envs.protocol import Suite
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.measure import losses, success_by_kind
from gongfu.run.build import ACTOR, build_actor, build_collector, build_engine, build_runner, load_suite
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.stats import paired_bootstrap, wilson

_log = logging.getLogger("gongfu.run")


@dataclass(frozen=True)
class Evaluation:
    """Episodes of a policy on a fixed list of tasks."""

    label: str
    split: str
    trajectories: tuple[Trajectory, ...]

    @property
    def kept(self) -> list[Trajectory]:
        return [t for t in self.trajectories if not lost(t)]

    def record(self) -> dict[str, Any]:
        """What metrics.jsonl keeps of it. `low`, `high`: 95 % Wilson interval of the success share."""
        kept = self.kept
        wins = sum(t.success for t in kept)
        low, high = wilson(wins, len(kept))
        return {
            "split": self.split,
            "checkpoint": self.label,
            "n": len(kept),
            "lost": len(self.trajectories) - len(kept),
            "success": wins / max(1, len(kept)),
            "low": low,
            "high": high,
            "success_by_kind": success_by_kind(kept),
            "turns": sum(len(t.turns) for t in kept) / max(1, len(kept)),
            "skills_shown": sum(bool(t.skills) for t in kept) / max(1, len(kept)),
        }


def fixed_tasks(suite: Suite, split: str, count: int) -> Sequence[Task]:
    """The first `count` tasks of a split, always the same."""
    tasks = suite.tasks(split)
    if not tasks:
        raise ConfigError(f"split {split!r} of suite {suite.name!r} is empty; the suite has {', '.join(suite.splits)}")
    return tasks[:count]


def evaluate(
    recipe: Recipe,
    engine: Engine,
    collector: Collector,
    tasks: Sequence[Task],
    *,
    label: str,
    split: str,
    rollouts: int = 1,
    temperature: float | None = None,
    adapter: str | None = ACTOR,
    skills: Sequence[Mapping[str, str]] | None = None,
) -> Evaluation:
    """Play the tasks with the current weights, and with these skills (id -> text, for each task).

    The same seeds for every checkpoint, so that runs can be paired. Raises EnvError when all episodes were lost.
    """
    temperature = recipe.eval.temperature if temperature is None else temperature
    actor = build_actor(recipe, engine, purpose="eval", temperature=temperature, adapter=adapter)
    played = collector.collect(actor, tasks, group_size=rollouts, skills=skills, concurrency=recipe.rollout.concurrency)
    if line := losses(played):
        _log.warning("%s, %s: %s", label, split, line)
    return Evaluation(label, split, tuple(played))


def evaluate_runs(
    refs: Sequence[str],
    *,
    split: str | None,
    tasks: int | None,
    rollouts: int,
    temperature: float | None,
    skills: Literal["with", "without", "both"] = "both",
) -> list[Evaluation]:
    """Each checkpoint ("run", "run@120", "run@best", "run@start") on the same tasks.

    A checkpoint with a skill bank plays them with its skills, without, or both, one evaluation each.
    """
    found = [_find(ref) for ref in refs]
    results = []
    for ref, point in zip(refs, found, strict=True):
        recipe = point.recipe
        suite = load_suite(recipe)
        chosen = split or recipe.eval.split
        todo = fixed_tasks(suite, chosen, tasks or recipe.eval.tasks)
        with (
            closing(build_engine(recipe, Path(), sample_only=True)) as engine,
            closing(build_runner(recipe, suite)) as runner,
        ):
            if point.weights is not None:
                engine.load(str(point.weights), weights_only=True)
                engine.sync()
            collector = build_collector(recipe, suite, engine.tokenizer, runner)
            for label, shown in _showings(ref, point, collector, todo, skills):
                results.append(
                    evaluate(
                        recipe,
                        engine,
                        collector,
                        todo,
                        label=label,
                        split=chosen,
                        rollouts=rollouts,
                        temperature=temperature,
                        skills=shown,
                    )
                )
    return results


def _showings(
    ref: str, point: _Point, collector: Collector, tasks: Sequence[Task], skills: str
) -> Iterator[tuple[str, list[dict[str, str]] | None]]:
    """(label, skills of each task) of the evaluations of one checkpoint."""
    if not point.bank or not isinstance(point.recipe.method, UniSkillConfig):
        yield ref, None
        return
    from gongfu.run.build_uniskill import skills_at

    if skills != "without":
        yield f"{ref} with skills", skills_at(point.recipe.method, point.run, point.bank, collector, tasks)
    if skills != "with":
        yield f"{ref} without skills", None


@dataclass(frozen=True)
class _Point:
    """What a reference to a checkpoint names."""

    recipe: Recipe
    run: Path
    weights: Path | None
    """None: the untrained adapter."""
    bank: str = ""
    """Commit of the skill bank, "" = there is none."""


def _find(ref: str) -> _Point:
    name, _, which = ref.partition("@")
    path = Path(name)
    if path.parent.name == "checkpoints":
        path, which = path.parent.parent, path.name
    if not (path / "config.toml").is_file():
        raise CheckpointError(f"{ref}: there is no run at {path} (no config.toml); give a run folder, or run@step")
    recipe = load(Recipe, files=[path / "config.toml"]).config
    if which == "start":
        return _Point(recipe, path, weights_of(recipe.run.start_from) if recipe.run.start_from else None)
    checkpoint, state = _checkpoint(ref if which else f"{path}@latest")
    return _Point(recipe, path, checkpoint / state["engine"], state.get("method", {}).get("bank", ""))


def weights_of(ref: str) -> Path:
    """Folder with the engine's weights of "run", "run@step", "run@best" or a checkpoint folder; verified."""
    checkpoint, state = _checkpoint(ref)
    return checkpoint / state["engine"]


def _checkpoint(ref: str) -> tuple[Path, dict[str, Any]]:
    name, _, which = ref.partition("@")
    path = Path(name)
    if path.parent.name == "checkpoints":
        path, which = path.parent.parent, path.name
    if not (path / "checkpoints").is_dir():
        raise CheckpointError(f"{ref}: there are no checkpoints at {path}; give a run folder, run@step or run@best")
    checkpoint, state = CheckpointStore(path / "checkpoints").load(int(which) if which.isdigit() else which or "latest")
    return checkpoint.resolve(), state


def compare(results: Sequence[Evaluation], *, seed: int = 0) -> list[dict[str, Any]]:
    """One record a checkpoint; from the second on with its difference to the first, paired by task and rollout."""
    records = []
    for result in results:
        record = result.record()
        if result is not results[0]:
            first = {t.id: t.success for t in results[0].kept}
            pairs = [(first[t.id], t.success) for t in result.kept if t.id in first]
            if pairs:
                difference = paired_bootstrap([a for a, _ in pairs], [b for _, b in pairs], seed=seed)
                record["difference"] = {
                    "mean": difference.mean,
                    "low": difference.low,
                    "high": difference.high,
                    "n": len(pairs),
                }
        records.append(record)
    return records


def show_evaluation(results: Sequence[Evaluation], *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    records = compare(results)
    if as_json:
        print(json.dumps(records, indent=1))
        return
    kinds = sorted({kind for r in records for kind in r["success_by_kind"]})
    table = Table(title=f"Success on {records[0]['n']} episodes of {records[0]['split']!r}", title_justify="left")
    for i, column in enumerate(("checkpoint", "success", "95 %", "vs first (paired)", "turns", *kinds)):
        table.add_column(column, justify="left" if i == 0 else "right")
    for r in records:
        d = r.get("difference")
        table.add_row(
            r["checkpoint"],
            f"{r['success']:.3f}",
            f"{r['low']:.3f} - {r['high']:.3f}",
            f"{d['mean']:+.3f} ({d['low']:+.3f} - {d['high']:+.3f})" if d else "",
            f"{r['turns']:.1f}",
            *(f"{r['success_by_kind'].get(kind, float('nan')):.2f}" for kind in kinds),
        )
    Console().print(table)
