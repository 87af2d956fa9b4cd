"""Runs of a folder, read from their files alone."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import GongfuError, RunFolderError
from gongfu.run.folder import RunFolder


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """One record a run, newest first. Raises RunFolderError when the folder does not exist."""
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; runs are written to run.folder (default runs/)")
    found = [_describe(path.parent) for path in folder.glob("*/run.json")]
    return sorted(found, key=lambda run: run["last written"], reverse=True)


def _describe(path: Path) -> dict[str, Any]:
    try:
        run = RunFolder.open(path, lock=False)
        recipe = load(Recipe, files=[path / "config.toml"]).config
        records = run.read_metrics()
    except GongfuError as e:
        return dict.fromkeys(("method", "suite", "model", "step", "train", "held-out", "skills", "last written"), "") | {
            "run": f"{path.name}: {e}"
        }
    train = [r for r in records if r["phase"] == "train"]
    held_out = [r for r in records if r["phase"] == "eval"]
    written = max(p.stat().st_mtime for p in (path / "run.json", run.metrics_path) if p.exists())
    last = train[-1] if train else {}
    return {
        "run": path.name,
        "method": run.info.get("command", "train"),
        "suite": recipe.suite.name,
        "model": recipe.engine.model,
        "step": f"{last.get('step', 0)}/{recipe.run.steps}",
        "train": f"{last['rollout/success']:.2f}" if "rollout/success" in last else "",
        "held-out": f"{held_out[0]['success']:.2f} -> {held_out[-1]['success']:.2f}" if held_out else "",
        "skills": f"{last['bank/skills']:.0f}" if "bank/skills" in last else "",
        "last written": datetime.fromtimestamp(written).isoformat(sep=" ", timespec="minutes"),
    }
