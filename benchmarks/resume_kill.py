"""Kills a training run with SIGKILL at random moments and resumes it each time: the end must be the uninterrupted run's.

python benchmarks/resume_kill.py [--kills 20] [--steps 24]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from _record import record

from gongfu.run.folder import comparable, read_metrics
from toy import TOY_RECIPE, tiny_agent

ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(TESTS)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gongfu", "train", *arguments]


def finish(arguments: list[str], cwd: Path) -> float:
    started = time.perf_counter()
    subprocess.run(command(*arguments), cwd=cwd, env=ENVIRONMENT, check=True, capture_output=True)
    return time.perf_counter() - started


def kill_once(arguments: list[str], cwd: Path, after: float) -> bool:
    """Start the run, kill it `after` seconds later; False when it had ended by itself."""
    process = subprocess.Popen(
        command(*arguments), cwd=cwd, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(after)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def contents(run: Path) -> tuple[list[dict], dict[str, bytes]]:
    metrics = [comparable(r) for r in read_metrics(run / "metrics.jsonl")]
    (newest,) = sorted(run.glob("checkpoints/step-*"))[-1:]
    files = {p.name: p.read_bytes() for p in sorted((newest / "engine").glob("*.safetensors"))}
    files |= {p.name: p.read_bytes() for p in sorted(run.glob("trajectories/*.gz"))}
    return metrics, files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        agent = tiny_agent(cwd / "agent")
        settings = [f"--run.steps={options.steps}", f"--engine.model={agent}", *TOY_RECIPE]
        whole = finish(["--run.name=whole", *settings], cwd)
        killed = 0
        run = cwd / "runs" / "killed"
        while killed < options.kills:
            started = (run / "run.json").exists()
            arguments = ["--resume", str(run)] if started else ["--run.name=killed", *settings]
            if not kill_once(arguments, cwd, rng.uniform(0.1, 1.0) * whole):
                # It reached its end between two kills: begin again, the count of kills goes on.
                if contents(run) != contents(cwd / "runs" / "whole"):
                    break
                subprocess.run(["rm", "-rf", str(run)], check=True)
                continue
            killed += 1
        if not (run / "run.json").exists():
            finish(["--run.name=killed", *settings], cwd)
        else:
            finish(["--resume", str(run)], cwd)
        identical = contents(run) == contents(cwd / "runs" / "whole")
    record(
        "resume_kill",
        {
            "kills": killed,
            "identical": identical,
            "steps": options.steps,
            "whole_run_s": round(whole, 1),
            "seeds": [options.seed],
        },
        full=options.kills >= 20,
    )
    sys.exit(0 if identical else 1)


if __name__ == "__main__":
    main()
