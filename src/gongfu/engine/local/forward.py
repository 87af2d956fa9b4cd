"""From a sampler step to final hidden states: the interface, and the general way through the transformers model."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor

from gongfu.core.errors import ModelError
from gongfu.engine.local.adapters import Adapters
from gongfu.engine.local.base import BaseModel
from gongfu.engine.local.cache import KVCache
from gongfu.engine.local.step import Step


class Forward(Protocol):
    """Computes with the published weights of an adapter (None = the base) and stores keys and values in the cache."""

    def hidden(self, step: Step, cache: KVCache, adapter: str | None) -> Tensor:
        """Final hidden states [B, T, D]; those of padding are meaningless."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V]."""
        ...


class GeneralForward:
    """Runs the transformers model itself, so it follows any decoder-only architecture with a key-value cache."""

    def __init__(self, base: BaseModel, adapters: Adapters) -> None:
        self.base = base
        self.adapters = adapters
        parameters = inspect.signature(base.backbone.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def hidden(self, step: Step, cache: KVCache, adapter: str | None) -> Tensor:
        with self.adapters.serving(adapter), self.base.compute():
            output = self.base.backbone(
                input_ids=step.ids,
                attention_mask=step.mask,
                position_ids=step.positions.clamp(max=self.base.positions - 1),
                use_cache=True,
                **{self._cache_argument: _slot_cache(step, cache)},
            )
        return output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        with self.base.compute():
            return self.base.logits(hidden)


def _slot_cache(step: Step, cache: KVCache) -> Any:
    """The slots of one step, in the shape of a transformers cache."""
    from transformers import Cache

    class SlotCache(Cache):
        def __init__(self) -> None:
            super().__init__(layers=[])

        def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            keys, values = (step.packed(states.transpose(1, 2)) for states in (key_states, value_states))
            cache.write(layer_idx, step, keys, values)
            return cache.read(layer_idx, step)

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return step.width - step.ids.shape[1]

    return SlotCache()


@torch.no_grad()
def cache_shapes(base: BaseModel) -> list[tuple[int, int, int]]:
    """(key-value heads, key size, value size) of each layer, as the model itself stores them."""
    from transformers import DynamicCache

    with base.compute():
        out = base.model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=base.device), use_cache=True)
    stored = getattr(out, "cache", None) or getattr(out, "past_key_values", None)
    if not isinstance(stored, DynamicCache):
        raise ModelError(f"{type(base.model).__name__} keeps no plain key-value cache; use another model")
    shapes = [(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in stored.layers]  # type: ignore[union-attr]
    if len(shapes) != base.config.num_hidden_layers:
        raise ModelError(f"{type(base.model).__name__} shares caches between layers; use another model")
    return shapes
