import copy

import pytest
import torch

from gongfu.core.errors import EngineError, ModelError
from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.local.batching import micro_batches
from gongfu.engine.protocol import LoraSpec, OptimParams
from support import tiny_model, tiny_tokenizer

STEP = OptimParams(lr=0.02)


def rows(n=6, temperature=1.0):
    """Rows of many lengths with gaps in their masks."""
    g = torch.Generator().manual_seed(0)
    made = []
    for i in range(n):
        length = 5 + 7 * ((i * 3) % n)
        tokens = tuple(torch.randint(5, 59, (length,), generator=g).tolist())
        made.append(Row(f"r{i}", tokens, tuple(k > 0 and (k // 3) % 2 == 1 for k in range(length)), temperature))
    return made


def weighted(batch, logprobs):
    """A loss in which every row has its own weight."""
    loss = torch.stack([(1 + len(r.tokens)) * lp.sum() for r, lp in zip(batch, logprobs, strict=True)]).sum()
    return -loss / 100, {"rows": float(len(batch)), "tokens": float(sum(len(lp) for lp in logprobs))}


@pytest.fixture
def engine(tiny_folder, tmp_path):
    engine = LocalEngine(tiny_folder, store=tmp_path, threads=1)
    engine.create_adapter("actor", LoraSpec(rank=4, alpha=8.0))
    return engine


def test_logprobs_equal_a_full_softmax_row_by_row(engine):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(engine._base.folder)
    for temperature in (1.0, 0.5):
        scored = engine.logprobs(rows(temperature=temperature), adapter=None)
        for row, logprobs in zip(rows(), scored, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([row.tokens])).logits[0, :-1] / temperature
            full = logits.log_softmax(-1).gather(-1, torch.tensor(row.tokens[1:])[:, None])[:, 0]
            assert logprobs.dtype is torch.float32 and logprobs.device.type == "cpu" and len(logprobs) == row.targets
            torch.testing.assert_close(logprobs, full[torch.tensor(row.mask[1:])], atol=1e-4, rtol=0)


def test_a_new_adapter_says_what_the_base_says(engine):
    for a, b in zip(engine.logprobs(rows(), adapter=None), engine.logprobs(rows(), adapter="actor"), strict=True):
        assert torch.equal(a, b)


def test_each_row_has_its_own_temperature(engine):
    mixed = [r if i % 2 else Row(r.id, r.tokens, r.mask, 2.0) for i, r in enumerate(rows())]
    cold, hot = engine.logprobs(rows(), adapter=None), engine.logprobs(rows(temperature=2.0), adapter=None)
    for i, logprobs in enumerate(engine.logprobs(mixed, adapter=None)):
        torch.testing.assert_close(logprobs, (cold if i % 2 else hot)[i], atol=1e-5, rtol=0)


def test_forward_backward_sums_losses_and_metrics(engine):
    result = engine.forward_backward(rows(), weighted, adapter="actor")
    expected, _ = weighted(rows(), engine.logprobs(rows(), adapter="actor"))
    assert result["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert result["rows"] == 6 and result["tokens"] == sum(r.targets for r in rows())
    assert engine.stats()["trained_tokens"] == sum(r.targets for r in rows())


def test_training_makes_the_tokens_likelier(engine):
    before = sum(float(lp.sum()) for lp in engine.logprobs(rows(), adapter="actor"))
    norms = []
    for _ in range(5):
        engine.forward_backward(rows(), weighted, adapter="actor")
        norms.append(engine.optim_step(STEP, adapter="actor")["grad_norm"])
    assert sum(float(lp.sum()) for lp in engine.logprobs(rows(), adapter="actor")) > before + 10
    assert all(norm > 0 for norm in norms)


def gradients(engine, name="actor"):
    return {k: p.grad.clone() for k, p in engine._adapters[name].parameters.items() if p.grad is not None}


def test_gradients_accumulate_until_the_step(engine):
    engine.forward_backward(rows(), weighted, adapter="actor")
    once = gradients(engine)
    engine.forward_backward(rows(), weighted, adapter="actor")
    assert once and all(torch.allclose(2 * once[k], g, rtol=1e-4, atol=1e-5) for k, g in gradients(engine).items())
    engine.optim_step(STEP, adapter="actor")
    assert not gradients(engine)


def test_the_step_is_adamw_with_its_own_settings_each_time(engine):
    weights = engine._adapters["actor"].parameters
    mirror = {k: torch.nn.Parameter(p.detach().clone()) for k, p in weights.items()}
    reference = torch.optim.AdamW(mirror.values())
    for params in (OptimParams(lr=0.02, clip=0.0), OptimParams(lr=0.1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1, clip=0.3)):
        engine.forward_backward(rows(), weighted, adapter="actor")
        for k, p in weights.items():
            mirror[k].grad = p.grad.clone()
        norm = torch.cat([m.grad.flatten() for m in mirror.values()]).norm()
        if params.clip:
            torch.nn.utils.clip_grad_norm_(mirror.values(), params.clip)
            assert norm > params.clip
        reference.param_groups[0].update(lr=params.lr, betas=params.betas, eps=params.eps, weight_decay=params.weight_decay)
        reference.step()
        assert engine.optim_step(params, adapter="actor")["grad_norm"] == pytest.approx(float(norm), rel=1e-5)
        for k, p in weights.items():
            torch.testing.assert_close(p.data, mirror[k].data, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_dropped(engine, poison):
    before = copy.deepcopy({k: p.data for k, p in engine._adapters["actor"].parameters.items()})
    engine.forward_backward(rows(), lambda b, lps: (torch.cat(list(lps)).sum() * poison, {}), adapter="actor")
    with pytest.raises(EngineError, match=r"gradient norm is (nan|inf)"):
        engine.optim_step(STEP, adapter="actor")
    assert all(torch.equal(p.data, before[k]) for k, p in engine._adapters["actor"].parameters.items())
    with pytest.raises(EngineError, match="no gradient"):
        engine.optim_step(STEP, adapter="actor")
    engine.forward_backward(rows(), weighted, adapter="actor")
    assert engine.optim_step(STEP, adapter="actor")["grad_norm"] > 0


def test_nothing_is_trained_silently(engine):
    tokens = tuple(range(5, 15))
    with pytest.raises(EngineError, match="row empty: no token is to be scored"):
        engine.forward_backward([Row("empty", tokens, (False,) * 10)], weighted, adapter="actor")
    with pytest.raises(EngineError, match="row long: 513 tokens"):
        engine.logprobs([Row("long", (5,) * 513, (False, *(True,) * 512))], adapter=None)
    with pytest.raises(EngineError, match="row odd: token ids outside"):
        engine.logprobs([Row("odd", (5, 4000), (False, True))], adapter=None)
    with pytest.raises(EngineError, match="no rows"):
        engine.forward_backward([], weighted, adapter="actor")
    with pytest.raises(EngineError, match="depends on the log-probs"):
        engine.forward_backward(rows(), lambda b, lps: (torch.zeros(()), {}), adapter="actor")
    with pytest.raises(EngineError, match="known: actor"):
        engine.forward_backward(rows(), weighted, adapter="critic")
    assert engine.logprobs([], adapter=None) == []


def test_adapter_names_and_targets_are_checked(engine):
    for name, spec, message in (
        ("actor", LoraSpec(), "exists already"),
        ("a.b", LoraSpec(), "letters"),
        ("b", LoraSpec(rank=0), "rank"),
        ("b", LoraSpec(targets=("q_proj", "qq_proj")), "qq_proj.*it has.*'q_proj'"),
        ("b", LoraSpec(targets=()), "no linear modules"),
    ):
        with pytest.raises(EngineError, match=message):
            engine.create_adapter(name, spec)


def test_the_same_spec_and_seed_give_the_same_adapter(engine, tiny_folder, tmp_path):
    engine.create_adapter("other", LoraSpec(rank=4, alpha=8.0))
    engine.create_adapter("third", LoraSpec(rank=4, alpha=8.0, seed=1))
    first, other, third = (engine._adapters[name].parameters for name in ("actor", "other", "third"))
    assert all(torch.equal(first[k], other[k]) for k in first)
    assert not any(torch.equal(first[k], third[k]) for k in first if k.endswith("lora_A"))
    assert all(p.dtype is torch.float32 and not p.any() for k, p in first.items() if k.endswith("lora_B"))
    assert len(first) == 2 * 7 * engine._base.config.num_hidden_layers


def test_log_probs_in_chunks_give_the_same_gradients(engine, monkeypatch):
    import gongfu.engine.local.scorer as module

    engine.forward_backward(rows(), weighted, adapter="actor")
    whole = gradients(engine)
    engine._adapters["actor"].optimizer.zero_grad()
    monkeypatch.setattr(module, "_CHUNK_LOGITS", 3 * engine._base.vocab_size)
    engine.forward_backward(rows(), weighted, adapter="actor")
    assert all(torch.allclose(whole[k], g, rtol=1e-4, atol=1e-5) for k, g in gradients(engine).items())


def test_micro_batches_hold_similar_lengths_within_the_limit():
    lengths = [3, 50, 7, 7, 120, 8, 3, 2]
    batches = list(micro_batches(lengths, 50))
    assert sorted(i for batch in batches for i in batch) == list(range(8))
    assert all(len(b) == 1 or max(lengths[i] for i in b) * len(b) <= 50 for b in batches)
    assert [lengths[b[0]] for b in batches] == [120, 50, 8]


def test_models_that_cannot_be_used(tmp_path, tiny_folder):
    with pytest.raises(ModelError, match=r"no config\.json"):
        tiny_tokenizer(tmp_path)
        LocalEngine(tmp_path, store=tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="no CUDA GPU"):
            LocalEngine(tiny_folder, store=tmp_path, device="cuda")
    with pytest.raises(ModelError, match="cpu, cuda"):
        LocalEngine(tiny_folder, store=tmp_path, device="xpu")
    with pytest.raises(ModelError, match="dtype 'float8'"):
        LocalEngine(tiny_folder, store=tmp_path, dtype="float8")  # type: ignore[arg-type]
    tiny_model(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="cannot load"):
        LocalEngine(tmp_path / "m", store=tmp_path)


def test_weights_that_are_missing_are_not_drawn_at_random(tmp_path):
    from safetensors.torch import load_file, save_file

    path = tiny_model(tmp_path) / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lack model\.layers\.1\.mlp\.up_proj"):
        LocalEngine(tmp_path, store=tmp_path)
