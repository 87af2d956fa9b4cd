"""A fast forward for the Llama family (Llama, Qwen2): few large operations over the model's own weights.

Query, key and value projections are one matrix, gate and up another; the transformers modules keep views of them, so
nothing is stored twice. LoRA stays apart: its A matrices are stacked, its B matrices block-diagonal, one pair for each
fused projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gongfu.engine.local.adapters import Adapter, Adapters
from gongfu.engine.local.base import BaseModel
from gongfu.engine.local.cache import KVCache
from gongfu.engine.local.step import Step

_FAMILY = {"LlamaForCausalLM", "Qwen2ForCausalLM"}
_PROJECTIONS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_GATHER_COST = 2.5
"""Copying the keys and values of a row costs about this many times as much as attending to it with a few tokens."""
_FEW = 16
"""New tokens a row up to which that holds: with more, attending for nothing costs more than the copy."""

Lora = tuple[Tensor, Tensor] | None


@dataclass
class _Layer:
    norm_attention: Tensor
    norm_mlp: Tensor
    weights: dict[str, Tensor]
    biases: dict[str, Tensor | None]


def supports(base: BaseModel) -> bool:
    """Whether the fast forward computes what this model computes."""
    config = base.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return (
        type(base.model).__name__ in _FAMILY
        and getattr(config, "hidden_act", "") == "silu"
        and rope in ("default", "linear", "llama3", "yarn")
        and not (getattr(config, "use_sliding_window", False) and base.positions < config.max_position_embeddings)
    )


class LlamaForward:
    """See `gongfu.engine.local.forward.Forward`."""

    def __init__(self, base: BaseModel, adapters: Adapters) -> None:
        self.base = base
        self.adapters = adapters
        config = base.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self._layers = [_fuse(layer) for layer in base.backbone.layers]
        self._embedding: Tensor = base.backbone.embed_tokens.weight
        self._norm: Tensor = base.backbone.norm.weight
        self._head: Any = base.head
        self._cos, self._sin = torch.empty(0), torch.empty(0)
        self._loras: dict[str, tuple[int, list[dict[str, Lora]]]] = {}

    @torch.inference_mode()
    def hidden(self, step: Step, cache: KVCache, adapter: str | None) -> Tensor:
        """Padding is left out of everything but the attention."""
        B, T = step.ids.shape
        heads, kv_heads, size = self.heads, self.kv_heads, self.size
        attend = self._decode if T == 1 and step.visible is None else self._prefill
        loras = self._lora(adapter)
        cos, sin = self._rotary(step)
        width = (self._embedding.shape[1],)
        h = F.embedding(step.packed(step.ids), self._embedding)
        for i, layer in enumerate(self._layers):
            lora = loras[i]
            x = F.rms_norm(h, width, layer.norm_attention, self.eps)
            qkv = _linear(x, layer, "qkv", lora).view(-1, heads + 2 * kv_heads, size)
            qk = qkv[:, : heads + kv_heads]
            qk = torch.addcmul(qk * cos, qk.roll(size // 2, -1), sin)
            k, v = qk[:, heads:], qkv[:, heads + kv_heads :]
            cache.write(i, step, k, v)
            attended = attend(i, step, cache, step.padded(qk[:, :heads]), k, v)
            h = h + _linear(step.packed(attended.reshape(B, T, heads * size)), layer, "o", lora)
            x = F.rms_norm(h, width, layer.norm_mlp, self.eps)
            gate, up = _linear(x, layer, "gate_up", lora).chunk(2, -1)
            h = h + _linear(F.silu(gate) * up, layer, "down", lora)
        return step.padded(F.rms_norm(h, width, self._norm, self.eps))

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._head.weight, self._head.bias).float()

    def _prefill(self, layer: int, step: Step, cache: KVCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention [B, T, heads, size] of several new tokens a row."""
        grouped = self.heads != self.kv_heads
        if step.fresh:
            k, v = step.padded(k), step.padded(v)
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=grouped
            ).transpose(1, 2)
        return self._attend(q.transpose(1, 2), layer, step, cache, grouped=grouped).transpose(1, 2)

    def _decode(self, layer: int, step: Step, cache: KVCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention [B, kv heads, group, size] of one new token a row: the heads that share a key are its queries."""
        q = q.reshape(len(step.indices), self.kv_heads, self.heads // self.kv_heads, self.size)
        return self._attend(q, layer, step, cache)

    def _attend(self, q: Tensor, layer: int, step: Step, cache: KVCache, *, grouped: bool = False) -> Tensor:
        """Attention of q [B, heads, queries, size] to what the step's slots hold."""
        B, (low, high) = len(q), step.span
        if step.ids.shape[1] > _FEW or not B < high - low <= _GATHER_COST * B:
            keys, values = cache.read(layer, step)
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=step.mask, enable_gqa=grouped)
        # Rows that left the batch lie between: attending to their slots too is cheaper than copying the others.
        inside = step.slots - low
        spread = q.new_zeros(high - low, *q.shape[1:])
        spread[inside] = q
        keys, values = cache.keys[layer][low:high, :, : step.width], cache.values[layer][low:high, :, : step.width]
        return F.scaled_dot_product_attention(spread, keys, values, attn_mask=step.spread_mask, enable_gqa=grouped)[inside]

    def _rotary(self, step: Step) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, 1, size] without padding, the sines' first half negated (for rotation by rolling)."""
        longest = step.width + step.ids.shape[1]
        if len(self._cos) < longest:
            positions = torch.arange(longest * 2, device=self.base.device)[None]
            like = torch.empty(0, dtype=self.base.dtype, device=self.base.device)
            cos, sin = self.base.backbone.rotary_emb(like, position_ids=positions)
            sin = torch.cat([-sin[..., : self.size // 2], sin[..., self.size // 2 :]], -1)
            self._cos, self._sin = cos[0], sin[0]
        positions = step.packed(step.positions)
        return self._cos[positions][:, None], self._sin[positions][:, None]

    def _lora(self, name: str | None) -> list[dict[str, Lora]]:
        """The adapter's published weights, fused; built once for each publication."""
        if name is None:
            return [{}] * len(self._layers)
        adapter = self.adapters[name]
        known = self._loras.get(name)
        if known is None or known[0] != adapter.publication:
            layers = [
                {key: self._fused_lora(adapter, f"layers.{i}.", key, paths) for key, paths in _PROJECTIONS.items()}
                for i in range(len(self._layers))
            ]
            known = self._loras[name] = (adapter.publication, layers)
        return known[1]

    def _fused_lora(self, adapter: Adapter, prefix: str, key: str, paths: Sequence[str]) -> Lora:
        present = [path for path in paths if f"{prefix}{path}.lora_A" in adapter.published]
        if not present:
            return None
        modules = dict(zip(paths, (self.base.backbone.get_submodule(prefix + path) for path in paths), strict=True))
        outs = {path: module.out_features for path, module in modules.items()}
        a = torch.cat([adapter.published[f"{prefix}{path}.lora_A"] for path in present])
        rank = adapter.spec.rank
        b = torch.zeros(a.shape[0], sum(outs.values()), device=a.device)
        column = 0
        for path in paths:
            if path in present:
                row = present.index(path) * rank
                b[row : row + rank, column : column + outs[path]] = (
                    adapter.published[f"{prefix}{path}.lora_B"].T * adapter.scale
                )
            column += outs[path]
        return a.T.to(self.base.dtype).contiguous(), b.to(self.base.dtype)


def _linear(x: Tensor, layer: _Layer, key: str, lora: dict[str, Lora]) -> Tensor:
    """A fused projection of x [N, in], with its LoRA (A [in, rank], B [rank, out])."""
    y = F.linear(x, layer.weights[key], layer.biases[key])
    pair = lora.get(key)
    return y if pair is None else torch.addmm(y, x @ pair[0], pair[1])


def _fuse(layer: Any) -> _Layer:
    weights: dict[str, Tensor] = {}
    biases: dict[str, Tensor | None] = {}
    for key, paths in _PROJECTIONS.items():
        modules: list[Any] = [_plain(layer.get_submodule(path)) for path in paths]
        weights[key] = _share([m.weight for m in modules])
        present = [m.bias for m in modules if m.bias is not None]
        biases[key] = _share(present) if present else None
    return _Layer(layer.input_layernorm.weight, layer.post_attention_layernorm.weight, weights, biases)


def _plain(module: Any) -> nn.Linear:
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


@torch.no_grad()
def _share(parameters: Sequence[Any]) -> Tensor:
    """The parameters stacked along their first axis, each made a view of the stack."""
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([p.detach() for p in parameters])
    for p, part in zip(parameters, whole.split([p.shape[0] for p in parameters]), strict=True):
        p.data = part
    return whole
