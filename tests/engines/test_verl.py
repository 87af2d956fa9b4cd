"""The verl engine with two Ray workers on CPUs: the contract, the recipes, and what becomes of a worker that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from engine_runs import HOUSEHOLD, SMALL, adapter_of, answers, apart, gongfu, moved, needs, same, trained_steps
from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.check import check
from gongfu.engine.local import LocalEngine
from gongfu.engine.protocol import LoraSpec, OptimParams
from gongfu.engine.verl import VerlEngine
from gongfu.run.folder import read_metrics
from support import tiny_model

pytestmark = needs("verl")

BOUND = 1e-3
"""Nats between the engines after the steps of the contract, and relative differences of losses and gradient norms."""
SPEC = LoraSpec(rank=4, alpha=8.0)
STEP = OptimParams(lr=0.01)
VERL = ["--engine.name=verl", "--engine.device=cpu", "--engine.workers=2", "--engine.timeout=120"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make(model, tmp_path):
    """Makes engines of two workers, and ends them."""
    made = []

    def new(timeout: float = 120.0) -> VerlEngine:
        engine = VerlEngine(local(model, tmp_path), workers=2, timeout=timeout)
        made.append(engine)
        return engine

    yield new
    for engine in made:
        engine.close()


def local(model, folder):
    return LocalEngine(model, store=folder, threads=1)


def test_it_keeps_the_contract(model, make, tmp_path):
    report = check(make(), reference=local(model, tmp_path / "reference"), tolerance=BOUND)
    assert report.ok and report.max_logprob_diff < 1e-4 and report.steps == 6


def rows(count=5):
    return [Row(f"r/{i}", tuple(range(5, 12 + i)), (False, False, *(j % 2 == 0 for j in range(5 + i)))) for i in range(count)]


def loss(part, logprobs):
    return sum(((lp + 2.0) ** 2).sum() for lp in logprobs), {}


def train(engine, hook=None):
    def hooked(part, logprobs):
        if hook:
            hook()
        return loss(part, logprobs)

    engine.forward_backward(rows(), hooked, adapter="a")
    return engine.optim_step(STEP, adapter="a")["grad_norm"]


@pytest.mark.parametrize(("sent", "said"), [(signal.SIGKILL, "a worker died"), (signal.SIGSTOP, "did not answer within 15 s")])
def test_a_worker_that_dies_or_hangs_ends_the_engine_and_the_checkpoint_goes_on_exactly(make, sent, said):
    engine = make(timeout=15.0)
    engine.create_adapter("a", SPEC)
    train(engine)
    engine.sync()
    ref = engine.save("before")
    wanted = [train(engine) for _ in range(2)]
    pid = engine.worker_pids[1]
    with pytest.raises(EngineError, match=said):  # between the forward pass and the backward pass of a step
        train(engine, hook=lambda: os.kill(pid, sent))
    for call in (lambda: train(engine), engine.sync, lambda: engine.save("after")):
        with pytest.raises(EngineError, match="resume the run"):
            call()
    engine.close()

    another = make()
    another.create_adapter("a", SPEC)
    another.load(ref)
    assert [train(another) for _ in range(2)] == pytest.approx(wanted, rel=1e-5)


def test_more_workers_than_the_cluster_has_room_for_are_refused(make):
    first, second = make(), make()
    first.create_adapter("a", SPEC)
    with pytest.raises(EngineError, match=r"Ray has 1 free CPUs; set engine.workers"):
        second.create_adapter("a", SPEC)


def test_checkpoints_pass_from_one_engine_to_the_other(model, make, tmp_path):
    here, there = local(model, tmp_path), make()
    for engine in (here, there):
        engine.create_adapter("a", SPEC)
    train(there)
    there.sync()
    here.load(there.save("there"))
    assert train(here) == pytest.approx(train(there), rel=1e-4)
    here.sync()
    there.load(here.save("here"))
    assert train(here) == pytest.approx(train(there), rel=1e-4)
    assert here.version == there.version == 2


def test_a_second_adapter_and_a_broken_alpha_are_refused(make):
    engine = make()
    with pytest.raises(EngineError, match="whole number"):
        engine.create_adapter("a", LoraSpec(alpha=8.5))
    engine.create_adapter("a", SPEC)
    with pytest.raises(EngineError, match="holds one adapter"):
        engine.create_adapter("b", SPEC)
    with pytest.raises(EngineError, match="no gradient"):
        engine.optim_step(STEP, adapter="a")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """Gives the folder in which a recipe was trained for three steps on both engines, as "local" and "verl"."""
    recipes, known = request.config.rootpath / "recipes", {}

    def folder(method: str):
        if method not in known:
            known[method] = tmp_path_factory.mktemp(method)
            check = [] if method == "grpo" else ["--engine.check=false"]  # before the run, once
            for name, engine in (("local", []), ("verl", [*VERL, *check])):
                words = [*words_of(method, recipes), *engine, f"--run.name={name}", f"--run.folder={known[method]}"]
                gongfu("train", *words, cwd=known[method])
        return known[method]

    return folder


def words_of(method, recipes):
    return [f"@{recipes}/{HOUSEHOLD[method]}", *SMALL[method]]


@pytest.mark.parametrize("method", HOUSEHOLD)
def test_a_recipe_gives_the_same_run_with_another_engine(method, runs):
    """The same episodes, metrics, trained adapter, and answers at temperature 0."""
    here, there = runs(method) / "local", runs(method) / "verl"
    assert min(trained_steps(here, method).values()) >= 2
    assert same(here, there, relative=BOUND) > 60
    assert apart(*(moved(adapter_of(run), adapter_of(run, 0)) for run in (there, here))) < 0.01
    assert answers(here) == answers(there)


def test_rollouts_beside_the_workers_are_those_of_before_the_update(tmp_path, request):
    """One step off, from two threads here and one after the other on the local engine: the same run."""
    words = [*words_of("grpo", request.config.rootpath / "recipes"), "--method.one-step-off=true", f"--run.folder={tmp_path}"]
    for name, engine in (("local", []), ("verl", [*VERL, "--engine.check=false"])):
        gongfu("train", *words, *engine, f"--run.name={name}", cwd=tmp_path)
    steps = [m for m in read_metrics(tmp_path / "verl" / "metrics.jsonl") if m["phase"] == "train"]
    assert [m["train/version_lag"] for m in steps] == [0, 1, 1] and steps[1]["train/importance_log_abs"] > 1e-4
    assert same(tmp_path / "local", tmp_path / "verl", relative=BOUND) > 60
    assert answers(tmp_path / "local") == answers(tmp_path / "verl")


def test_a_run_whose_worker_is_killed_says_so_and_resumes_to_the_same_numbers(runs, tmp_path, request):
    words = [
        *words_of("grpo", request.config.rootpath / "recipes"),
        *VERL,
        "--engine.check=false",
        f"--run.folder={tmp_path}",
        "--run.name=killed",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "gongfu", "train", *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not (tmp_path / "killed" / "checkpoints" / "step-000001").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in workers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    said = process.communicate(timeout=200)[1]
    assert process.returncode == 1 and "a worker died" in said and "resume the run" in said and "Traceback" not in said
    gongfu("train", "--resume", str(tmp_path / "killed"), cwd=tmp_path)
    assert same(runs("grpo") / "verl", tmp_path / "killed", relative=BOUND) > 60


def workers_of(parent: int) -> list[int]:
    """Training processes below a process: Ray names them after their class."""
    import psutil

    return [p.pid for p in psutil.Process(parent).children(recursive=True) if "Worker" in " ".join(p.cmdline()[:1])]
