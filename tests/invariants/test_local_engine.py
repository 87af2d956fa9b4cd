"""What must not change the numbers of the local engine, and how little it may."""

import asyncio
import hashlib
import random

import pytest
import torch

from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from support import tiny_model

GRADIENT_BOUND = 2e-5  # of the norm of the difference, relative to the norm of the gradient, float32
LOGPROB_BOUND = 1e-4  # float32, largest absolute difference
BF16_BOUND = 0.05  # bfloat16, mean absolute difference


def make(folder, store, **options):
    engine = LocalEngine(folder, store=store, threads=1, **options)
    engine.create_adapter("actor", LoraSpec(rank=4, alpha=8.0))
    engine.create_adapter("proposer", LoraSpec(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "down_proj"), seed=1))
    for name in ("actor", "proposer"):
        step(engine, name, rows(8))
    engine.sync()
    return engine


def rows(n, seed=0):
    rng = random.Random(seed)
    made = []
    for i in range(n):
        length = rng.randrange(4, 60)
        mask = (False, True, *(rng.random() < 0.4 for _ in range(length - 2)))
        made.append(Row(f"r{i}", tuple(rng.randrange(5, 59) for _ in range(length)), mask))
    return made


def loss(batch, logprobs):
    terms = [(int(r.id[1:]) - 3) * lp.sum() for r, lp in zip(batch, logprobs, strict=True)]
    return torch.stack(terms).sum() / 100, {}


def step(engine, name, batch, lr=0.03):
    engine.forward_backward(batch, loss, adapter=name)
    engine.optim_step(OptimParams(lr=lr), adapter=name)


def gradient(engine, name, batch):
    adapter = engine._adapters[name]
    engine.forward_backward(batch, loss, adapter=name)
    flat = torch.cat([p.grad.flatten() for p in adapter.parameters.values() if p.grad is not None])
    adapter.optimizer.zero_grad()
    return flat


def difference(a, b):
    return float((a - b).norm() / a.norm())


@pytest.fixture(scope="module")
def engine(tiny_folder, tmp_path_factory):
    return make(tiny_folder, tmp_path_factory.mktemp("store"))


@pytest.mark.parametrize("name", ["actor", "proposer"])
def test_batching_changes_no_gradient(engine, tiny_folder, tmp_path, name):
    batch = rows(12)
    reference = gradient(engine, name, batch)
    assert float(reference.norm()) > 0.1
    assert difference(reference, gradient(engine, name, batch[::-1])) < GRADIENT_BOUND
    for tokens in (1, 64, 100_000):  # each row alone; a few together; all in one with much padding
        other = make(tiny_folder, tmp_path, micro_batch_tokens=tokens)
        for key, p in engine._adapters[name].parameters.items():
            other._adapters[name].parameters[key].data.copy_(p.data)
        assert difference(reference, gradient(other, name, batch)) < GRADIENT_BOUND
        assert (other.stats()["train_padded_tokens"] > 500) == (tokens > 1000)
    alone = sum(gradient(engine, name, [row]) for row in batch)
    assert difference(reference, alone) < GRADIENT_BOUND


def test_batching_changes_no_score(engine):
    batch = rows(12)
    reference = engine.logprobs(batch, adapter="actor")
    for order in (range(11, -1, -1), random.Random(0).sample(range(12), 12)):
        for i, logprobs in zip(order, engine.logprobs([batch[i] for i in order], adapter="actor"), strict=True):
            torch.testing.assert_close(logprobs, reference[i], atol=LOGPROB_BOUND, rtol=0)
    for row, expected in zip(batch, reference, strict=True):
        torch.testing.assert_close(engine.logprobs([row], adapter="actor")[0], expected, atol=LOGPROB_BOUND, rtol=0)


def digest(engine, part):
    """Digest of the base ("base") or of one adapter's weights."""
    h = hashlib.sha256()
    for name, p in sorted(engine._base.model.named_parameters()):
        if (".lora_" not in name) if part == "base" else (f".{part}." in name):
            h.update(name.encode() + p.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def test_training_one_adapter_leaves_all_else_bit_identical(tiny_folder, tmp_path):
    engine = make(tiny_folder, tmp_path)
    engine.create_adapter("idle", LoraSpec(rank=2))
    parts = ("base", "actor", "proposer", "idle")
    before = {part: digest(engine, part) for part in parts}
    assert len(set(before.values())) == 4
    for _ in range(3):
        engine.logprobs(rows(4), adapter="idle")
        step(engine, "actor", rows(8))
        asyncio.run(engine.sample([SampleRequest((5, 6, 7), a, seed=0, max_tokens=4) for a in (None, "proposer", "idle")]))
        engine.sync()
    changed = [part for part in parts if digest(engine, part) != before[part]]
    assert changed == ["actor"]


def test_gradients_of_two_adapters_do_not_mix(engine):
    alone = {name: gradient(engine, name, rows(6, seed=k)) for k, name in enumerate(("actor", "proposer"))}
    engine.forward_backward(rows(6, seed=0), loss, adapter="actor")
    engine.logprobs(rows(3), adapter=None)
    engine.forward_backward(rows(6, seed=1), loss, adapter="proposer")
    engine.create_adapter("later", LoraSpec(rank=2))
    for name, expected in alone.items():
        adapter = engine._adapters[name]
        assert torch.equal(torch.cat([p.grad.flatten() for p in adapter.parameters.values() if p.grad is not None]), expected)
        adapter.optimizer.zero_grad()


def requests(n=24):
    rng = random.Random(5)
    prompts = [tuple(rng.randrange(5, 59) for _ in range(rng.randrange(3, 40))) for _ in range(n // 3)]
    return [
        SampleRequest(
            prompts[i % len(prompts)],
            ("actor", None, "proposer")[i % 3],
            seed=i,
            max_tokens=4 + i % 9,
            n=1 + (i % 5 == 0),
            session=f"s{i}" if i % 2 else None,
            choices=((5, 6, 7), (5, 8), (9, 10, 2)) if i % 4 == 3 else None,
            temperature=(1.0, 0.7, 1.5)[i % 3],
        )
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "options", [{}, {"fast": False}, {"cache_tokens": 512, "score_batch_tokens": 64}], ids=["fast", "general", "small"]
)
def test_seeds_alone_decide_the_samples(engine, tiny_folder, tmp_path, options):
    other = make(tiny_folder, tmp_path, **options)
    asked = requests()
    reference = asyncio.run(engine.sample(asked))
    for order in (list(range(24)), list(range(23, -1, -1)), random.Random(1).sample(range(24), 24)):
        other.sync()
        for part in (order, *([i] for i in order[:6])):
            for i, samples in zip(part, asyncio.run(other.sample([asked[i] for i in part])), strict=True):
                assert [s.tokens for s in samples] == [s.tokens for s in reference[i]]
                for s, t in zip(samples, reference[i], strict=True):
                    assert s.logprobs == pytest.approx(t.logprobs, abs=LOGPROB_BOUND)


def test_more_samples_begin_with_the_same_ones(engine):
    few, many = (asyncio.run(engine.sample([SampleRequest((5, 6, 7), "actor", seed=3, max_tokens=6, n=n)]))[0] for n in (2, 7))
    assert [s.tokens for s in many[:2]] == [s.tokens for s in few]
    assert len({s.tokens for s in many}) > 1


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "general"])
def half(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    tiny_model(folder, dtype="bfloat16", hidden_size=64, intermediate_size=128, num_hidden_layers=4, initializer_range=0.15)
    return make(folder, folder / "store", fast=request.param, dtype="bfloat16")


@pytest.mark.parametrize("adapter", [None, "actor", "proposer"])
def test_bfloat16_sampler_and_trainer_agree(half, adapter):
    half.sync()
    asked = [
        SampleRequest(r.tokens, adapter, seed=i, max_tokens=12, session=f"{i}", stop=(999,)) for i, r in enumerate(rows(16))
    ]
    gaps = []
    for _ in range(2):  # from scratch, and on from the sessions' caches
        answers = asyncio.run(half.sample(asked))
        for request, (sample,) in zip(asked, answers, strict=True):
            row = Row("x", request.prompt + sample.tokens, (False,) * len(request.prompt) + (True,) * len(sample.tokens))
            gaps.append((half.logprobs([row], adapter=adapter)[0] - torch.tensor(sample.logprobs)).abs())
        asked = [
            SampleRequest((*r.prompt, *s.tokens, 5), adapter, seed=9, max_tokens=12, session=r.session, stop=(999,))
            for r, (s,) in zip(asked, answers, strict=True)
        ]
    assert float(torch.cat(gaps).mean()) < BF16_BOUND


def test_bfloat16_weights_stay_frozen_beside_float32_adapters(half):
    kinds = {(".lora_" in name, p.dtype) for name, p in half._base.model.named_parameters()}
    assert kinds == {(False, torch.bfloat16), (True, torch.float32)}
    before = digest(half, "base")
    step(half, "actor", rows(4))
    assert digest(half, "base") == before
