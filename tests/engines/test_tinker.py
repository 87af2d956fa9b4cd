"""The tinker engine against a real SkyRL server on CPUs, which is started and stopped here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from engine_runs import HOUSEHOLD, SMALL, adapter_of, answers, apart, gongfu, moved, needs, same, trained_steps
from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import CheckpointError, ConfigError, EngineError
from gongfu.core.records import Row
from gongfu.engine.check import check
from gongfu.engine.local import LocalEngine
from gongfu.engine.models import resolve_model
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from gongfu.engine.tinker import TinkerEngine
from gongfu.run.build_engine import ACTOR, lora_spec
from gongfu.run.checkpoint import CheckpointStore

SKYRL = os.environ.get("GONGFU_SKYRL", "")
"""Python of an environment with SkyRL; `make test-engines` sets it."""
pytestmark = [needs("tinker"), pytest.mark.skipif(not SKYRL, reason="no SkyRL: make test-engines")]
BOUND = 2e-3
"""Nats from the local engine after the steps of the contract."""
SPEC, STEP = LoraSpec(rank=4), OptimParams(lr=1e-3, clip=0.0)
SERVER = Path(__file__).resolve().parents[1] / "skyrl_server.py"


class Server:
    """A SkyRL server with nano."""

    def __init__(self, folder: Path) -> None:
        self.model, self.folder = resolve_model("nano"), folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        caches = os.environ.get("GONGFU_JAX_CACHE", str(self.folder / "jax"))
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": caches,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
            "PYTHONPATH": "",
        }
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [SKYRL, str(SERVER), str(self.port), str(self.folder), str(self.model)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                httpx.get(f"{self.url}/api/v1/healthz", timeout=2)
                return
            except httpx.HTTPError:
                time.sleep(0.3)
        raise AssertionError((self.folder / "server.log").read_text()[-2000:])

    def stop(self, sent: int = signal.SIGKILL) -> None:
        os.killpg(self.process.pid, sent)
        if sent == signal.SIGKILL:
            self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    one = Server(tmp_path_factory.mktemp("skyrl"))
    yield one
    one.stop()


@pytest.fixture
def make(server, tmp_path):
    made = []

    def new(timeout: float = 250.0, url: str = "", store: Path = tmp_path) -> TinkerEngine:
        engine = TinkerEngine(server.model, store=store, base_model=str(server.model), url=url or server.url, timeout=timeout)
        made.append(engine)
        return engine

    yield new
    for engine in made:
        engine.close()


def rows(count=4):
    return [Row(f"r/{i}", tuple(range(20, 30 + i)), (False, False, *(j % 2 == 0 for j in range(8 + i)))) for i in range(count)]


def loss(part, logprobs):
    return sum(((lp + 2.0) ** 2).mean() for lp in logprobs), {}


def train(engine):
    engine.forward_backward(rows(), loss, adapter="a")
    return engine.optim_step(STEP, adapter="a")["grad_norm"]


def test_it_keeps_the_contract(make, server, tmp_path):
    reference = LocalEngine(server.model, store=tmp_path / "reference", threads=1)
    report = check(make(), reference=reference, tolerance=BOUND)
    assert report.ok and report.max_logprob_diff < BOUND and report.steps == 6


def test_what_the_api_cannot_do_is_refused(make):
    engine = make()
    with pytest.raises(EngineError, match="alpha 32"):
        engine.create_adapter("a", LoraSpec(alpha=16.0))
    engine.create_adapter("a", SPEC)
    with pytest.raises(EngineError, match="each with at least one token"):
        raise engine_answer(engine, SampleRequest((20, 21), "a", seed=0, choices=()))
    with pytest.raises(EngineError, match="temperature 1 only"):
        raise engine_answer(engine, SampleRequest((20, 21), "a", seed=0, temperature=0.7))
    with pytest.raises(EngineError, match=r"optim.clip = 0"):
        engine.forward_backward(rows(), loss, adapter="a")
        engine.optim_step(OptimParams(lr=1e-3), adapter="a")
    with pytest.raises(CheckpointError, match="no states of a Tinker server"):
        engine.load("nowhere")


def engine_answer(engine, request):
    (answer,) = asyncio.run(engine.sample([request]))
    return answer


def test_no_server_and_no_key_are_said_at_once(make, server, tmp_path, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="set TINKER_API_KEY"):
        TinkerEngine(server.model, store=tmp_path, base_model="any", url="")
    with pytest.raises(EngineError, match=r"correct engine\.url"):
        make(url="http://127.0.0.1:9", timeout=5.0)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", HOUSEHOLD)
def test_a_recipe_gives_the_same_run_with_another_engine(method, server, make, tmp_path, request):
    """The same episodes, metrics, trained adapter, and answers at temperature 0.

    The server draws its own first adapter, so the local run starts from that one.
    """
    words = [f"@{request.config.rootpath}/recipes/{HOUSEHOLD[method]}", *SMALL[method]]
    words += ["--optim.clip=0", "--optim.lr=1e-4", f"--run.folder={tmp_path}"]
    recipe = load(Recipe, files=[words[0][1:]], overrides=words[1:]).config
    elsewhere = ["--engine.name=tinker", f"--engine.url={server.url}", "--engine.check=false", "--engine.timeout=250"]
    start = first_adapter(make(), recipe, tmp_path / "start")
    for name, engine in (("local", [f"--run.start-from={tmp_path}/start"]), ("tinker", elsewhere)):
        gongfu("train", *words, *engine, f"--run.name={name}", cwd=tmp_path)
    here, there = tmp_path / "local", tmp_path / "tinker"
    assert min(trained_steps(here, method).values()) >= 2
    assert same(here, there, relative=0.02, absolute=2e-3, but=("grad_norm",)) > 60
    trained = make(store=there / "checkpoints" / "step-000003")
    trained.create_adapter(ACTOR, lora_spec(recipe))
    trained.load("engine")
    assert apart(moved(trained.adapter_state(ACTOR).weights, start), moved(adapter_of(here), start)) < 0.05
    assert answers(here) == answers(there)


def first_adapter(engine, recipe, run):
    """The adapter with which the server begins, and a checkpoint of the local engine that holds it, as if `run` had made it."""
    engine.create_adapter(ACTOR, lora_spec(recipe))
    state = engine.adapter_state(ACTOR)
    local = LocalEngine(resolve_model("nano"), store=run, threads=1)
    local.create_adapter(ACTOR, lora_spec(recipe))
    local.set_adapter_state(ACTOR, state)
    local.sync()

    def write(folder):
        local.save(str(folder / "engine"))
        return {"engine": "engine", "method": {}}

    CheckpointStore(run / "checkpoints").save(0, write)
    engine.close()
    return state.weights


def test_a_server_that_dies_ends_the_engine_and_its_state_goes_on_exactly(tmp_path_factory, tmp_path):
    server = Server(tmp_path_factory.mktemp("dying"))
    try:
        engine = TinkerEngine(server.model, store=tmp_path, base_model=str(server.model), url=server.url, timeout=60.0)
        engine.create_adapter("a", SPEC)
        train(engine)
        engine.sync()
        ref = engine.save("before")
        wanted = train(engine)
        engine.forward_backward(rows(), loss, adapter="a")
        server.stop()
        engine._client.timeout = 8.0
        with pytest.raises(EngineError, match="not known whether the step was made: resume"):
            engine.optim_step(STEP, adapter="a")
        for call in (lambda: engine.forward_backward(rows(), loss, adapter="a"), engine.sync, lambda: engine.save("after")):
            with pytest.raises(EngineError, match="resume the run"):
                call()
        server.start()
        another = TinkerEngine(server.model, store=tmp_path, base_model=str(server.model), url=server.url, timeout=120.0)
        another.create_adapter("a", SPEC)
        another.load(ref)
        assert train(another) == pytest.approx(wanted, rel=1e-4) and another.version == 1
    finally:
        server.stop()
