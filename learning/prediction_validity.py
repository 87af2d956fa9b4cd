"""Does it show in what an agent foresees whether it will succeed, and does it foresee better as it learns?

A fixed policy plays, and predicts after every action what it will observe. `r_pb` is the point-biserial correlation of an
episode's mean likeness of predictions with its success (the paper: 0.41 over 200 episodes of ALFWorld), `ci` its 95 % bootstrap
interval over tasks. `over_training`: mean likeness, in successes, in each third of the finished runs of role_agent_nano.py.

    python learning/prediction_validity.py
    python learning/prediction_validity.py --tasks 4 --rollouts 2       # a try, writes no result
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from _finished import FinishedRuns
from _study import recipe_of, record
from role_agent_nano import FINISHED, SUITES, thirds
from role_agent_nano import TASKS as STUDY_TASKS

TASKS, ROLLOUTS = 50, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="episodes of each task")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    alike, success, tasks = play(options)
    runs = [run.metrics for run in FinishedRuns(FINISHED, ()).named("household/role-agent-[0-9]", STUDY_TASKS)]
    low, high = interval(alike, success, tasks, options.seed)
    result: dict[str, Any] = {"r_pb": correlation(alike, success), "ci": [low, high], "episodes": len(alike)}
    for name, flag in (("successes", True), ("failures", False)):
        result[f"alike_{name}"] = round(fmean(a for a, s in zip(alike, success, strict=True) if s is flag), 4)
    result["over_training"] = thirds(runs, "prediction/similarity") if runs else None
    full = options.tasks >= TASKS and options.rollouts >= ROLLOUTS
    record("prediction_validity", {**result, "actor": "nano", "seed": options.seed}, full=full)


def play(options: argparse.Namespace) -> tuple[list[float], list[bool], list[str]]:
    """Mean likeness, success and task of every episode."""
    from gongfu.methods.role_agent.world_in_agent import similarities
    from gongfu.run import build

    recipe = recipe_of("role_agent/household-nano.toml", [f"--run.seed={options.seed}", *SUITES["household"]])
    suite = build.build_suite(recipe.suite)
    with tempfile.TemporaryDirectory() as folder:
        engine = build.build_engine(recipe, Path(folder))
        engine.sync()
        collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
        method: Any = build.build_method(recipe, engine, collector, suite, Path(folder))
        tasks = suite.tasks("seen")[: options.tasks]
        played = collector.collect(method.actor, tasks, group_size=options.rollouts, concurrency=method.concurrency)
        predicted = method.world.predict(played, 0)
        engine.close()
    played = [t for t in played if t.turns]
    alike = [fmean(r for row in similarities(t, predicted[t.id]) for r in row) for t in played]
    return alike, [t.success for t in played], [t.task.id for t in played]


def correlation(alike: list[float], success: list[bool]) -> float:
    return round(float(np.corrcoef(alike, np.array(success, dtype=float))[0, 1]), 4)


def interval(
    alike: list[float], success: list[bool], tasks: list[str], seed: int, resamples: int = 2000
) -> tuple[float, float]:
    """95 % of the correlations that whole tasks, drawn with replacement, give."""
    members: dict[str, list[int]] = {}
    for i, task in enumerate(tasks):
        members.setdefault(task, []).append(i)
    groups, generator, found = list(members.values()), np.random.default_rng(seed), []
    for _ in range(resamples):
        drawn = [i for g in generator.integers(len(groups), size=len(groups)) for i in groups[g]]
        a, s = np.array(alike)[drawn], np.array(success, dtype=float)[drawn]
        if np.ptp(s) and np.ptp(a):
            found.append(float(np.corrcoef(a, s)[0, 1]))
    if not found:
        return float("nan"), float("nan")
    low, high = np.quantile(found, [0.025, 0.975])
    return round(float(low), 4), round(float(high), 4)


if __name__ == "__main__":
    main()
