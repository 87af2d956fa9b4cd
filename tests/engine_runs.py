"""What the tests of engines in environments of their own have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

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
        [sys.executable, "-m", "gongfu", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=560
    )
    assert done.returncode == code, done.stderr
    return done.stderr


HOUSEHOLD = {"grpo": "grpo/household-nano.toml", "uniskill": "uniskill-household-nano.toml"}
_SIZE = [
    "--run.steps=3",
    "--run.threads=1",
    "--run.checkpoint-every=1",
    "--run.keep-last=4",
    "--run.seed=5",
    "--suite.max-steps=6",
    '--suite.kinds=["pick_and_place_simple"]',
    "--suite.receptacles=[6,6]",
    "--suite.distractors=[0,0]",
    "--eval.tasks=2",
    "--eval.every=0",
    "--method.tasks=2",
]
SMALL = {
    "grpo": [*_SIZE, "--method.group-size=4"],
    "uniskill": [*_SIZE, "--method.group-size=6", "--method.references=2"],
}
"""What makes the recipes of `HOUSEHOLD` small: homes with little in them, where six turns sometimes do. Actions are drawn from
lists, so that all engines draw the same ones."""
TRAINED = {"grpo": ("train/rows",), "uniskill": ("train/rows_actor", "train/rows_proposer")}
"""Metrics that count the rows which taught something."""


def trained_steps(run: Path, method: str) -> dict[str, int]:
    """In how many steps each of the `TRAINED` is above 0."""
    steps = [m for m in read_metrics(run / "metrics.jsonl") if m["phase"] == "train"]
    return {name: sum(m.get(name, 0) > 0 for m in steps) for name in TRAINED[method]}


def adapter_of(run: Path, step: int = 3) -> dict[str, Tensor]:
    """The weights that a checkpoint of the local engine, or of verl's, holds."""
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "engine" / "actor.weights.safetensors")


def moved(weights: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value - start[key] for key, value in weights.items()}


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The norm of the difference of two adapters' changes, as a share of the second one's norm."""
    difference = sum(float((one[key] - other[key]).square().sum()) for key in other)
    return (difference / sum(float(value.square().sum()) for value in other.values())) ** 0.5


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
