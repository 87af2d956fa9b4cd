"""The real commands on a tiny random model: train, stop, resume, compare, refuse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gongfu.run.folder import comparable, read_metrics
from toy import TOY_RECIPE, tiny_agent

ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
}


@pytest.fixture(scope="session")
def agent(tmp_path_factory) -> Path:
    return tiny_agent(tmp_path_factory.mktemp("agent"))


def gongfu(*arguments: str, cwd: Path, check: int | None = 0, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command; `path` is where the custom suite lies."""
    environment = ENVIRONMENT if path is None else {**ENVIRONMENT, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-m", "gongfu", *arguments],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def train_arguments(agent: Path, name: str, steps: int = 4) -> list[str]:
    return ["train", f"--engine.model={agent}", f"--run.name={name}", f"--run.steps={steps}", *TOY_RECIPE]


@pytest.fixture(scope="session")
def finished(agent, tmp_path_factory) -> Path:
    """A run of four steps that nothing disturbed."""
    cwd = tmp_path_factory.mktemp("finished")
    done = gongfu(*train_arguments(agent, "a"), cwd=cwd)
    assert Path(done.stdout.strip()).is_file()
    return cwd / "runs" / "a"


def weights(run: Path) -> bytes:
    (newest,) = sorted(run.glob("checkpoints/step-*"))[-1:]
    return (newest / "engine" / "actor.weights.safetensors").read_bytes()


def same(a: Path, b: Path) -> None:
    numbers = [[comparable(r) for r in read_metrics(run / "metrics.jsonl")] for run in (a, b)]
    assert numbers[0] == numbers[1]
    assert weights(a) == weights(b)


def test_training_moves_the_adapter_and_writes_everything(finished):
    metrics = read_metrics(finished / "metrics.jsonl")
    train = [m for m in metrics if m["phase"] == "train"]
    assert [m["step"] for m in train] == [1, 2, 3, 4]
    assert [m["step"] for m in metrics if m["phase"] == "eval"] == [0, 2, 4]
    assert all(m["train/tokens"] > 0 and m["actor/grad_norm"] > 0 and m["actor/sampler_gap"] < 1e-3 for m in train)
    assert len(list(finished.glob("trajectories/*-train.jsonl.gz"))) == 4
    report = (finished / "report" / "report.md").read_text()
    assert "success" in report.lower() and (finished / "report" / "curves.png").stat().st_size > 10_000


FALLING = """
from toy import ToyEnv, ToySuite

class Falling(ToySuite):
    def make(self, task):
        return FallingEnv(task)

class FallingEnv(ToyEnv):
    def step(self, action):
        if self.task.split == "train" and (self.task.seed % 2 or ALWAYS):
            raise RuntimeError("the roof fell in")
        return super().step(action)
"""


@pytest.mark.parametrize("always", [True, False])
def test_lost_episodes_are_told_and_a_step_that_lost_all_of_them_ends_the_run(agent, tmp_path, always):
    (tmp_path / "falling.py").write_text(f"{FALLING}\nALWAYS = {always}\n")
    shown = [*train_arguments(agent, "a", steps=2), "--suite.object=falling:Falling", "--eval.every=0", "--method.tasks=6"]
    done = gongfu(*shown, cwd=tmp_path, path=Path(f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"), check=int(always))
    (first, *_) = [m for m in read_metrics(tmp_path / "runs" / "a" / "metrics.jsonl") if m["phase"] == "train"]
    assert f"{first['rollout/lost']:.0f} of 24 episodes were lost" in done.stderr and "the roof fell in" in done.stderr
    assert (first["rollout/lost"] == 24) is always
    assert len(list(tmp_path.glob("runs/a/trajectories/*-train.jsonl.gz"))) == (1 if always else 2)


def test_the_same_seed_gives_the_same_run(agent, finished, tmp_path):
    gongfu(*train_arguments(agent, "a"), cwd=tmp_path)
    same(finished, tmp_path / "runs" / "a")


def test_interrupted_run_checkpoints_and_resumes_to_the_same_numbers(agent, finished, tmp_path):
    run = tmp_path / "runs" / "a"
    process = subprocess.Popen(
        [sys.executable, "-m", "gongfu", *train_arguments(agent, "a")],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.time() + 200
    while not (run / "checkpoints" / "step-000001").exists() and time.time() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 130 and "--resume" in errors
    assert len(read_metrics(run / "metrics.jsonl")) < len(read_metrics(finished / "metrics.jsonl"))
    gongfu("train", "--resume", str(run), cwd=tmp_path)
    same(finished, run)


def test_killed_run_with_a_torn_checkpoint_goes_on_from_the_one_before(agent, finished, tmp_path):
    run = tmp_path / "runs" / "a"
    process = subprocess.Popen(
        [sys.executable, "-m", "gongfu", *train_arguments(agent, "a")],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.time() + 200
    while not (run / "checkpoints" / "step-000002").exists() and time.time() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    (newest,) = sorted(run.glob("checkpoints/step-*"))[-1:]
    torn = newest / "engine" / "actor.weights.safetensors"
    torn.write_bytes(torn.read_bytes()[:-7])
    done = gongfu("train", "--resume", str(run), cwd=tmp_path)
    assert "refused" in done.stderr and torn.name in done.stderr.replace("\n", "")
    same(finished, run)


def test_a_run_one_step_off_goes_on_with_the_rollouts_that_waited(agent, tmp_path):
    options = ["--method.one-step-off=true", "--method.max-gap=5", "--run.keep-last=9"]
    gongfu(*train_arguments(agent, "whole"), *options, cwd=tmp_path)
    whole, cut = tmp_path / "runs" / "whole", tmp_path / "runs" / "cut"
    assert [m["train/version_lag"] for m in read_metrics(whole / "metrics.jsonl") if m["phase"] == "train"] == [0, 1, 1, 1]
    shutil.copytree(whole, cut)
    for step in (3, 4):
        shutil.rmtree(cut / "checkpoints" / f"step-{step:06d}")
    gongfu("train", "--resume", str(cut), cwd=tmp_path)
    same(whole, cut)


def test_evaluation_pairs_checkpoints_on_the_same_tasks(finished):
    done = gongfu("eval", "runs/a@start", "runs/a", "--json", "-n", "6", cwd=finished.parent.parent)
    before, after = json.loads(done.stdout)
    assert before["n"] == after["n"] == after["difference"]["n"] == 6
    assert before["low"] <= before["success"] <= before["high"]


def test_cold_start_imitates_and_training_starts_from_it(agent, tmp_path):
    options = ["--sft.demonstrations=12", "--sft.batch=4", "--sft.epochs=3", "--sft.lr=1e-2"]
    gongfu("sft", f"--engine.model={agent}", "--run.name=cold", *TOY_RECIPE, *options, cwd=tmp_path)
    losses = [m["sft/nll"] for m in read_metrics(tmp_path / "runs" / "cold" / "metrics.jsonl") if m["phase"] == "train"]
    assert losses[-1] < losses[0]
    arguments = [*train_arguments(agent, "warm", steps=1), "--run.start-from=runs/cold"]
    gongfu(*arguments, cwd=tmp_path)
    assert weights(tmp_path / "runs" / "warm") != weights(tmp_path / "runs" / "cold")
    listed = json.loads(gongfu("runs", "--json", cwd=tmp_path).stdout)
    assert {r["run"] for r in listed} == {"cold", "warm"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "--method.group_sizes=3"], 2, "method.group_size"),
        (["check", "--method.group-size=1"], 2, "group_size"),
        (["check", "--engine.model=nowhere/at/all"], 1, "nowhere/at/all"),
        (["check", "--eval.split=senn"], 2, "seen"),
        (["check", "--suite.source=missing/folder"], 2, "missing/folder"),
        (["check", "--suite.name=custom", "--suite.object=no_such_module:Suite"], 2, "no_such_module"),
        (["check", "@missing.toml"], 2, "missing.toml"),
        (["check", "--rollout.temperature=0"], 2, "temperature"),
        (["eval", "runs/none"], 1, "runs/none"),
        (["train", "--resume", "runs/none"], 1, "none"),
    ],
)
def test_bad_input_is_one_clear_message(agent, tmp_path, arguments, code, message):
    model = [] if any("engine.model" in a or a in ("eval", "train") for a in arguments) else [f"--engine.model={agent}"]
    done = gongfu(*arguments, *model, cwd=tmp_path, check=None)
    assert done.returncode == code, done.stderr
    assert message in done.stderr.replace("\n", "") and "Traceback" not in done.stderr


def test_a_run_folder_in_use_or_used_is_refused(agent, finished):
    done = gongfu(*train_arguments(agent, "a"), cwd=finished.parent.parent, check=1)
    assert "--resume" in done.stderr


def test_help_check_and_play_import_no_torch(agent, tmp_path):
    code = (
        "import sys; from gongfu.cli.main import main\n"
        "sys.argv = ['gongfu', *{args!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {{'torch', 'transformers', 'peft'}} & set(sys.modules), 'torch was imported'"
    )
    for arguments in (["--help"], ["check", f"--engine.model={agent}"], ["play", "--expert"]):
        done = subprocess.run([sys.executable, "-c", code.format(args=arguments)], cwd=tmp_path, env=ENVIRONMENT, timeout=100)
        assert done.returncode == 0
