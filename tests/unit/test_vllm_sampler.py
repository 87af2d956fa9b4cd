"""The client of vLLM servers: what it asks for, whom it asks, and what becomes of servers that fail. The servers are stubs."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time

import pytest
import torch
from safetensors.torch import load_file

from gongfu.core.errors import EngineError
from gongfu.engine.protocol import LoraSpec, SampleRequest
from gongfu.engine.vllm import VllmSampler, server
from vllm_stub import VllmStub

SPEC = LoraSpec(rank=2, alpha=4.0)
WEIGHTS = {f"layers.0.{m}.lora_{side}": torch.ones(2, 2) for m in ("q_proj", "up_proj") for side in "AB"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def two():
    with VllmStub() as first, VllmStub() as second:
        yield first, second


@pytest.fixture
def make(tmp_path):
    def new(*stubs, timeout=10.0, published=True):
        urls = [stub.url for stub in stubs]
        one = VllmSampler(urls, folder=tmp_path, backbone="model", vocab_size=50, stop_ids=(7,), timeout=timeout)
        if published:
            one.publish("a", WEIGHTS, SPEC, 1)
        return one

    return new


def request(k=0, adapter="a", **settings):
    return SampleRequest((k + 1, 2, 3), adapter, seed=k, **{"max_tokens": 4, **settings})


def ask(sampler, *requests):
    return asyncio.run(sampler.sample(requests))


def test_what_a_request_asks_for(two, make):
    first, _ = two
    sampler = make(first)
    ((one, _),) = ask(sampler, SampleRequest((1, 2, 3), "a", seed=2**62 + 5, max_tokens=4, temperature=0.7, n=2, stop=(9,)))
    (body,) = first.completions
    assert body["model"] == next(iter(first.adapters)) and body["model"].startswith("a@1-")
    assert (body["prompt"], body["seed"], body["temperature"], body["n"]) == ([1, 2, 3], 5, 0.7, 2)
    assert (body["stop_token_ids"], body["ignore_eos"], body["max_tokens"]) == ([9], True, 4)
    assert (body["top_p"], body["top_k"], body["repetition_penalty"]) == (1.0, 0, 1.0)  # not the model's generation_config.json
    assert one.tokens == (7,) * 4 and one.logprobs == (-0.25,) * 4 and one.stop == "length" and one.version == 1
    ((one,),) = ask(sampler, request())
    assert first.completions[-1]["stop_token_ids"] == [7] and one.stop == "stop"
    (equal,) = ask(sampler, request(temperature=0.0, n=3))
    assert len(equal) == 3 and first.completions[-1]["n"] == 1  # vLLM refuses more


def test_the_base_is_an_adapter_that_does_nothing(two, make):
    first, _ = two
    ask(make(first), request(adapter=None))
    name = first.completions[0]["model"]
    weights = load_file(f"{first.adapters[name]}/adapter_model.safetensors")
    assert name.startswith("base@1-") and weights and all(not value.any() for value in weights.values())


def test_a_published_adapter_is_a_peft_folder(two, make, tmp_path):
    first, _ = two
    make(first)
    (folder,) = tmp_path.glob("a@1-*")
    assert sorted(load_file(folder / "adapter_model.safetensors")) == [
        f"base_model.model.model.layers.0.{m}.lora_{side}.weight" for m in ("q_proj", "up_proj") for side in "AB"
    ]
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (2, 4.0, ["q_proj", "up_proj"])


def test_equal_lists_after_equal_prompts_are_scored_once(two, make):
    first, _ = two
    sampler = make(first)
    found = ask(sampler, *(request(seed, choices=((4, 5), (6,))) for seed in (0, 0)), request(1, choices=((4, 5), (6,))))
    assert [body["prompt"] for body in first.completions] == [[[1, 2, 3, 4, 5], [1, 2, 3, 6]], [[2, 2, 3, 4, 5], [2, 2, 3, 6]]]
    total = [-9.0, -6.0]
    assert found[0][0].choice_logprobs == pytest.approx(torch.tensor(total).log_softmax(0).tolist()) and found[0] == found[1]


def test_requests_go_to_the_server_with_the_fewest_and_sessions_stay(two, make):
    first, second = two
    first.delay = second.delay = 0.2
    sampler = make(first, second)
    ask(sampler, *(request(k) for k in range(10)))
    assert len(first.completions) == len(second.completions) == 5
    for _ in range(3):
        ask(sampler, *(request(k, session=f"s{k % 4}") for k in range(8)))
    homes = [{body["prompt"][0] % 4 for body in stub.completions[5:]} for stub in two]
    assert homes[0] | homes[1] == {0, 1, 2, 3} and not homes[0] & homes[1]
    sampler.publish("a", WEIGHTS, SPEC, 2)
    assert not sampler.pool._homes  # what was cached is of no use any more


@pytest.mark.parametrize(
    ("fault", "said"),
    [("cut", ""), ("fails", "engine is dead"), ("babbles", "another form"), ("forgets", "no a@1"), ("silent", "1 s")],
)
def test_what_a_failing_server_was_asked_goes_to_another_one(fault, said, two, make, caplog):
    first, second = two
    sampler = make(first, second, timeout=1.0)
    ask(sampler, *(request(k, session=f"s{k}") for k in range(8)))
    first.seen.clear(), second.seen.clear()
    first.fault = fault
    found = ask(sampler, *(request(k, session=f"s{k}") for k in range(8)))
    assert all(samples[0].tokens == (7,) * 4 for samples in found) and len(second.completions) == 8
    assert sampler.stats()["sampler_retries"] == 4 == len(first.completions)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert first.url in warning.message and said in warning.message
    ask(sampler, *(request(k, session=f"s{k}") for k in range(8)))
    assert len(first.completions) == 4  # left alone for a while


def test_a_server_that_is_there_again_is_given_its_adapters(two, make, monkeypatch):
    first, second = two
    sampler = make(first, second)
    first.fault = "fails"
    ask(sampler, request(0), request(1))
    first.fault = ""
    first.adapters.clear()
    monkeypatch.setattr(sampler.pool.servers[0], "_again_at", time.monotonic())
    ask(sampler, request(0), request(1))
    assert first.adapters == second.adapters and len(first.completions) == 2
    first.adapters.clear()  # started anew between two calls
    ask(sampler, request(0), request(1))
    assert first.adapters == second.adapters and len(first.completions) == 3


def test_a_request_that_is_refused_costs_itself_alone(two, make):
    first, second = two
    sampler = make(first, second)
    first.fault = "refuses"
    found = ask(sampler, request(0), request(1))
    assert isinstance(found[0], EngineError) and "not like this" in str(found[0]) and found[1][0].tokens == (7,) * 4
    first.fault = ""
    assert len(ask(sampler, request(0))[0]) == 1 and len(first.completions) == 2


def test_a_request_that_no_server_survives_costs_itself_alone(two, make):
    first, second = two
    first.poison = second.poison = 40
    found = ask(make(first, second), *(request(k) for k in (0, 39, 1)))
    assert isinstance(found[1], EngineError) and "failed on every sampler" in str(found[1])
    assert [len(found[k]) for k in (0, 2)] == [1, 1]


def test_requests_that_no_model_can_have_never_leave(two, make):
    first, _ = two
    sampler = make(first)
    bad = [request(adapter="b"), request(max_tokens=62), request(n=0), request(choices=()), SampleRequest((50,), "a", seed=0)]
    assert all(isinstance(answer, EngineError) for answer in ask(sampler, *bad)) and not first.completions


def test_without_servers_the_call_ends_and_goes_on_when_one_is_there(make):
    first, second = VllmStub(), VllmStub()
    with second:
        with first:
            sampler = make(first, second)
        assert ask(sampler, request(0))[0][0].version == 1
    with pytest.raises(EngineError, match=rf"no sampler is left: {first.url}: .*; {second.url}: .*gongfu train --resume"):
        ask(sampler, request(0))
    with first:
        assert ask(sampler, request(0))[0][0].version == 1


def test_a_server_that_dies_while_it_works_ends_the_call_when_it_was_the_last(make):
    stub = VllmStub()
    stub.delay = 60.0
    with stub:
        sampler = make(stub)
        threading.Timer(0.3, stub.__exit__).start()
        stub.fault = "cut"
        with pytest.raises(EngineError, match="no sampler is left"):
            ask(sampler, *(request(k) for k in range(4)))


def test_publishing_is_whole_or_not_at_all(two, make, tmp_path, caplog):
    first, second = two
    sampler = make(first, second)
    first.load_status = 400
    sampler.publish("a", WEIGHTS, SPEC, 2)
    assert ask(sampler, request(0), request(1))[0][0].version == 2 and not first.completions
    assert "too wide" in caplog.text and len(second.adapters) == 2  # the one before is gone
    second.load_status = 404  # also without VLLM_ALLOW_RUNTIME_LORA_UPDATING
    with pytest.raises(EngineError, match=rf"{second.url} did not load .*too wide.*UPDATING.*sampler_adapters"):
        sampler.publish("a", WEIGHTS, SPEC, 3)
    assert ask(sampler, request(0))[0][0].version == 2
    assert sorted(place.name.rpartition("-")[0] for place in tmp_path.iterdir()) == ["a@2", "base@2"]


def test_the_same_version_of_other_weights_has_another_name(two, make):
    first, _ = two
    sampler = make(first)
    before = set(first.adapters)
    sampler.publish("a", WEIGHTS, SPEC, 1)
    assert len(first.adapters) == 2 and not before & set(first.adapters)
    sampler.close()
    assert not first.adapters


def test_it_publishes_from_inside_an_event_loop(two, make):
    first, _ = two

    async def both():
        sampler = make(first)
        return await sampler.sample([request()])

    assert asyncio.run(both())[0][0].version == 1


def test_servers_that_are_of_no_use_are_said_at_the_start(two, make):
    first, second = two
    first.processed = False
    with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
        make(first)
    make(first, second)
    assert not first.adapters and second.adapters
    with pytest.raises(EngineError, match=r"correct engine\.samplers"):
        VllmSampler(["http://127.0.0.1:9"], folder=".", backbone="", vocab_size=5, stop_ids=(), timeout=5.0)


def test_a_server_that_still_hangs_when_it_is_tried_again_costs_its_greeting_only(two, make, monkeypatch):
    first, second = two
    monkeypatch.setattr(server, "GREET_S", 0.5)
    sampler = make(first, second, timeout=2.0)
    first.fault = "hangs"
    ask(sampler, request(0), request(1))
    monkeypatch.setattr(sampler.pool.servers[0], "_again_at", time.monotonic())
    started = time.monotonic()
    ask(sampler, *(request(k) for k in range(4)))
    assert 0.5 <= time.monotonic() - started < 1.5 and len(first.completions) == 1


def test_calls_at_the_same_time_bring_a_restarted_server_its_adapters_once(two, make):
    """Every call finds the server without them; the ones that come second are told that they are there."""
    first, _ = two
    sampler = make(first)
    first.adapters.clear()

    async def apart():
        return await asyncio.gather(*(sampler.sample([request(k)]) for k in range(32)))

    assert all(len(answer) == 1 for (answer,) in asyncio.run(apart()))
    assert sampler.pool.living
