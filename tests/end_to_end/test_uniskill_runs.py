"""UniSkill by the real commands: the same run twice, a killed one resumed, policy and bank restored together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gongfu.run.folder import comparable, read_metrics
from gongfu.skills.bank import SkillBank
from support import tiny_model

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
RECIPE = ROOT / "recipes" / "uniskill-household-nano.toml"
STEPS = 4
SEVEN_B = ROOT / "recipes" / "uniskill" / "alfworld-qwen2.5-7b.toml"
GAMES = Path(os.environ.get("GONGFU_DATA", ROOT.parent / "shared" / "data")) / "alfworld"


def words(folder: Path, name: str) -> list[str]:
    return [
        *(sys.executable, "-m", "gongfu", "train", f"@{RECIPE}", f"--run.folder={folder}", f"--run.name={name}"),
        *(f"--run.steps={STEPS}", "--run.checkpoint-every=1", "--run.threads=1", "--method.tasks=3", "--suite.train=60"),
        *("--eval.every=0", "--eval.tasks=4", "--optim.lr=1e-3"),
    ]


def run(*arguments: str, code: int = 0) -> str:
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run(*words(folder, "whole"))
    return folder / "whole"


def commits(folder: Path) -> list[str]:
    with SkillBank.open(folder / "bank.sqlite", create=False) as bank:
        assert not bank.verify()
        return [commit.id for commit in bank.log()]


def numbers(folder: Path) -> list[dict]:
    return [comparable(m) for m in read_metrics(folder / "metrics.jsonl")]


def test_a_run_grows_a_bank_and_evaluates_with_and_without_it(finished):
    metrics = numbers(finished)
    assert len(commits(finished)) > 1
    assert sum(m.get("bank/added", 0) for m in metrics) > 0
    assert "success_without_skills" in metrics[-1]


def test_a_killed_run_resumes_to_the_same_commits_and_numbers(finished, tmp_path):
    process = subprocess.Popen(words(tmp_path, "killed"), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "killed" / "checkpoints" / "step-000002"
    deadline = time.monotonic() + 200
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.7)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(numbers(tmp_path / "killed")) < len(numbers(finished))
    run(sys.executable, "-m", "gongfu", "train", "--resume", str(tmp_path / "killed"))
    assert commits(tmp_path / "killed") == commits(finished)
    assert numbers(tmp_path / "killed") == numbers(finished)


def test_resuming_with_another_bank_is_refused(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    for name in ("bank.sqlite", "bank.sqlite-wal", "bank.sqlite-shm"):
        (copy / name).unlink(missing_ok=True)
    said = run(sys.executable, "-m", "gongfu", "train", "--resume", str(copy), code=1)
    assert "restored together" in said


def test_evaluation_takes_the_bank_of_the_checkpoint(finished):
    said = run(sys.executable, "-m", "gongfu", "eval", f"{finished}@{STEPS}", "--tasks", "3", "--json")
    assert "with skills" in said and "without skills" in said


def test_the_7b_recipe_runs_with_a_tiny_model_of_the_same_family(tmp_path):
    """The paper's settings (a prompt for every turn, tagged answers, prefilled operations) through every part of a step."""
    model = tiny_model(tmp_path / "model", family="Qwen2", max_position_embeddings=4096)
    size = [
        "--engine.device=cpu",
        "--run.steps=2",
        "--method.tasks=2",
        "--method.group-size=4",
        "--eval.tasks=2",
        "--eval.every=0",
    ]
    size += ["--rollout.max-response=24", "--method.proposer.max-response=24", "--suite.max-steps=3", "--method.minibatches=2"]
    games = ["--suite.source=generated", "--eval.split=seen", "--suite.train=20", "--method.retrieval.kind=lexical"]
    games += ["--method.retrieval.embedder="]
    words = [f"@{SEVEN_B}", f"--engine.model={model}", *size, *games]
    checked = run(sys.executable, "-m", "gongfu", "check", *words)
    assert "2 tasks x 4 rollouts" in checked
    run(sys.executable, "-m", "gongfu", "train", *words, f"--run.folder={tmp_path}", "--run.name=dry", "--run.threads=1")
    steps = [m for m in read_metrics(tmp_path / "dry" / "metrics.jsonl") if m["phase"] == "train"]
    assert len(steps) == 2 and all(m["rollout/episodes"] == 8 for m in steps)


@pytest.mark.skipif(not GAMES.is_dir(), reason=f"no official games at {GAMES}; set GONGFU_DATA")
def test_the_7b_recipe_passes_the_check_with_its_own_model_and_official_games():
    said = run(sys.executable, "-m", "gongfu", "check", f"@{SEVEN_B}", f"--suite.source={GAMES}", "--eval.tasks=100")
    assert "Qwen/Qwen2.5-7B-Instruct: on the Hugging Face hub" in said and "'valid_seen'" in said
