"""How every benchmark reports: one JSON line at the end, and, after a full run, a file in benchmarks/results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def record(name: str, result: dict[str, Any], *, full: bool) -> None:
    """Print `result` with command, commit and machine as one JSON line; when `full`, write benchmarks/results/<name>.json."""
    result = {**result, "full": full, "command": command(), "commit": commit(), "machine": machine()}
    if full:
        folder = ROOT / "benchmarks" / "results"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result), flush=True)


def command() -> str:
    """The command line, with paths relative to the repository."""
    words = [Path(word).resolve().relative_to(ROOT).as_posix() if _inside(word) else word for word in sys.argv]
    return " ".join(["python", *words])


def _inside(word: str) -> bool:
    return Path(word).exists() and Path(word).resolve().is_relative_to(ROOT)


def commit() -> str:
    """Commit of the repository, with "+changes" when tracked source differs from it."""

    def git(*words: str) -> str:
        answer = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return answer.stdout.strip() if answer.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")
    return f"{head}+changes" if head and changed else head or "unknown"


def machine() -> dict[str, Any]:
    """Processor, cores, Python, and torch with its accelerator if it is loaded."""
    about: dict[str, Any] = {"cpu": _cpu_model(), "cores": os.cpu_count(), "python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        about["torch"] = torch.__version__
        if torch.cuda.is_available():
            about["gpu"] = torch.cuda.get_device_name()
    return about


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
