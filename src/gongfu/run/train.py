"""The training loop: step, write, evaluate, checkpoint; resumable at any moment to the same numbers."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from gongfu.config.load import load, to_toml
from gongfu.config.schema import Recipe
from gongfu.engine.protocol import Engine
from gongfu.methods.base import Method
from gongfu.rollout.collector import Collector
from gongfu.rollout.measure import losses
from gongfu.run.build import build_collector, build_engine, build_method, build_runner, load_suite
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.evaluate import Evaluation, evaluate, fixed_tasks, weights_of
from gongfu.run.folder import RunFolder
from gongfu.run.preflight import preflight
from gongfu.run.report import write_report
from gongfu.run.track import Tracker
from gongfu.run.trajectories import TrajectoryStore


def train_run(recipe: Recipe) -> Path:
    """Train by a recipe in a new run folder; returns the path of the report."""
    preflight(recipe)
    if recipe.run.start_from:
        weights_of(recipe.run.start_from)
    info = {"command": recipe.method.name, "seed": recipe.run.seed, "model": recipe.engine.model}
    with RunFolder.create(Path(recipe.run.folder) / recipe.run.name, config_toml=to_toml(recipe), info=info) as folder:
        return _Training(recipe, folder).run(resumed=False)


def resume_run(path: Path) -> Path:
    """Continue a run from its newest good checkpoint, by its own recipe; returns the path of the report."""
    with RunFolder.open(path) as folder:
        recipe = load(Recipe, files=[folder.path / "config.toml"]).config
        preflight(recipe)
        return _Training(recipe, folder).run(resumed=True)


class _Training:
    """One process's work on one run folder."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self.recipe, self.folder = recipe, folder
        self.suite = load_suite(recipe)
        self.eval_tasks = fixed_tasks(self.suite, recipe.eval.split, recipe.eval.tasks)
        self.checkpoints = CheckpointStore(folder.checkpoints, keep_last=recipe.run.keep_last)
        self.trajectories = TrajectoryStore(folder.trajectories)

    def run(self, *, resumed: bool) -> Path:
        recipe = self.recipe
        with (
            closing(build_engine(recipe, self.folder.path)) as engine,
            closing(build_runner(recipe, self.suite)) as runner,
        ):
            collector = build_collector(recipe, self.suite, engine.tokenizer, runner)
            method = build_method(recipe, engine, collector, self.suite, self.folder.path)
            with Tracker(self.folder, total=recipe.run.steps, tensorboard=recipe.run.tensorboard) as tracker:
                step = self._restore(engine, method, tracker) if resumed else None
                if step is None:
                    self._start(engine, method, collector, tracker)
                    step = 0
                self._loop(step, engine, method, collector, tracker)
        return write_report(self.folder)

    def _start(self, engine: Engine, method: Method, collector: Collector, tracker: Tracker) -> None:
        if self.recipe.run.start_from:
            engine.load(str(weights_of(self.recipe.run.start_from)), weights_only=True)
        engine.sync()
        self._evaluate(0, engine, method, collector, tracker)
        self._checkpoint(0, engine, method)

    def _restore(self, engine: Engine, method: Method, tracker: Tracker) -> int | None:
        """Go back to the newest good checkpoint; None when the run was killed before its first one."""
        point = self.checkpoints.resume_point()
        step = point.step if point else -1
        self.folder.truncate_metrics(step)
        self.trajectories.truncate(step)
        if point is None:
            return None
        for refused in point.refused:
            tracker.say(f"checkpoint refused: {refused}")
        self.checkpoints.discard_after(step)
        engine.load(str(point.path / point.state["engine"]))
        method.restore(point.state["method"])
        tracker.say(f"resuming after step {step}")
        return step

    def _loop(self, step: int, engine: Engine, method: Method, collector: Collector, tracker: Tracker) -> None:
        recipe = self.recipe
        with _interrupts() as interrupted:
            while step < recipe.run.steps:
                report = method.step(step)
                step += 1
                if step % recipe.run.trajectories_every == 0:
                    self.trajectories.write(step, "train", report.trajectories)
                tracker.log(step, {"phase": "train", **report.metrics, **_engine_metrics(engine)})
                if line := losses(report.trajectories):
                    tracker.say(f"step {step}: {line}")
                last = step == recipe.run.steps
                evaluated = None
                if last or (recipe.eval.every and step % recipe.eval.every == 0):
                    evaluated = self._evaluate(step, engine, method, collector, tracker)
                if last or evaluated or interrupted or step % recipe.run.checkpoint_every == 0:
                    self._checkpoint(step, engine, method)
                if evaluated:
                    self._remember_best(step, evaluated)
                if interrupted and not last:
                    tracker.say(f"interrupted after step {step}; go on with: gongfu train --resume {self.folder.path}")
                    raise KeyboardInterrupt

    def _evaluate(self, step: int, engine: Engine, method: Method, collector: Collector, tracker: Tracker) -> Evaluation:
        """Success on the fixed tasks; with a skill bank also without its skills, by the same weights and seeds."""
        split, label = self.recipe.eval.split, f"step {step}"
        shown = getattr(method, "shown", None)
        skills = shown(self.eval_tasks) if shown else None
        result = evaluate(self.recipe, engine, collector, self.eval_tasks, label=label, split=split, skills=skills)
        record = result.record()
        if skills is not None:
            plain = result
            if any(skills):
                plain = evaluate(self.recipe, engine, collector, self.eval_tasks, label=label, split=split)
            record["success_without_skills"] = plain.record()["success"]
        self.trajectories.write(step, f"eval-{split}", result.trajectories)
        tracker.log(step, {"phase": "eval", **record})
        return result

    def _checkpoint(self, step: int, engine: Engine, method: Method) -> None:
        def write(folder: Path) -> dict[str, Any]:
            engine.save(str(folder / "engine"))
            return {"engine": "engine", "method": method.state()}

        self.checkpoints.save(step, write)

    def _remember_best(self, step: int, evaluated: Evaluation) -> None:
        success = evaluated.record()["success"]
        best = self.checkpoints.best()
        if best is None or success > best["success"]:
            self.checkpoints.mark_best(step, success=success, split=evaluated.split)


def _engine_metrics(engine: Engine) -> dict[str, float]:
    """The engine's counters since its start, where it keeps any (they begin anew after a resume, so: perf/)."""
    stats = getattr(engine, "stats", None)
    return {f"perf/{name}": value for name, value in stats().items()} if stats else {}


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM is noted (the list fills) and the step goes on to its end; the second one stops at once."""
    caught: list[int] = []

    def note(number: int, frame: object) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    old = {}
    with contextlib.suppress(ValueError):  # not in the main thread: signals stay as they are
        old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
