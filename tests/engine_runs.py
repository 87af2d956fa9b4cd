"""What the tests of engines in environments of their own have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from gongfu.run.folder import read_metrics
from gongfu.run.trajectories import TrajectoryStore


def needs(package: str) -> pytest.MarkDecorator:
    """Skips a module's tests where the package is not installed; under `make test-engines` they fail then."""
    absent = find_spec(package) is None and os.environ.get("GONGFU_ENGINES") != "needed"
    return pytest.mark.skipif(absent, reason=f"{package} has an environment of its own: make test-engines")


def gongfu(*arguments: str, cwd: Path, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """Run a command; what it said on stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", "gongfu", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == code, done.stderr
    return done.stderr


HOUSEHOLD = {"grpo": "grpo/household-nano.toml", "uniskill": "uniskill-household-nano.toml"}
_SIZE = [
    "--run.steps=3",
    "--run.threads=1",
    "--run.checkpoint-every=1",
    "--suite.max-steps=4",
    "--eval.tasks=8",
    "--eval.every=0",
]
SMALL = {
    "grpo": [*_SIZE, "--method.tasks=2"],
    "uniskill": [*_SIZE, "--method.tasks=2", "--method.group-size=8", "--method.references=2"],
}
"""What makes the recipes of `HOUSEHOLD` small. Within four turns nano hardly succeeds, so these steps play and score and seldom
train: that training is the same is what the contract shows."""


def same(one: Path, other: Path, *, relative: float, absolute: float = 1e-5, but: Sequence[str] = ()) -> int:
    """Compares two runs' metrics, but for clocks, counters of what an engine computes, and those that end with `but`."""
    ours, theirs = (read_metrics(run / "metrics.jsonl") for run in (one, other))
    assert [m["phase"] for m in ours] == [m["phase"] for m in theirs]
    compared = 0
    for a, b in zip(ours, theirs, strict=True):
        for key, value in a.items():
            if isinstance(value, float) and not key.startswith(("time/", "perf/")) and not key.endswith(tuple(but) or ("\0",)):
                assert b[key] == pytest.approx(value, rel=relative, abs=absolute), (a["step"], key)
                compared += 1
    return compared


def answers(run: Path) -> list[list[str]]:
    """The actions of the evaluation after the third step."""
    found = [[turn.action for turn in t.turns] for t in TrajectoryStore(run / "trajectories").read(3, "eval-seen")]
    assert found
    return found
