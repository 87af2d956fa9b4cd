"""PPO by the real commands: the CPU recipe, stopped and gone on with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gongfu.run.folder import comparable, read_metrics

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "ppo" / "household-nano.toml"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
SMALL = (
    *("--run.steps=4", "--run.checkpoint-every=1", "--run.keep-last=4", "--method.tasks=6", "--method.group-size=4"),
    *("--suite.train=60", "--eval.every=0", "--eval.tasks=4"),
)


def train(folder: Path, *words: str) -> list[dict]:
    done = subprocess.run([sys.executable, "-m", "gongfu", "train", *words], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [comparable(m) for m in read_metrics(folder / "metrics.jsonl") if m["phase"] == "train"]


def fresh(folder: Path, name: str) -> list[dict]:
    return train(folder / name, f"@{RECIPE}", f"--run.folder={folder}", f"--run.name={name}", "--run.threads=1", *SMALL)


def test_the_critic_learns_beside_the_actor_and_a_run_goes_on_as_if_never_stopped(tmp_path):
    whole = fresh(tmp_path, "whole")
    assert all(m["critic/grad_norm"] > 0 and m["actor/grad_norm"] > 0 for m in whole)
    assert whole[0]["actor/sampler_gap"] < 1e-3 and "critic/sampler_gap" not in whole[0], "the critic is not sampled"
    assert whole[-1]["critic/loss"] < whole[0]["critic/loss"], "an untrained critic says that success and failure are as likely"
    for step in (3, 4):  # what it wrote after step 2 is lost
        shutil.rmtree(tmp_path / "whole" / "checkpoints" / f"step-{step:06d}")
    assert train(tmp_path / "whole", "--resume", str(tmp_path / "whole")) == whole
