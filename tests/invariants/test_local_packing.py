"""Rows that share a prefix are computed as one sequence; nobody may be able to tell from the numbers."""

import itertools
import random

import pytest
import torch

from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.local.base import BaseModel
from gongfu.engine.local.packing import Pack, attention_cost, can_pack, plan
from gongfu.engine.protocol import LoraSpec, OptimParams
from support import tiny_model, tiny_tokenizer

GRADIENT_BOUND = 1e-5  # of the norm of the difference, relative to the norm of the gradient, float32
LOGPROB_BOUND = 2e-5  # float32, largest absolute difference
BF16_BOUND = 0.05  # bfloat16, mean absolute difference
ADAPTERS = ("actor", "proposer")
ALL = LoraSpec().targets


def make(folder, store, targets=ALL, **options):
    engine = LocalEngine(folder, store=store, threads=1, **options)
    for k, name in enumerate(ADAPTERS):
        engine.create_adapter(name, LoraSpec(rank=4, alpha=8.0, targets=targets, seed=k))
        for row in mixed(seed=9):
            engine.forward_backward([row], loss, adapter=name)
        engine.optim_step(OptimParams(lr=0.03), adapter=name)
    return engine


@pytest.fixture(scope="module")
def engine(tiny_folder, tmp_path_factory):
    return make(tiny_folder, tmp_path_factory.mktemp("store"))


def row(name, prompt, response, scored=None, temperature=1.0):
    mask = scored or (False,) * len(prompt) + (True,) * len(response)
    return Row(name, (*prompt, *response), mask, temperature)


def group(name, length, rests, seed):
    """Rows with a prompt of `length` tokens in common and responses of `rests` tokens, each scored whole."""
    rng = random.Random(seed)

    def draw(n):
        return tuple(rng.randrange(5, 59) for _ in range(n))

    prompt = draw(length)
    return [row(f"{name}{k}", prompt, draw(n), temperature=(1.0, 0.7)[k % 2]) for k, n in enumerate(rests)]


def mixed(seed=0):
    """Groups of many shapes, shuffled: what packs, what does not, and what is easily packed wrongly."""
    rng = random.Random(seed)
    a, b = group("a", 60, (3, 1, 12, 5, 7), seed), group("b", 25, (4, 9, 2), seed + 100)
    twin = Row("twin", a[2].tokens, a[2].mask, 1.3)
    tokens = a[0].tokens + a[1].tokens[60:]
    inside = Row("inside", tokens, tuple(10 <= k < 20 or k % 7 == 3 for k in range(len(tokens))))  # scored in the prefix too
    ahead = Row("ahead", a[0].tokens[:40], tuple(k >= 20 for k in range(40)))  # no more than a piece of the prefix
    silent = Row("silent", a[0].tokens + (5,) * 30, a[0].mask + (False,) * 30)  # unscored tokens at the end
    made = [*a, *b, twin, inside, ahead, silent, *group("alone", 30, (6,), seed + 200), *group("long", 4, (90, 80), seed + 300)]
    rng.shuffle(made)
    return made


def loss(batch, logprobs):
    terms = [(1 + sum(map(ord, r.id)) % 7) * lp.sum() for r, lp in zip(batch, logprobs, strict=True)]
    return torch.stack(terms).sum() / 100, {"rows": float(len(batch))}


def gradient(engine, name, batches):
    adapter = engine._adapters[name]
    for batch in batches:
        engine.forward_backward(batch, loss, adapter=name)
    flat = torch.cat([p.grad.flatten() for p in adapter.parameters.values() if p.grad is not None])
    adapter.optimizer.zero_grad()
    return flat


def shared(engine, purpose):
    return engine.stats()[f"{purpose}_shared_tokens"]


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_packed_log_probs_are_those_of_rows_alone(engine, adapter):
    before = shared(engine, "score")
    expected = [engine.logprobs([r], adapter=adapter)[0] for r in mixed()]
    assert shared(engine, "score") == before
    packed = engine.logprobs(mixed(), adapter=adapter)
    assert shared(engine, "score") > before + 400
    for r, found, wanted in zip(mixed(), packed, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=LOGPROB_BOUND, rtol=0, msg=lambda m, r=r: f"{r.id}: {m}")


def test_packs_in_bfloat16(tmp_path):
    tiny_model(tmp_path, dtype="bfloat16", initializer_range=0.15)
    engine = make(tmp_path, tmp_path, dtype="bfloat16")
    expected = torch.cat([engine.logprobs([r], adapter="actor")[0] for r in mixed()])
    packed = torch.cat(engine.logprobs(mixed(), adapter="actor"))
    assert shared(engine, "score") > 300
    assert float((packed - expected).abs().mean()) < BF16_BOUND < float(expected.abs().mean())


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("tokens", [1, 64, 256, 100_000])
def test_packed_gradients_are_those_of_rows_alone(engine, tiny_folder, tmp_path, adapter, tokens):
    expected = gradient(engine, adapter, [[r] for r in mixed()])
    other = make(tiny_folder, tmp_path, micro_batch_tokens=tokens)
    before = shared(other, "train")
    for order in (mixed(), mixed()[::-1]):
        found = gradient(other, adapter, [order])
        assert float((found - expected).norm() / expected.norm()) < GRADIENT_BOUND
    assert float(expected.norm()) > 0.1
    assert shared(other, "train") > before + 600


def test_the_adapters_see_packs_apart(engine):
    assert float((gradient(engine, "actor", [mixed()]) - gradient(engine, "proposer", [mixed()])).norm()) > 0.1


def test_every_row_reaches_the_loss_once_and_tokens_add_up(engine):
    seen, before = [], engine.stats()

    def watch(batch, logprobs):
        seen.extend(r.id for r in batch)
        assert [len(lp) for lp in logprobs] == [r.targets for r in batch]
        return loss(batch, logprobs)

    rows = group("g", 100, (8,) * 8, seed=1)
    assert engine.forward_backward(rows, watch, adapter="actor")["rows"] == 8
    engine._adapters["actor"].optimizer.zero_grad()
    assert sorted(seen) == sorted(r.id for r in rows)
    used = {key: value - before[key] for key, value in engine.stats().items()}
    assert used["train_processed_tokens"] == 100 + 8 * 7 and used["train_shared_tokens"] == 7 * 100
    assert used["trained_tokens"] == 8 * 8 and used["train_padded_tokens"] == 0


def test_a_group_with_long_responses_stays_apart(engine):
    before = shared(engine, "train")
    gradient(engine, "actor", [group("g", 20, (200, 210, 190), seed=2)])
    assert shared(engine, "train") == before


# ---------------------------------------------------------------- the plan


def test_the_cost_of_attention_by_hand(tiny_folder, tmp_path):
    # A layer of the tiny Llama: queries and output 32 x 32, keys and values 32 x 16, three matrices 32 x 64 in the MLP.
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64
    assert attention_cost(BaseModel(tiny_folder)) == pytest.approx(2 * 32 / layer)
    # GPT-2: its embeddings of tokens and positions are looked up, not multiplied.
    assert attention_cost(BaseModel(write(tmp_path, "GPT2"))) == pytest.approx(2 * 32 / (12 * 32 * 32))


A, B = tuple(range(100)), tuple(range(100, 200))


def members(packs):
    return sorted(tuple(sorted(pack.members)) for pack in packs)


def test_a_plan_by_hand():
    sequences = [(*A, 1), (*B, 1), (*A, 2), (*B, 2), (*A, 3, 3), (7, 8, 9)]
    packs = plan(sequences, limit=1000, attention=0.0)
    assert members(packs) == [(0, 2, 4), (1, 3), (5,)]
    assert {pack.members: (pack.prefix, pack.width) for pack in packs if 0 in pack.members} == {(0, 2, 4): (100, 104)}
    assert Pack((5,), 0, 3) in packs
    # 101 tokens each, 100 of them in common: a pack may have a quarter more than its longest row, 126 tokens, so 26 rows.
    many = [(*A, k) for k in range(30)]
    packs = plan(many, limit=102, attention=0.0)
    assert len(packs) == 2 and max(pack.width for pack in packs) <= 126 and sum(pack.width for pack in packs) == 2 * 100 + 30
    assert [len(pack.members) for pack in plan(many, limit=200, attention=0.0)] == [30]
    # Half the tokens saved, but every place costs as much as a token.
    assert members(plan([(*A, *B), (*A, *A)], limit=1000, attention=0.0)) == [(0, 1)]
    assert members(plan([(*A, *B), (*A, *A)], limit=1000, attention=1.0)) == [(0,), (1,)]
    assert plan([], limit=10, attention=0.0) == []


@pytest.mark.parametrize("seed", range(40))
def test_no_division_of_the_sorted_rows_is_cheaper(seed):
    rng = random.Random(seed)
    prompts = [tuple(rng.randrange(3) for _ in range(rng.randrange(1, 12))) for _ in range(3)]
    rows = [(*rng.choice(prompts), *(rng.randrange(3) for _ in range(rng.randrange(4)))) for _ in range(7)]
    attention, limit = rng.choice([0.0, 0.01, 0.1]), rng.choice([8, 20, 1000])

    def cost(indices):
        lengths = [len(rows[i]) for i in indices]
        if len(indices) == 1:
            return lengths[0] * (1 + attention * lengths[0] / 2)
        prefix = sum(1 for _ in itertools.takewhile(lambda c: len(set(c)) == 1, zip(*(rows[i] for i in indices), strict=False)))
        width = sum(lengths) - prefix * (len(indices) - 1)
        allowed = prefix and width <= max(limit, 1.25 * max(lengths))
        return 1.1 * width * (1 + attention * 1.5 * width) if allowed else float("inf")

    packs = plan(rows, limit=limit, attention=attention)
    assert sorted(i for pack in packs for i in pack.members) == list(range(7))
    order = sorted(range(7), key=rows.__getitem__)
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, 7), n) for n in range(7))
    divisions = [[order[a:b] for a, b in itertools.pairwise((0, *cut, 7))] for cut in cuts]
    assert len(divisions) == 64
    found = sum(cost(pack.members) for pack in packs)
    assert found == pytest.approx(min(sum(map(cost, division)) for division in divisions))


# ---------------------------------------------------------------- architectures


def write(folder, kind, **settings):
    import transformers

    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, kind + "Config")(**{**shape, **settings})
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "settings", "targets"),
    [
        ("GPT2", {"n_positions": 128}, ("c_attn", "c_proj")),
        ("Qwen2", {"intermediate_size": 64, "num_key_value_heads": 2}, ("q_proj", "up_proj")),
        ("Mistral", {"intermediate_size": 64, "num_key_value_heads": 2, "sliding_window": 100}, ("q_proj", "v_proj")),
    ],
)
def test_other_architectures(tmp_path, kind, settings, targets):
    engine = make(write(tmp_path, kind, **settings), tmp_path, targets)
    expected = gradient(engine, "actor", [[r] for r in mixed()])
    before = shared(engine, "train")
    found = gradient(engine, "actor", [mixed()])
    assert shared(engine, "train") > before + 300
    assert float((found - expected).norm() / expected.norm()) < GRADIENT_BOUND


@pytest.mark.parametrize("deaf_to", ["position_ids", "attention_mask"])
def test_a_model_that_does_not_listen_is_not_packed(tiny_folder, monkeypatch, deaf_to):
    base = BaseModel(tiny_folder)
    forward = base.backbone.forward

    def deaf(input_ids, attention_mask=None, position_ids=None, **rest):
        heard = {"attention_mask": attention_mask, "position_ids": position_ids}
        return forward(input_ids=input_ids, **{**heard, deaf_to: None}, **rest)

    assert can_pack(base)
    monkeypatch.setattr(base.backbone, "forward", deaf)
    assert not can_pack(base)


def test_a_model_that_counts_places_is_not_packed(tmp_path, tiny_folder):
    assert can_pack(BaseModel(tiny_folder))
    for name, alibi in (("places", True), ("positions", False)):
        assert can_pack(BaseModel(write(tmp_path / name, "Falcon", alibi=alibi))) is not alibi
    engine = make(tmp_path / "places", tmp_path, ("query_key_value",))
    expected = gradient(engine, "actor", [[r] for r in mixed()])
    found = gradient(engine, "actor", [mixed()])
    assert shared(engine, "train") == 0
    assert float((found - expected).norm() / expected.norm()) < GRADIENT_BOUND
