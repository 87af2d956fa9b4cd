"""A drawn response is trained by log p(response | the list): checked against every option scored as a row of its own."""

import asyncio
import math
import random
from dataclasses import replace

import pytest
import torch

from gongfu.core.errors import TokenError
from gongfu.core.records import Choice, Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.local.packing import Pack
from gongfu.engine.local.scorer import _needed
from gongfu.engine.local.trees import Branches, chain
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest

VALUE_BOUND = 5e-5  # float32, absolute
GRADIENT_BOUND = 1e-5  # relative to the norm of the gradient
LISTS = (
    ((10, 11, 12, 2), (10, 11, 13, 2), (10, 2), (14, 11, 12, 2), (10, 11, 12, 13, 2)),
    ((20, 2), (21, 2)),
    ((30, 31, 32, 33, 2), (30, 31, 2), (34,)),
    ((40, 2),),
)


def make(folder, store, **options):
    engine = LocalEngine(folder, store=store, threads=1, **options)
    engine.create_adapter("actor", LoraSpec(rank=4, seed=1))
    rows = [Row("d", tuple(range(5, 15)), (False, *(True,) * 9))]
    engine.forward_backward(rows, lambda rows, lps: (-lps[0].sum(), {}), adapter="actor")
    engine.optim_step(OptimParams(lr=0.05), adapter="actor")
    engine.sync()
    return engine


@pytest.fixture(scope="module")
def engine(tiny_folder, tmp_path_factory):
    return make(tiny_folder, tmp_path_factory.mktemp("store"))


def episode(name, seed, turns, temperature=1.0, others=None, prefix=()):
    """A row of several choices with text between them, and one plain response at its end."""
    rng = random.Random(seed)
    tokens, mask, choices = list(prefix), [False] * len(prefix), []
    for turn in range(turns):
        gap = [rng.randrange(5, 59) for _ in range(rng.randrange(3, 9))]
        options = LISTS[(seed + turn) % len(LISTS)]
        response = rng.choice(options)
        choices.append(Choice(options, others, start=len(tokens) + len(gap)))
        tokens += [*gap, *response]
        mask += [False] * len(gap) + [True] * len(response)
    tokens += [7, 8, 9, 2]
    mask += [False, True, True, True]
    return Row(name, tuple(tokens), tuple(mask), temperature, choices=tuple(choices))


def batch():
    prefix = tuple(random.Random(5).choices(range(5, 59), k=60))
    return [
        *(episode(f"a{i}", i, 4, prefix=prefix) for i in range(3)),
        episode("hot", 7, 3, temperature=2.0),
        episode("rest", 8, 5, others=-9.0),
        Row("plain", (*prefix, 20, 21, 2), (False,) * 60 + (True,) * 3),
    ]


def by_hand(engine, row, adapter):
    """Log-probs [targets]: each option a row of its own, the chain rule in plain words."""
    result = {}
    for choice in row.choices:
        taken, at = row.response(choice), choice.start
        totals = []
        for option in choice.options:
            alone = Row("o", row.tokens[:at] + option, (False,) * at + (True,) * len(option))
            totals.append(float(engine.logprobs([alone], adapter=adapter)[0].double().sum()) / row.temperature)
        for t in range(len(taken)):
            going_on = [math.exp(s) for s, o in zip(totals, choice.options, strict=True) if o[: t + 1] == taken[: t + 1]]
            possible = [math.exp(s) for s, o in zip(totals, choice.options, strict=True) if o[:t] == taken[:t]]
            if t == 0 and choice.others is not None:
                possible.append(math.exp(choice.others))
            result[at + t] = math.log(sum(going_on)) - math.log(sum(possible))
    plain = engine.logprobs([replace(row, choices=())], adapter=adapter)[0].tolist()
    scored = [i for i, m in enumerate(row.mask) if m]
    return [result.get(i, value) for i, value in zip(scored, plain, strict=True)]


@pytest.mark.parametrize("adapter", [None, "actor"])
def test_values_are_those_worked_by_hand(engine, adapter):
    for row, found in zip(batch(), engine.logprobs(batch(), adapter=adapter), strict=True):
        assert found.tolist() == pytest.approx(by_hand(engine, row, adapter), abs=VALUE_BOUND), row.id
        for choice in row.choices:
            if len(choice.options) == 1 and choice.others is None:  # nothing else was possible
                at = sum(row.mask[: choice.start])
                assert float(found[at]) == 0


def loss(rows, logprobs):
    terms = [
        (1 + sum(map(ord, r.id)) % 7) * (lp * torch.arange(1, len(lp) + 1)).sum() for r, lp in zip(rows, logprobs, strict=True)
    ]
    return torch.stack(terms).sum() / 100, {}


def gradient(engine, rows):
    engine.forward_backward(rows, loss, adapter="actor")
    return collected(engine)


def collected(engine):
    adapter = engine._adapters["actor"]
    flat = torch.cat([p.grad.flatten() for p in adapter.parameters.values() if p.grad is not None])
    adapter.optimizer.zero_grad()
    return flat


def brute_gradient(engine, row):
    """The same loss with every option as a row of its own, differentiated through the chain rule."""
    rows = [replace(row, id="plain", choices=())]
    for n, choice in enumerate(row.choices):
        for c, option in enumerate(choice.options):
            mask = (False,) * choice.start + (True,) * len(option)
            rows.append(Row(f"{n}/{c}", row.tokens[: choice.start] + option, mask))
    rank = {at: k for k, at in enumerate(i for i, m in enumerate(row.mask) if m)}

    engine._adapters.activate("actor")
    values = {
        r.id: engine._scorer._forward([r], [Branches(r, _needed(r))], [Pack((0,), 0, _needed(r))], "train")[0] for r in rows
    }
    given = list(values["plain"])
    for n, choice in enumerate(row.choices):
        taken = row.response(choice)
        totals = [values[f"{n}/{c}"].sum() / row.temperature for c in range(len(choice.options))]
        for t in range(len(taken)):
            above = torch.stack([s for s, o in zip(totals, choice.options, strict=True) if o[: t + 1] == taken[: t + 1]])
            below = [s for s, o in zip(totals, choice.options, strict=True) if o[:t] == taken[:t]]
            below += [torch.tensor(choice.others)] if t == 0 and choice.others is not None else []
            given[rank[choice.start + t]] = above.logsumexp(0) - torch.stack(below).logsumexp(0)
    loss([row], [torch.stack(given)])[0].backward()
    return collected(engine)


def test_gradients_are_those_of_options_as_rows(engine):
    for row in batch()[:5]:
        wanted, found = brute_gradient(engine, row), gradient(engine, [row])
        assert float((found - wanted).norm() / wanted.norm()) < GRADIENT_BOUND, row.id
        raw = gradient(engine, [replace(row, choices=())])
        assert float((raw - wanted).norm() / wanted.norm()) > 0.1  # what the raw log-probs would have trained


@pytest.mark.parametrize("tokens", [1, 120, 100_000])
def test_neither_order_nor_micro_batches_change_the_gradient(engine, tiny_folder, tmp_path, tokens):
    wanted = torch.stack([gradient(engine, [row]) for row in batch()]).sum(0)
    other = make(tiny_folder, tmp_path, micro_batch_tokens=tokens)
    for order in (batch(), batch()[::-1]):
        assert float((gradient(other, order) - wanted).norm() / wanted.norm()) < GRADIENT_BOUND


def test_rows_with_choices_share_their_prefix(engine):
    before = engine.stats()["score_shared_tokens"]
    engine.logprobs(batch()[:3], adapter="actor")
    assert engine.stats()["score_shared_tokens"] >= before + 60


def test_the_trainer_agrees_with_the_sampler_whatever_was_left_out(engine):
    options = tuple((w, v, 2) for w in (10, 11, 12) for v in (20, 21, 22))
    left_out = 0
    for temperature in (1.0, 3.0, 30.0):
        requests = [
            SampleRequest(tuple(range(5 + i, 20 + i)), "actor", seed=i, temperature=temperature, choices=options, n=4)
            for i in range(6)
        ]
        for request, samples in zip(requests, asyncio.run(engine.sample(requests)), strict=True):
            for s in samples:
                P = len(request.prompt)
                assert s.drawn_from is not None and s.tokens in s.drawn_from.options
                left_out += s.drawn_from.others is not None
                mask = (False,) * P + (True,) * len(s.tokens)
                choice = replace(s.drawn_from, start=P)
                row = Row("x", request.prompt + s.tokens, mask, temperature, choices=(choice,))
                trained = engine.logprobs([row], adapter="actor")[0]
                assert s.logprobs == pytest.approx(trained.tolist(), abs=VALUE_BOUND)
                heated = torch.tensor(s.choice_logprobs, dtype=torch.float64) / temperature
                assert sum(s.logprobs) == pytest.approx(float(heated.log_softmax(0)[s.choice]), abs=VALUE_BOUND)
    assert left_out > 10


def test_a_choice_must_stand_in_its_row():
    with pytest.raises(TokenError, match="none of the 1 options"):
        Row("r", (1, 2, 3), (False, True, True), choices=(Choice(((2, 9),), start=1),))
    with pytest.raises(TokenError, match="not scored as a whole"):
        Row("r", (1, 2, 3), (False, True, False), choices=(Choice(((2, 3),), start=1),))


def test_branches_by_hand():
    row = Row("r", (5, 6, 10, 11, 2, 7), (False, False, True, True, True, False), choices=(
        Choice(((10, 11, 2), (10, 12, 13, 2), (10, 12, 2), (14, 2)), start=2),
    ))  # fmt: skip
    branches = Branches(row, needed=4)
    assert branches.nodes == [12, 13, 14]  # 10-12 and 10-12-13 beside the row's 10, and 14
    assert branches.positions == [3, 4, 2]
    assert branches.sees == [3, 3, 2]
    assert branches.parents == [-1, 0, -1]
    assert branches.places == [1, 2, 3, 1, 2, 4, 5, 1, 2, 4, 1, 6]
    assert branches.tokens == [10, 11, 2, 10, 12, 13, 2, 10, 12, 2, 14, 2]
    assert branches.owners == [0] * 3 + [1] * 4 + [2] * 3 + [3] * 2


def test_the_chain_by_hand():
    choice = Choice(((1, 2), (1, 3), (4,)), others=math.log(4))
    found = chain([choice], [(1, 2)], torch.tensor([1.0, 2.0, 3.0]).log())
    assert found.tolist() == pytest.approx([math.log(3 / 10), math.log(1 / 3)])
