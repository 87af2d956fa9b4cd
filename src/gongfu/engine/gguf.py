"""From a GGUF file (llama.cpp) to a Hugging Face folder that can be trained: llama and qwen2 with a byte-level BPE tokenizer.

Every weight is dequantised once. Names and shapes must be exactly those of the architecture, and what could only be
guessed (scaled rotary embeddings, other tokenizers) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gongfu.core.errors import MissingExtra, ModelError
from gongfu.engine.gguf_file import GGUFFile, ggml

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

Dtype = Literal["bfloat16", "float16", "float32"]

_CONTROL, _USER_DEFINED = 3, 4  # token types that are matched before the byte-pair merges

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_EMBEDDING, _HEAD, _NORM = "token_embd.weight", "output.weight", "output_norm.weight"


class _Fields:
    """Metadata that must be there and of its type."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture: str = self.get("general.architecture", str)
        if self.architecture not in _CLASSES:
            raise ModelError(
                f"{file.path}: architecture {self.architecture!r} cannot be converted; known: {', '.join(_CLASSES)}"
            )

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        value = self.file.metadata.get(key, default)
        if not isinstance(value, kind):
            raise ModelError(f"{self.file.path}: metadata {key!r} is {value!r:.80}, expected {kind}")
        return value

    def texts(self, key: str) -> list[str]:
        values = self.get(key, list)
        if not all(isinstance(value, str) for value in values):
            raise ModelError(f"{self.file.path}: metadata {key!r} is not a list of strings")
        return values

    def model(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.get(f"{self.architecture}.{key}", kind, default)
        if value <= 0:
            raise ModelError(f"{self.file.path}: metadata {self.architecture}.{key} is {value}, expected a positive number")
        return value


def _config(file: GGUFFile, dtype: Dtype) -> dict[str, Any]:
    """config.json without `tie_word_embeddings`. Refuses what it could only guess (scaled or partial rotary embeddings)."""
    fields = _Fields(file)
    architecture = fields.architecture
    scaling = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{file.path}: rotary scaling {scaling!r} cannot be converted")
    if _EMBEDDING not in file.tensors:
        raise ModelError(f"{file.path} has no tensor {_EMBEDDING!r}")
    heads, width = fields.model("attention.head_count", int), fields.model("embedding_length", int)
    head_dim = fields.model("attention.key_length", int, max(1, width // heads))
    rotary = fields.model("rope.dimension_count", int, head_dim)
    if rotary != head_dim or head_dim % 2:
        raise ModelError(f"{file.path}: only {rotary} of {head_dim} dimensions of a head are rotary; cannot be converted")
    layers = fields.model("block_count", int)
    if layers > len(file.tensors):
        raise ModelError(f"{file.path} says it has {layers} layers, but holds {len(file.tensors)} tensors")
    config = {
        "architectures": [_CLASSES[architecture]],
        "model_type": architecture,
        "dtype": dtype,
        "vocab_size": file.tensors[_EMBEDDING].shape[0],
        "hidden_size": width,
        "intermediate_size": fields.model("feed_forward_length", int),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.model("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": fields.model("context_length", int),
        "rms_norm_eps": _shortest(fields.model("attention.layer_norm_rms_epsilon", float)),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": _shortest(fields.model("rope.freq_base", float, 10000.0)),
        },
    }
    return config | {f"{name}_token_id": _token_id(fields, name) for name in ("bos", "eos", "pad")}


def _shortest(value: float) -> float:
    """The decimal that was meant: 9.999999747378752e-06, a float32, is 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))


def _token_id(fields: _Fields, name: str) -> int:
    key = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}[name]
    fallback = fields.file.metadata.get("tokenizer.ggml.eos_token_id")  # a model that never pads has no padding token
    return fields.get(f"tokenizer.ggml.{key}", int, fallback)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """GGUF name -> shape of every tensor that the architecture has."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {_EMBEDDING: (config["vocab_size"], width), _NORM: (width,)}
    part = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (queries, width),
        "attn_k.weight": (keys, width),
        "attn_v.weight": (keys, width),
        "attn_output.weight": (width, queries),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (inner, width),
        "ffn_up.weight": (inner, width),
        "ffn_down.weight": (width, inner),
    }
    if config["model_type"] == "qwen2":
        part |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in part.items()}
    return shapes


def _check_tensors(file: GGUFFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
    found = {name: info.shape for name, info in file.tensors.items()}
    wrong = [f"{name} is missing" for name in shapes.keys() - found.keys()]
    wrong += [f"{name} is unknown" for name in found.keys() - shapes.keys()]
    wrong += [f"{n} is {found[n]}, expected {shapes[n]}" for n in shapes.keys() & found.keys() if found[n] != shapes[n]]
    if wrong:
        listed = "; ".join(sorted(wrong)[:5]) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise ModelError(f"{file.path} does not hold the tensors of its architecture: {listed}")


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of q and k, `(heads * head_dim, ...)`.

    llama.cpp rotates neighbouring pairs of dimensions, transformers the two halves of a head.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _is_tied(file: GGUFFile) -> bool:
    """Whether embedding and output head are one matrix (quantised twice, they differ by rounding only)."""
    import numpy as np

    if _HEAD not in file.tensors:
        return True
    embedding, head = file.tensor(_EMBEDDING), file.tensor(_HEAD)
    return bool(np.linalg.norm(embedding - head) < 0.1 * np.linalg.norm(head))


def build_tokenizer(file: GGUFFile) -> tuple[Tokenizer, dict[str, Any]]:
    """The byte-level BPE tokenizer inside the file, and its tokenizer_config.json (with the chat template)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    fields = _Fields(file)
    if (kind := file.metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise ModelError(f"{file.path}: tokenizer {kind!r} cannot be converted; known: gpt2 (byte-level BPE)")
    if file.metadata.get("tokenizer.ggml.add_bos_token", False):
        raise ModelError(f"{file.path}: tokenizers that add a begin token by themselves cannot be converted")
    tokens = fields.texts("tokenizer.ggml.tokens")
    types = fields.get("tokenizer.ggml.token_type", list, [1] * len(tokens))
    merges = [(a, b) for a, _, b in (merge.partition(" ") for merge in fields.texts("tokenizer.ggml.merges"))]
    if len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError(f"{file.path}: {len(tokens)} tokens, {len(set(tokens))} of them different, but {len(types)} types")
    if len(tokens) > file.tensors[_EMBEDDING].shape[0]:
        raise ModelError(f"{file.path}: {len(tokens)} tokens but an embedding of {file.tensors[_EMBEDDING].shape[0]} rows")
    try:
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    except Exception as e:  # the Rust side raises bare Exceptions, e.g. for a merge of unknown tokens
        raise ModelError(f"{file.path}: the vocabulary and the merges do not fit together: {e}") from None
    match file.metadata.get("tokenizer.ggml.pre"):
        case "smollm":
            split = pre_tokenizers.Digits(individual_digits=True)
            by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "qwen2":
            tokenizer.normalizer = normalizers.NFC()  # type: ignore[attr-defined]
            words = (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )
            split = pre_tokenizers.Split(Regex(words), behavior="isolated")
            by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        case other:
            raise ModelError(f"{file.path}: pre-tokenizer {other!r} cannot be converted; known: smollm, qwen2")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, by_bytes])  # type: ignore[attr-defined]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[attr-defined]
    added = [(AddedToken(t, normalized=False, special=k == _CONTROL), k) for t, k in zip(tokens, types, strict=True)]
    tokenizer.add_tokens([token for token, kind in added if kind == _USER_DEFINED])
    tokenizer.add_special_tokens([token for token, kind in added if kind == _CONTROL])
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.model("context_length", int),
    }
    for name in ("bos", "eos", "pad", "unk"):
        index = _token_id(fields, name)
        if not 0 <= index < len(tokens):
            raise ModelError(f"{file.path}: the {name} token is {index}, the vocabulary has {len(tokens)}")
        config[f"{name}_token"] = tokens[index]
    if "tokenizer.chat_template" in file.metadata:
        config["chat_template"] = fields.get("tokenizer.chat_template", str)
    return tokenizer, config


def convert(path: Path, folder: Path, *, dtype: Dtype = "bfloat16") -> None:
    """Write config.json, model.safetensors, tokenizer.json, tokenizer_config.json and generation_config.json to `folder`.

    Weights are dequantised in float32, then rounded to `dtype`. A head that is a second, differently quantised copy of the
    embedding is tied again (the finer copy stays). Raises ModelError for what is damaged or cannot be converted faithfully,
    MissingExtra without gguf or torch.
    """
    ggml()
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtra("converting model weights", "train") from None

    with GGUFFile(path) as file:
        config = _config(file, dtype)
        shapes = _shapes(config)
        if _HEAD in file.tensors:
            shapes[_HEAD] = shapes[_EMBEDDING]
        _check_tensors(file, shapes)
        tokenizer, tokenizer_config = build_tokenizer(file)
        tied = _is_tied(file)
        if tied and _HEAD in shapes:
            del shapes[min(_HEAD, _EMBEDDING, key=file.bits_per_weight)]
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        names = {_EMBEDDING: "model.embed_tokens.weight", _NORM: "model.norm.weight", _HEAD: "lm_head.weight"}
        if tied:
            names[_HEAD] = names[_EMBEDDING]
        state: dict[str, torch.Tensor] = {}
        for name in shapes:
            weight = file.tensor(name)
            if name.startswith("blk."):
                _, layer, part, suffix = name.split(".")
                if config["model_type"] == "llama" and part in heads:
                    weight = unpermute(weight, heads[part])
                target = f"model.layers.{layer}.{_PARTS[part]}.{suffix}"
            else:
                target = names[name]
            state[target] = torch.from_numpy(weight).to(getattr(torch, dtype)).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", config | {"tie_word_embeddings": tied})
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "generation_config.json", {k: v for k, v in config.items() if k.endswith("_token_id")})


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
