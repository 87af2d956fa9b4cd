"""Other decoder-only models: the sampler's log-probs are those of the trainer, whatever the architecture."""

import asyncio
from dataclasses import replace

import pytest
import torch

from gongfu.core.errors import ModelError
from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from support import tiny_model, tiny_tokenizer

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
MODELS = {
    # name: (config class, settings, adapter targets, has a fast forward)
    "llama, long context": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
        ("q_proj", "down_proj"),
        True,
    ),
    "llama, biases and wide heads": (
        "LlamaConfig",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
        LoraSpec().targets,
        True,
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": False}, LoraSpec().targets, True),
    "qwen3": ("Qwen3Config", {"head_dim": 16}, LoraSpec().targets, False),
    "mistral, sliding window": ("MistralConfig", {"sliding_window": 64}, ("q_proj", "v_proj"), False),
    "gpt2": (
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 64},
        ("c_attn", "c_proj"),
        False,
    ),
}


def write(folder, kind, settings):
    import transformers

    tiny_tokenizer(folder)
    common = {k: v for k, v in SMALL.items() if kind != "GPT2Config" or k in ("vocab_size", "initializer_range")}
    config = getattr(transformers, kind)(**{**common, **settings, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("bias"):
                p.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_sampler_and_trainer_agree(name, tmp_path):
    kind, settings, targets, has_fast = MODELS[name]
    engine = LocalEngine(write(tmp_path, kind, settings), store=tmp_path, threads=1)
    assert engine.fast == has_fast
    engine.create_adapter("actor", LoraSpec(rank=4, targets=targets))
    row = Row("d", tuple(range(5, 30)), (False, *(True,) * 24))
    engine.forward_backward([row], lambda b, lps: (-lps[0].sum(), {}), adapter="actor")
    assert engine.optim_step(OptimParams(lr=0.02), adapter="actor")["grad_norm"] > 0
    engine.sync()
    for adapter in (None, "actor"):
        asked = [
            SampleRequest(tuple(range(5, 9 + 3 * i)), adapter, seed=i, session=f"s{i}", max_tokens=8, stop=(99,))
            for i in range(5)
        ]
        asked[1] = replace(asked[1], choices=((7, 8, 2), (7, 9, 2), (10,)))
        for _ in range(2):
            answers = asyncio.run(engine.sample(asked))
            for request, (sample,) in zip(asked, answers, strict=True):
                n = len(request.prompt)
                choices = () if sample.drawn_from is None else (replace(sample.drawn_from, start=n),)
                mask = (False,) * n + (True,) * len(sample.tokens)
                row = Row("x", request.prompt + sample.tokens, mask, choices=choices)
                assert sample.logprobs == pytest.approx(engine.logprobs([row], adapter=adapter)[0].tolist(), abs=1e-4)
            asked = [replace(r, prompt=(*r.prompt, *s.tokens, 5, 6)) for r, (s,) in zip(asked, answers, strict=True)]


def test_a_sliding_window_bounds_the_context(tmp_path):
    engine = LocalEngine(write(tmp_path, *MODELS["mistral, sliding window"][:2]), store=tmp_path, threads=1)
    (answer,) = asyncio.run(engine.sample([SampleRequest((5,) * 60, None, seed=0, max_tokens=5)]))
    assert "64 positions" in str(answer)


def test_architectures_that_would_be_computed_wrongly_are_refused(tmp_path):
    gemma = {"head_dim": 16, "final_logit_softcapping": 2.0, "sliding_window": 64}
    with pytest.raises(ModelError, match="changes its logits"):
        LocalEngine(write(tmp_path / "gemma", "Gemma2Config", gemma), store=tmp_path)


def test_the_fast_forward_shares_the_weights_of_the_model(tmp_path):
    engine = LocalEngine(tiny_model(tmp_path), store=tmp_path, threads=1)
    for layer in engine._base.backbone.layers:
        parts = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.mlp.gate_proj, layer.mlp.up_proj]
        assert len({p.weight.untyped_storage().data_ptr() for p in parts}) == 2
