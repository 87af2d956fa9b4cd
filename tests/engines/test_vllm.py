"""vLLM servers as samplers: two of them with nano on CPUs, which the tests start, kill and start again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from engine_runs import HOUSEHOLD, answers, gongfu, needs, same
from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.check import check
from gongfu.engine.local import LocalEngine
from gongfu.engine.models import resolve_model
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from gongfu.engine.vllm import VllmSampler
from vllm_server import VLLM, VllmServer

pytestmark = [needs("verl"), pytest.mark.skipif(not VLLM, reason="no vLLM: make test-engines")]

BOUND = 1e-3
"""Nats between sampler and scorer."""
SPEC, STEP = LoraSpec(rank=4, alpha=8.0), OptimParams(lr=0.01)
SHORT = [
    "--run.steps=3",
    "--run.threads=1",
    "--run.checkpoint-every=1",
    "--suite.max-steps=2",
    "--eval.tasks=4",
    "--eval.every=0",
    "--method.tasks=2",
    "--method.group-size=4",
]
"""vLLM scores every option of a list with its whole prompt, so the tests' runs are shorter here. Their steps play and score."""
VERL = ["--engine.name=verl", "--engine.device=cpu", "--engine.workers=2", "--engine.timeout=120", "--engine.check=false"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    both = [VllmServer(tmp_path_factory.mktemp("vllm")) for _ in range(2)]
    try:
        for one in both:
            one.wait()
        yield both
    finally:
        for one in both:
            if one.living:
                one.kill()


@pytest.fixture
def local(tmp_path):
    engine = LocalEngine(resolve_model("nano"), store=tmp_path, threads=1)
    engine.create_adapter("a", SPEC)
    return engine


@pytest.fixture
def make(servers, local, tmp_path):
    made = []

    def new(urls=(), timeout: float = 60.0) -> VllmSampler:
        sampler = VllmSampler(
            urls or [one.url for one in servers],
            folder=tmp_path / "published",
            backbone=local.backbone,
            vocab_size=local.vocab_size,
            stop_ids=local.tokenizer.stop_ids,
            timeout=timeout,
        )
        made.append(sampler)
        return sampler

    yield new
    for sampler in made:
        sampler.close()


def rows(count=4):
    return [Row(f"r/{i}", tuple(range(20, 30 + i)), (False, False, *(j % 2 == 0 for j in range(8 + i)))) for i in range(count)]


def loss(part, logprobs):
    return sum(((lp + 2.0) ** 2).mean() for lp in logprobs), {}


def train(local, sampler):
    for _ in range(3):
        local.forward_backward(rows(), loss, adapter="a")
        local.optim_step(STEP, adapter="a")
    local.sync()
    publish(local, sampler)


def publish(local, sampler, spec=SPEC):
    sampler.publish("a", local.adapter_state("a").weights, spec, local.version)


def request(k, adapter="a", **settings):
    return SampleRequest(tuple(range(20 + k, 40 + k)), adapter, seed=k, **{"max_tokens": 12, **settings})


def ask(sampler, requests):
    found = asyncio.run(sampler.sample(requests))
    assert not [answer for answer in found if isinstance(answer, EngineError)]
    return found


def apart(local, requests, found):
    """The largest difference of the samples' log-probs and the scorer's."""
    worst = 0.0
    for asked, samples in zip(requests, found, strict=True):
        for sample in samples:
            mask = (False,) * len(asked.prompt) + (True,) * len(sample.tokens)
            row = Row("row", (*asked.prompt, *sample.tokens), mask, asked.temperature or 1.0)
            (scored,) = local.logprobs([row], adapter=asked.adapter)
            worst = max(worst, *(abs(a - b) for a, b in zip(sample.logprobs, scored.tolist(), strict=True)))
    return worst


def test_samples_are_those_of_the_published_policy_also_after_several_publications(make, local):
    sampler = make()
    asked = [request(k, who, temperature=t, n=1 + k % 2) for k in range(4) for who in ("a", None) for t in (0.0, 0.7, 1.0)]
    for _ in range(3):
        train(local, sampler)
        found = ask(sampler, asked)
        assert apart(local, asked, found) < BOUND
        expected = asyncio.run(local.sample(asked))
        for one, ours, theirs in zip(asked, found, expected, strict=True):
            assert len(ours) == one.n and {sample.version for sample in ours} == {local.version}
            if one.temperature == 0:
                assert [s.tokens for s in ours] == [s.tokens for s in theirs]
        assert [[s.tokens for s in samples] for samples in ask(sampler, asked)] == [[s.tokens for s in some] for some in found]


def test_stop_tokens_end_a_response_and_nothing_else_does(make, local):
    sampler = make()
    end = local.tokenizer.stop_ids[0]
    wanted = [Row(f"end/{k}", (*range(20 + k, 40 + k), end, end), (False,) * 20 + (True, True)) for k in range(4)]
    for _ in range(20):
        local.forward_backward(wanted, lambda part, logprobs: (-sum(lp.sum() for lp in logprobs), {}), adapter="a")
        local.optim_step(STEP, adapter="a")
    publish(local, sampler)
    asked = request(0, temperature=0.0, max_tokens=5)
    ((ended,), (passed,)) = ask(sampler, [asked, replace(asked, stop=(end + 1,))])
    assert ended.tokens == (end,) and ended.stop == "stop"
    assert passed.tokens[:2] == (end, end) and len(passed.tokens) == 5 and passed.stop == "length"


def test_choices_are_drawn_as_the_local_engine_draws_them(make, local):
    sampler = make()
    train(local, sampler)
    listed = tuple(tuple(range(50 + 3 * j, 52 + 3 * j + j % 4)) for j in range(12))
    asked = [
        request(k % 3, who, temperature=t, n=2, choices=listed) for k in range(9) for who in ("a", None) for t in (0.0, 0.7)
    ]
    asked = [replace(one, seed=100 + k) for k, one in enumerate(asked)]
    for ours, theirs in zip(ask(sampler, asked), asyncio.run(local.sample(asked)), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a.choice, a.tokens, a.stop, a.version) == (b.choice, b.tokens, b.stop, b.version)
            assert a.logprobs == pytest.approx(b.logprobs, abs=BOUND)
            assert a.choice_logprobs == pytest.approx(b.choice_logprobs, abs=BOUND)
            assert a.drawn_from is not None and a.drawn_from.alone == pytest.approx(b.drawn_from.alone, abs=BOUND)


def test_a_publication_replaces_the_one_before_or_leaves_it(make, servers, local, tmp_path):
    sampler = make()
    train(local, sampler)
    asked = [request(k, temperature=0.0) for k in range(8)]
    before = ask(sampler, asked)
    with pytest.raises(EngineError, match="did not load"):
        train_wide(local, sampler)
    assert ask(sampler, asked) == before
    train(local, sampler)
    after = ask(sampler, asked)
    assert apart(local, asked, after) < BOUND and after[0][0].version == before[0][0].version + 1
    kept = sorted(place.name for place in (tmp_path / "published").iterdir())
    assert [name.rpartition("-")[0] for name in kept] == ["a@2", "base@2"]
    assert all(one.adapters() == kept for one in servers)
    sampler.close()
    assert not any(one.adapters() for one in servers) and not list((tmp_path / "published").iterdir())


def train_wide(local, sampler):
    """An adapter that is wider than the servers take."""
    wide = LoraSpec(rank=32, alpha=8.0)
    local.create_adapter("wide", wide)
    sampler.publish("a", local.adapter_state("wide").weights, wide, 99)


def test_verl_with_samplers_keeps_the_contract(make, local, tmp_path):
    from gongfu.engine.verl import VerlEngine

    driver = LocalEngine(resolve_model("nano"), store=tmp_path / "driver", threads=1)
    engine = VerlEngine(driver, sampler=make(), workers=2, timeout=120.0)
    try:
        reference = LocalEngine(resolve_model("nano"), store=tmp_path / "reference", threads=1)
        report = check(engine, reference=reference, tolerance=BOUND)
        assert report.ok and report.steps == 6
        assert engine.stats()["prompt_tokens"] > 0 == driver.stats()["prompt_tokens"]
    finally:
        engine.close()


@pytest.fixture(scope="module")
def runs(servers, tmp_path_factory, request):
    """Folder of a recipe's three steps with samplers ("vllm") and on the local engine ("local")."""
    folder = tmp_path_factory.mktemp("runs")
    words = [f"@{request.config.rootpath}/recipes/{HOUSEHOLD['grpo']}", *SHORT, f"--run.folder={folder}"]
    for name, engine in (("local", []), ("vllm", [*VERL, samplers(servers)])):
        gongfu("train", *words, *engine, f"--run.name={name}", cwd=folder)
    return folder


def samplers(servers):
    return f"--engine.samplers={[one.url for one in servers]}".replace("'", '"')


def test_a_recipe_gives_the_same_run_with_samplers(runs):
    assert same(runs / "local", runs / "vllm", relative=BOUND) > 60
    assert answers(runs / "local") == answers(runs / "vllm")


def test_a_run_whose_only_sampler_is_killed_says_so_and_resumes_to_the_same_numbers(runs, servers, tmp_path, request):
    words = [f"@{request.config.rootpath}/recipes/{HOUSEHOLD['grpo']}", *SHORT, *VERL, samplers(servers[:1])]
    words += [f"--run.folder={tmp_path}", "--run.name=killed"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gongfu", "train", *words], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not (tmp_path / "killed" / "checkpoints" / "step-000001").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    servers[0].kill()
    said = process.communicate(timeout=200)[1]
    servers[0].start()
    assert process.returncode == 1 and "no sampler is left" in said and "--resume" in said and "Traceback" not in said
    servers[0].wait()
    gongfu("train", "--resume", str(tmp_path / "killed"), cwd=tmp_path)
    assert same(runs / "vllm", tmp_path / "killed", relative=BOUND) > 60


def test_what_a_killed_server_was_asked_goes_to_another_one_and_it_comes_back_with_the_adapters(make, servers, local):
    first, second = servers
    sampler = make()
    train(local, sampler)
    long = [request(k % 8, max_tokens=300, stop=(local.vocab_size - 1,)) for k in range(24)]
    found = killed_meanwhile(sampler, long, first)
    assert sampler.stats()["sampler_retries"] > 0 and apart(local, long, found) < BOUND
    train(local, sampler)  # without the first one
    short = [request(k) for k in range(8)]
    assert ask(sampler, short)[0][0].version == local.version

    first.start()
    first.wait()
    assert first.adapters() == []
    found = killed_meanwhile(sampler, long, second)  # nothing but the first one is left, and it has no adapters
    assert apart(local, long, found) < BOUND and found[0][0].version == local.version

    first.kill()
    with pytest.raises(EngineError, match=f"no sampler is left: {first.url}.*{second.url}.*--resume"):
        asyncio.run(sampler.sample(short))
    with pytest.raises(EngineError, match="no sampler is left"):
        publish(local, sampler)
    second.start()
    second.wait()
    assert apart(local, short, ask(sampler, short)) < BOUND


def killed_meanwhile(sampler, requests, server):
    """Answers to requests, some of which the server was working on when it was killed."""
    asked = next(one for one in sampler.pool.servers if one.url == server.url)

    def kill():
        deadline = time.monotonic() + 60
        while not asked.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        server.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    found = ask(sampler, requests)
    killer.join()
    return found
