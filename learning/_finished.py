"""Finished runs of a study as one JSON line each, so that it can go on elsewhere, or in several places at once.

A line holds success on every held-out task and the few metrics that the study shows. The file is committed beside the results:
a run that stands in it with the same settings is not trained again, and its folder, weights and all, need not be there.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _study import Wins, commit, held_out, machine, metrics_of, trained

from gongfu.config.load import to_toml
from gongfu.config.schema import Recipe


@dataclass(frozen=True, slots=True)
class Finished:
    """Success of the starting and of the last policy on each task, and the metrics of every step and evaluation."""

    won: Wins
    metrics: list[dict[str, Any]]
    commit: str
    """Of the code that evaluated it."""


class FinishedRuns:
    """The lines of one file; of a run's metrics they keep those `watched`: names, or beginnings that end in a slash."""

    def __init__(self, path: Path, watched: Sequence[str]) -> None:
        self.path = path
        self.watched = ("step", "phase", *watched)

    def of(self, name: str, recipe: Recipe, tasks: int) -> Finished:
        """The run of a recipe: as the file has it, else trained (or gone on with) and evaluated now, and added to the file."""
        anywhere = recipe.model_copy(update={"run": recipe.run.model_copy(update={"folder": ""})})
        settings = hashlib.sha256(to_toml(anywhere).encode()).hexdigest()[:16]
        alike = [line for line in self._lines() if (line["run"], line["settings"], line["tasks"]) == (name, settings, tasks)]
        if alike:
            return _finished(alike[-1])
        run = trained(recipe)
        won = {
            split: {policy: "".join(str(int(success)) for success in successes) for policy, successes in policies.items()}
            for split, policies in held_out(run, recipe, tasks).items()
        }
        about = {"run": name, "settings": settings, "tasks": tasks, "commit": commit(), "machine": machine()}
        line = {**about, "won": won, "metrics": [self._kept(m) for m in metrics_of(run)]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())  # one write: others may be adding theirs
        finally:
            os.close(file)
        return _finished(line)

    def named(self, pattern: str, tasks: int) -> list[Finished]:
        """The latest of each run whose name matches, such as "household/grpo-[0-9]"."""
        lines = {line["run"]: line for line in self._lines() if line["tasks"] == tasks}
        return [_finished(lines[name]) for name in sorted(lines) if fnmatch.fnmatchcase(name, pattern)]

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()] if self.path.exists() else []

    def _kept(self, metrics: dict[str, Any]) -> dict[str, Any]:
        families = tuple(name for name in self.watched if name.endswith("/"))
        kept = {name: metrics[name] for name in self.watched if name in metrics}
        kept |= {name: value for name, value in metrics.items() if families and name.startswith(families)}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in kept.items()}


def _finished(line: dict[str, Any]) -> Finished:
    won = {
        s: {policy: [bit == "1" for bit in bits] for policy, bits in policies.items()} for s, policies in line["won"].items()
    }
    return Finished(won, line["metrics"], line["commit"])
