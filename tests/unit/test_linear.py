"""Losses sent as coefficients give the gradients of losses that run beside the model."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.linear import Plain
from gongfu.engine.local import LocalEngine
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from support import tiny_model


@pytest.fixture
def engines(tmp_path):
    made = []
    for name in ("native", "linear"):
        engine = LocalEngine(tiny_model(tmp_path / "model", initializer_range=0.05), store=tmp_path / name, threads=1)
        engine.create_adapter("a", LoraSpec(rank=4, seed=1))
        made.append(engine)
    return made


def rows_of(engine):
    """Plain rows with a gap, and one with two choices and tokens that were generated."""
    ids = engine.tokenizer.encode("look go to open close take put apple mug pen plate book")
    requests = [
        SampleRequest(tuple(ids[:5]), "a", seed=k, temperature=0.8, choices=((ids[1], ids[7]), (ids[1], ids[8]), (ids[2],)))
        for k in range(2)
    ]
    first, second = (answer[0] for answer in asyncio.run(engine.sample(requests)))
    tokens = (*ids[:5], *first.tokens, ids[9], ids[10], *ids[:5], *second.tokens)
    at = 5 + len(first.tokens) + 2 + 5
    mask = [False] * 5 + [True] * len(first.tokens) + [False, True] + [False] * 5 + [True] * len(second.tokens)
    choices = (replace(first.drawn_from, start=5), replace(second.drawn_from, start=at))
    chosen = Row("chosen", tokens, tuple(mask), 0.8, choices=choices)
    return [
        Row("gaps", tuple(ids[:6]), (False, True, True, False, True, True), 1.3),
        chosen,
        Row("one", tuple(ids[:2]), (False, True)),
    ]


def loss(rows, logprobs):
    return sum(((lp + 1.0) ** 2).sum() * len(row.id) for row, lp in zip(rows, logprobs, strict=True)), {
        "rows": float(len(rows))
    }


def linear_step(engine, rows, loss):
    """What a remote engine does, with the local one as its trainer."""
    plain = Plain(rows)
    gradients, metrics = plain.gradients(loss, engine.logprobs(plain.sequences, adapter="a"))
    by_id = dict(zip((row.id for row in plain.sequences), gradients, strict=True))

    def linear(part, logprobs):
        return sum((by_id[row.id] * lp).sum() for row, lp in zip(part, logprobs, strict=True)), {}

    engine.forward_backward(plain.sequences, linear, adapter="a")
    return metrics


def test_rows_with_choices_are_scored_option_by_option(engines):
    engine = engines[0]
    rows = rows_of(engine)
    plain = Plain(rows)
    options = [len(choice.options) for choice in rows[1].choices]
    assert min(options) > 1 and len(plain.sequences) == 1 + (1 + sum(options)) + 1
    found = plain.fold(engine.logprobs(plain.sequences, adapter="a"))
    for ours, theirs in zip(found, engine.logprobs(rows, adapter="a"), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_coefficients_train_as_the_loss_itself_does(engines):
    native, linear = engines
    rows = rows_of(native)
    for _ in range(3):
        metrics = native.forward_backward(rows, loss, adapter="a")
        assert linear_step(linear, rows, loss) == pytest.approx({**metrics, "rows": 3.0}, rel=1e-4)
        norms = [engine.optim_step(OptimParams(lr=0.02), adapter="a")["grad_norm"] for engine in engines]
        assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    ours, theirs = (engine.logprobs(rows, adapter="a") for engine in engines)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-4


def test_a_loss_that_is_no_scalar_or_depends_on_nothing_is_refused(engines):
    rows = rows_of(engines[0])[:1]
    plain = Plain(rows)
    values = engines[0].logprobs(rows, adapter="a")
    for bad in (lambda part, lps: (lps[0], {}), lambda part, lps: (torch.tensor(1.0), {})):
        with pytest.raises(EngineError, match="scalar"):
            plain.gradients(bad, values)
