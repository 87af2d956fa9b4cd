"""Studies of learning/: what is finished is kept without its run folder, and counts only for the same settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

LEARNING = Path(__file__).resolve().parents[2] / "learning"


def test_a_finished_run_needs_its_folder_no_more(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(LEARNING))
    import _finished
    import _study

    def recipe(folder, *settings):
        small = ["--run.steps=1", "--method.tasks=2", "--method.group-size=2", "--suite.max-steps=4", "--eval.tasks=2"]
        return _study.recipe_of("grpo/household-nano.toml", [*small, "--run.name=grpo-0", f"--run.folder={folder}", *settings])

    def evaluates(names, **settings):
        evaluated.extend(name for name in names if name.endswith("@start"))
        return evaluate(names, **settings)

    evaluated, evaluate = [], _study.evaluate_runs
    monkeypatch.setattr(_study, "evaluate_runs", evaluates)
    runs = _finished.FinishedRuns(tmp_path / "results" / "runs.jsonl", ["success", "time/"])
    first = runs.of("household/grpo-0", recipe(tmp_path / "runs"), 2)
    assert {policy: len(bits) for policy, bits in first.won["seen"].items()} == {"start": 2, "without": 2}
    assert len(_study.step_seconds(first.metrics)) == 1 and all("rollout/success" not in m for m in first.metrics)
    assert any("time/rollout_s" in m for m in first.metrics), "all that begin alike"

    other = runs.of("household/other-0", recipe(tmp_path / "runs", "--run.name=other-0", "--optim.lr=0.5"), 2)
    assert len(evaluated) == 2, "the starting policy plays each split once for all runs that begin alike"
    assert other.won["seen"]["start"] == first.won["seen"]["start"]

    shutil.rmtree(tmp_path / "runs")
    assert runs.of("household/grpo-0", recipe(tmp_path / "elsewhere"), 2) == first
    assert runs.named("household/grpo-[0-9]", 2) == [first] and not runs.named("household/grpo-[0-9]", 3)
    assert not (tmp_path / "elsewhere").exists()

    def trains(recipe):
        raise LookupError

    monkeypatch.setattr(_finished, "trained", trains)
    for settings, tasks in ([["--optim.lr=0.5"], 2], [[], 3]):
        with pytest.raises(LookupError):
            runs.of("household/grpo-0", recipe(tmp_path / "elsewhere", *settings), tasks)
