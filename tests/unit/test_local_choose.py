import asyncio
import math
import random
from dataclasses import replace

import pytest
import torch

from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.local.choices import Tree
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from support import tiny_model

BOUND = 1e-4
CHOICES = ((10, 11, 12, 2), (10, 11, 13, 2), (10, 2), (14, 11, 12, 2), (15,), (10, 11, 12, 13, 2))


def prompt(seed, length):
    rng = random.Random(seed)
    return tuple(rng.randrange(5, 59) for _ in range(length))


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "general"])
def engine(request, tiny_folder, tmp_path_factory):
    engine = LocalEngine(tiny_folder, store=tmp_path_factory.mktemp("store"), fast=request.param, threads=1)
    engine.create_adapter("actor", LoraSpec(rank=4))
    rows = [Row("d", tuple(range(5, 15)), (False, *(True,) * 9))]
    engine.forward_backward(rows, lambda rows, lps: (-lps[0].sum(), {}), adapter="actor")
    engine.optim_step(OptimParams(lr=0.05), adapter="actor")
    engine.sync()
    return engine


def ask(engine, requests):
    return [answer[0] for answer in asyncio.run(engine.sample(requests))]


def scores(engine, request):
    """Log-probs of every token of every choice, each scored alone."""
    P = len(request.prompt)
    rows = [Row(str(i), request.prompt + c, (False,) * P + (True,) * len(c)) for i, c in enumerate(request.choices)]
    return [t.tolist() for t in engine.logprobs(rows, adapter=request.adapter)]


def check(engine, request, sample):
    each = scores(engine, request)
    totals = torch.tensor([sum(part) for part in each], dtype=torch.float64)
    assert sample.stop == "choice" and sample.tokens == request.choices[sample.choice]
    assert sample.drawn_from.alone == pytest.approx(each[sample.choice], abs=BOUND)
    assert sample.choice_logprobs == pytest.approx(totals.log_softmax(0).tolist(), abs=BOUND)
    given = (totals / (request.temperature or 1.0)).softmax(0)
    same = sum(float(p) for p, c in zip(given, request.choices, strict=True) if c == sample.tokens)
    assert sum(sample.logprobs) == pytest.approx(math.log(same), abs=BOUND)
    row = row_of(request, sample)
    assert sample.logprobs == pytest.approx(engine.logprobs([row], adapter=request.adapter)[0].tolist(), abs=BOUND)


def row_of(request, sample):
    """The training row of one choice."""
    P = len(request.prompt)
    mask = (False,) * P + (True,) * len(sample.tokens)
    choice = replace(sample.drawn_from, start=P)
    return Row(str(request.seed), request.prompt + sample.tokens, mask, request.temperature or 1.0, choices=(choice,))


@pytest.mark.parametrize("adapter", [None, "actor"])
def test_packed_scores_equal_each_choice_scored_alone(engine, adapter):
    engine.sync()
    lists = (CHOICES, CHOICES[:1], CHOICES[2:5], ((7, 8),) * 2)
    requests = [SampleRequest(prompt(i, 6 + 5 * i), adapter, seed=i, choices=lists[i % 4]) for i in range(8)]
    for request, sample in zip(requests, ask(engine, requests), strict=True):
        check(engine, request, sample)


@pytest.mark.parametrize("prompts", [6, 2], ids=["different prompts", "shared prompts"])
def test_a_session_goes_on_after_the_chosen_tokens(engine, prompts):
    engine.sync()
    requests = [
        SampleRequest(prompt(i % prompts, 20), "actor", seed=i, choices=CHOICES, session=f"c{i}", temperature=50.0)
        for i in range(6)
    ]
    lengths = set()
    for turn in range(3):
        samples = ask(engine, requests)
        for request, sample in zip(requests, samples, strict=True):
            check(engine, request, sample)
        lengths |= {len(s.tokens) for s in samples}
        requests = [replace(r, prompt=r.prompt + s.tokens + prompt(turn, 4)) for r, s in zip(requests, samples, strict=True)]
    assert lengths >= {1, 4, 5}  # what was kept: nothing, three and four tokens
    before = engine.stats()["reused_tokens"]
    stored = sum(len(r.prompt) - 5 for r in requests)  # all but the last chosen token and the new observation of 4
    ask(engine, requests)
    reused = engine.stats()["reused_tokens"] - before
    assert reused == stored if len({r.prompt for r in requests}) == 6 else reused > stored


def test_a_session_may_mix_choosing_and_free_generation(engine):
    chosen = SampleRequest(prompt(5, 15), "actor", seed=1, choices=CHOICES, session="mix")
    (first,) = ask(engine, [chosen])
    free = SampleRequest(chosen.prompt + first.tokens, "actor", seed=2, max_tokens=6, session="mix")
    (second,) = ask(engine, [free])
    row = Row("x", free.prompt + second.tokens, (False,) * len(free.prompt) + (True,) * len(second.tokens))
    assert second.logprobs == pytest.approx(engine.logprobs([row], adapter="actor")[0].tolist(), abs=BOUND)
    third = SampleRequest(free.prompt + second.tokens, "actor", seed=3, choices=CHOICES, session="mix")
    check(engine, third, ask(engine, [third])[0])


def test_choices_follow_the_softmax_of_their_sums(engine):
    request = SampleRequest(prompt(1, 10), "actor", seed=0, n=4000, choices=CHOICES[:4], temperature=8.0)
    samples = asyncio.run(engine.sample([request]))[0]
    expected = (torch.tensor(samples[0].choice_logprobs) / 8.0).softmax(0).tolist()
    for c, p in enumerate(expected):
        seen = sum(s.choice == c for s in samples) / len(samples)
        assert abs(seen - p) < 5 * math.sqrt(p * (1 - p) / len(samples))
    assert min(expected) > 0.01


def test_temperature_zero_takes_the_best(engine):
    request = SampleRequest(prompt(1, 10), "actor", seed=0, choices=CHOICES, temperature=0)
    (sample,) = ask(engine, [request])
    sums = [sum(part) for part in scores(engine, request)]
    assert sample.choice == max(range(len(sums)), key=sums.__getitem__)


def test_the_draw_depends_on_the_seed_alone(engine):
    requests = [SampleRequest(prompt(i % 2, 12), "actor", seed=i, choices=CHOICES, temperature=5.0) for i in range(12)]
    together = [s.choice for s in ask(engine, requests)]
    assert [s.choice for s in reversed(ask(engine, requests[::-1]))] == together
    assert [ask(engine, [r])[0].choice for r in requests] == together
    assert len(set(together)) > 1


def test_the_tree_shares_prefixes_and_computes_no_last_token():
    tree = Tree(CHOICES)
    # 10, 10-11, 10-11-12, 10-11-13, 14, 14-11, 14-11-12, 10-11-12-13; neither the 15 nor the twos
    assert tree.nodes == [10, 11, 12, 13, 14, 11, 12, 13]
    assert tree.parents == [-1, 0, 1, 1, -1, 4, 5, 2]
    assert [len(path) for path in tree.paths] == [len(c) for c in CHOICES]
    reach = tree.ancestry()
    for path in tree.paths:
        for k, node in enumerate(path[1:], 1):
            assert sorted(path[1 : k + 1]) == reach[node].nonzero()[:, 0].tolist()
            assert tree.depths[node] == k - 1


def test_a_large_vocabulary_is_scored_in_chunks(tmp_path, monkeypatch):
    import gongfu.engine.local.choices as module

    engine = LocalEngine(tiny_model(tmp_path / "m"), store=tmp_path, threads=1)
    request = SampleRequest(prompt(3, 9), None, seed=0, choices=CHOICES)
    (whole,) = ask(engine, [request])
    monkeypatch.setattr(module, "_CHUNK_LOGITS", 2 * engine._base.vocab_size)
    (parts,) = ask(engine, [request])
    assert parts.choice_logprobs == pytest.approx(whole.choice_logprobs, abs=1e-5)
    check(engine, request, parts)
