"""Several LoRA adapters on one frozen base (PEFT), each with its own AdamW and its own published weights."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gongfu.core.errors import EngineError
from gongfu.core.seeds import seed_for
from gongfu.engine.local.base import BaseModel
from gongfu.engine.protocol import LoraSpec, OptimParams

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class AdapterState:
    """All that an adapter is, as full float32 tensors on the CPU: what a checkpoint holds, and what engines hand each other."""

    weights: dict[str, Tensor]
    """By the names of `Adapter.parameters`."""
    moments: dict[str, Tensor]
    """The optimiser's tensors as "<parameter>|<moment>"; empty before the first step."""
    steps: int


@dataclass
class Adapter:
    """One LoRA adapter. `parameters` maps "<module>.lora_A" and "<module>.lora_B" to the float32 weights."""

    name: str
    spec: LoraSpec
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.AdamW
    steps: int = 0
    published: dict[str, Tensor] = field(default_factory=dict)
    """What the sampler serves: a copy of the weights as of the last `publish`."""
    publication: int = 0
    """Counts the calls of `publish`."""
    changed: bool = False
    """Trained since the last `publish`."""

    @property
    def scale(self) -> float:
        return self.spec.alpha / self.spec.rank

    def publish(self) -> None:
        self.published = {key: p.detach().clone() for key, p in self.parameters.items()}
        self.publication += 1
        self.changed = False

    def state(self) -> AdapterState:
        known = self.optimizer.state
        weights = {key: p.detach().cpu().contiguous() for key, p in self.parameters.items()}
        moments = {
            f"{key}|{moment}": value.detach().cpu().contiguous()
            for key, p in self.parameters.items()
            if p in known
            for moment, value in known[p].items()
        }
        return AdapterState(weights, moments, self.steps)

    @torch.no_grad()
    def restore(self, state: AdapterState) -> None:
        """Take over a state, not yet published. Its weights must be those of this adapter's modules."""
        self.optimizer.zero_grad()
        self.optimizer.state.clear()
        for key, p in self.parameters.items():
            p.copy_(state.weights[key])
        for key, value in state.moments.items():
            name, moment = key.split("|")
            p = self.parameters[name]
            self.optimizer.state[p][moment] = value.clone() if moment == "step" else value.to(p.device, copy=True)
        self.steps = state.steps
        self.changed = True


class Adapters:
    """Creates, switches and steps the adapters of one base model."""

    def __init__(self, base: BaseModel) -> None:
        self.base = base
        self._adapters: dict[str, Adapter] = {}
        self._layers: list[Any] = []
        self._active: str | None = None
        linear = _linear_types()
        self._linears = {name for name, m in base.backbone.named_modules() if isinstance(m, linear)}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def __getitem__(self, name: str) -> Adapter:
        """Raises EngineError, naming the known adapters."""
        try:
            return self._adapters[name]
        except KeyError:
            known = ", ".join(sorted(self._adapters)) or "none yet"
            raise EngineError(f"no adapter {name!r} (known: {known}); call create_adapter first") from None

    def create(self, name: str, spec: LoraSpec) -> Adapter:
        """Raises EngineError for a used or unusable name, a rank below 1, or target modules that the model lacks."""
        if not _NAME.fullmatch(name):
            raise EngineError(f"adapter name {name!r}: use up to 64 letters, digits, '_' or '-'")
        if name in self._adapters:
            raise EngineError(f"adapter {name!r} exists already")
        if spec.rank < 1:
            raise EngineError(f"adapter {name!r}: rank must be at least 1, got {spec.rank}")
        kinds = sorted({path.rsplit(".", 1)[-1] for path in self._linears})
        unknown = [t for t in spec.targets if t not in kinds]
        if unknown or not spec.targets:
            raise EngineError(f"adapter {name!r}: the model has no linear modules {unknown}; it has {kinds}")
        self._inject(name, spec)
        parameters: dict[str, nn.Parameter] = {}
        for path, layer in self._named_layers():
            if name not in layer.lora_A:
                continue
            for side in ("lora_A", "lora_B"):
                weight = getattr(layer, side)[name].weight
                weight.data = weight.data.float()
                parameters[f"{path}.{side}"] = weight
            _draw_a(parameters[f"{path}.lora_A"], seed_for(spec.seed, purpose=f"lora {path}"))
            # Autocast casts what must be cast; PEFT's own cast of the inputs to float32 would only cost time.
            layer.cast_input_dtype_enabled = False
        adapter = Adapter(name, spec, parameters, torch.optim.AdamW(parameters.values(), lr=0.0))
        adapter.publish()
        self._adapters[name] = adapter
        self._layers = [layer for _, layer in self._named_layers()]
        self._set(None)
        return adapter

    def activate(self, name: str | None) -> None:
        """Make `name` the only adapter that computes and receives gradients; None computes with the base alone."""
        if name is not None:
            self[name]
        if name != self._active:
            self._set(name)

    @contextmanager
    def serving(self, name: str | None) -> Iterator[None]:
        """Compute with the published weights of `name` instead of those in training."""
        self.activate(name)
        adapter = None if name is None else self[name]
        if adapter is None or not adapter.changed:
            yield
            return
        trained = {key: p.data for key, p in adapter.parameters.items()}
        try:
            for key, p in adapter.parameters.items():
                p.data = adapter.published[key]
            yield
        finally:
            for key, p in adapter.parameters.items():
                p.data = trained[key]

    def step(self, name: str, params: OptimParams) -> dict[str, float]:
        """One AdamW step from the accumulated gradients, which are then dropped.

        Returns the gradient norm before clipping. Raises EngineError, leaving the weights untouched, when there is no
        gradient or when it is not finite.
        """
        adapter = self[name]
        weights = [p for p in adapter.parameters.values() if p.grad is not None]
        if not weights:
            raise EngineError(f"adapter {name!r} has no gradient; call forward_backward before optim_step")
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None]))
        if not norm < float("inf"):
            adapter.optimizer.zero_grad()
            raise EngineError(
                f"adapter {name!r}: the gradient norm is {norm} at step {adapter.steps}; gradients dropped, weights kept"
            )
        if params.clip > 0:
            torch.nn.utils.clip_grads_with_norm_(weights, params.clip, torch.tensor(norm))
        for group in adapter.optimizer.param_groups:
            group.update(lr=params.lr, betas=params.betas, eps=params.eps, weight_decay=params.weight_decay)
        adapter.optimizer.step()
        adapter.optimizer.zero_grad()
        adapter.steps += 1
        adapter.changed = True
        return {"grad_norm": norm}

    def _inject(self, name: str, spec: LoraSpec) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(r=spec.rank, lora_alpha=spec.alpha, lora_dropout=0.0, target_modules=list(spec.targets))  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several adapters are the point
            warnings.filterwarnings("ignore", message="fan_in_fan_out")  # PEFT sets it right by itself
            inject_adapter_in_model(config, self.base.backbone, adapter_name=name)
        self.base.model.eval()

    def _named_layers(self) -> list[tuple[str, Any]]:
        from peft.tuners.lora import LoraLayer

        return [(path, m) for path, m in self.base.backbone.named_modules() if isinstance(m, LoraLayer)]

    def _set(self, name: str | None) -> None:
        for layer in self._layers:
            layer.enable_adapters(name is not None)
            if name is not None:
                layer.set_adapter(name)
        self._active = name


def _linear_types() -> tuple[type, ...]:
    from transformers.pytorch_utils import Conv1D

    return (nn.Linear, Conv1D)


@torch.no_grad()
def _draw_a(weight: Tensor, seed: int) -> None:
    """The usual uniform initialisation of A (bound 1/sqrt(fan_in)), drawn on CPU so that it is the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    bound = weight.shape[1] ** -0.5
    weight.copy_((torch.rand(weight.shape, generator=generator) * 2 - 1) * bound)
