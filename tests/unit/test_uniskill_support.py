"""The support floor on a real model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gongfu.credit.support import SupportLoss, support_rows
from gongfu.engine.local import LocalEngine
from gongfu.engine.protocol import LoraSpec, OptimParams

PROMPT = tuple(range(5, 25))


@pytest.fixture
def engine(tiny_folder, tmp_path):
    engine = LocalEngine(tiny_folder, store=tmp_path, threads=1)
    engine.create_adapter("actor", LoraSpec(rank=4, seed=1))
    return engine


def test_the_rows_are_scored_among_the_legal_operations(engine):
    """Against the log-probs of the same tokens in the whole vocabulary, at the temperature of the rows."""
    rows = support_rows(PROMPT, {"ADD": 30, "UPDATE": 41, "KEEP": 52}, id="d", temperature=0.5)
    whole = [float(v) for v in engine.logprobs([replace(row, choices=(), temperature=1.0) for row in rows], adapter="actor")]
    masses = [math.exp(value / 0.5) for value in whole]
    restricted = [float(v.exp()) for v in engine.logprobs(rows, adapter="actor")]
    assert restricted == pytest.approx([mass / sum(masses) for mass in masses], abs=1e-5)


def test_training_on_the_floor_alone_lifts_the_rarest_operation_to_it(engine):
    rows = support_rows(PROMPT, {"ADD": 30, "UPDATE": 41, "KEEP": 52}, id="d")

    def rarest() -> float:
        return min(float(values.exp()) for values in engine.logprobs(rows, adapter="actor"))

    first = rarest()
    floor = min(0.3, 1.5 * first)
    for _ in range(40):
        engine.forward_backward(rows, SupportLoss(rows, floor), adapter="actor")
        engine.optim_step(OptimParams(lr=0.02), adapter="actor")
    assert rarest() > 0.95 * floor > 1.3 * first
