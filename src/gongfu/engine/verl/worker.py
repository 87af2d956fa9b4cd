"""What runs in every training process: verl's Tinker-style worker; rows in, log-probs out, and its adapter's whole state."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from verl.utils import tensordict_utils  # pyright: ignore[reportMissingImports]
from verl.utils.dataset.dataset_utils import DatasetPadMode  # pyright: ignore[reportMissingImports]
from verl.utils.distributed import initialize_global_process_group_ray  # pyright: ignore[reportMissingImports]
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_  # pyright: ignore[reportMissingImports]
from verl.workers.engine_workers_tinker import TinkerTrainingWorker  # pyright: ignore[reportMissingImports]

PlainRow = tuple[Sequence[int], Sequence[bool], float]
"""Tokens, mask, temperature."""


def linear_loss(model_output: Any = None, data: Any = None, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
    """Σ c_t log p_t: its gradient with respect to the log-probs is what the driver computed. verl's signature."""
    coefficients = torch.roll(data["coefficients"].values(), -1, 0)  # verl lists log p(token t + 1) at place t
    return (model_output["log_probs"].values() * coefficients).sum(), {}


class Worker(TinkerTrainingWorker):
    """One rank. All ranks get calls of the same kind with equally many rows, since they compute together."""

    def __init__(self, config: Any, timeout: int) -> None:
        backend = None
        if os.environ.get("VERL_PLATFORM") == "cpu":
            from gongfu.engine.verl.cpu_platform import register_engines

            register_engines()
            backend = "cpu:gloo"  # of itself verl would name the CPU twice
        initialize_global_process_group_ray(timeout, backend=backend)
        super().__init__(config)

    def begin(self) -> int:
        """Load the model; returns the process id."""
        self.reset()
        self.set_loss_fn(linear_loss)
        self.optimizer_zero_grad()
        return os.getpid()

    def score(self, rows: Sequence[PlainRow], longest: int, base: bool) -> list[Tensor]:
        """Log-probs of each row's scored tokens. `longest`: tokens of a micro-batch; `base`: without the adapter."""
        batch = self._batch(rows, None, longest)
        if base:
            tensordict_utils.assign_non_tensor(batch, no_lora_adapter=True)
        found = self.infer_batch(batch)["log_probs"].unbind()
        return [values.float()[: len(row[0]) - 1][torch.tensor(row[1][1:])] for row, values in zip(rows, found, strict=True)]

    def backward(self, rows: Sequence[PlainRow], coefficients: Sequence[Tensor], longest: int) -> None:
        """Add the gradient of Σ c_t log p_t, over the rows of all ranks, to what is accumulated."""
        self.forward_backward(self._batch(rows, coefficients, longest))

    def step(self, settings: dict[str, Any], clip: float) -> float:
        """One optimiser step; the gradient norm before clipping. Where it is not finite nothing but the gradients changes."""
        with self.engine.train_mode(zero_grad_on_exit=True):
            optimizer = self.engine.optimizer
            norm = fsdp2_clip_grad_norm_(self.engine.module.parameters(), max_norm=clip or math.inf)
            value = float(_whole(norm))
            if math.isfinite(value):
                for group in optimizer.param_groups:
                    group.update(settings)
                optimizer.step()
        return value

    def adapter(self, optimizer: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights by verl's names, and the optimiser's moments as "<name>|<moment>"; gathered, so of the first rank alone."""
        weights, moments = {}, {}
        state = self.engine.optimizer.state
        for name, p in self._trained():
            weights[name] = _whole(p.detach()).cpu()
            for moment, value in state[p].items() if optimizer and p in state else ():
                moments[f"{name}|{moment}"] = _whole(value).detach().cpu()
        return (weights, moments) if self.rank == 0 else ({}, {})

    @torch.no_grad()
    def set_adapter(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """The inverse, with the whole tensors on every rank. Gradients are dropped."""
        self.optimizer_zero_grad()
        state = self.engine.optimizer.state
        trained = dict(self._trained())
        for name, p in trained.items():
            p.copy_(_like(p, weights[name]))
            state.pop(p, None)
        for key, value in moments.items():
            name, _, moment = key.partition("|")
            p = trained[name]
            state[p][moment] = value.clone() if moment == "step" else _like(p, value)

    def _trained(self) -> list[tuple[str, Any]]:
        return [(name, p) for name, p in self.engine.module.named_parameters() if p.requires_grad]

    def _batch(self, rows: Sequence[PlainRow], coefficients: Sequence[Tensor] | None, longest: int) -> Any:
        ids = [torch.tensor(tokens) for tokens, _, _ in rows]
        weights = [torch.zeros(len(i)) for i in ids]
        for at, (_, mask, _), values in zip(weights, rows, coefficients or [], strict=False):
            at[torch.tensor(mask)] = values * torch.distributed.get_world_size()  # FSDP averages over the ranks
        tensors = {
            "input_ids": _nested(ids),
            "position_ids": _nested([torch.arange(len(i)) for i in ids]),
            "attention_mask": _nested([torch.ones_like(i) for i in ids]),
            "loss_mask": _nested([torch.tensor(mask).float() for _, mask, _ in rows]),
            "coefficients": _nested(weights),
            "temperature": torch.tensor([temperature for _, _, temperature in rows]),
        }
        settings = {
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": longest,
            "use_remove_padding": self.engine_config.use_remove_padding,
            "use_fused_kernels": False,
            "pad_mode": DatasetPadMode.NO_PADDING,
            "calculate_entropy": False,
            "compute_loss": False,
            "global_token_num": [len(i) for i in ids],
            "max_response_len": max(sum(mask) for _, mask, _ in rows),
        }
        return tensordict_utils.get_tensordict(tensors, settings)


def _nested(tensors: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged)


def _whole(value: Any) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)


def _like(p: Tensor, whole: Tensor) -> Tensor:
    """`whole` laid out over the ranks as `p` is."""
    whole = whole.to(p.device, p.dtype, copy=True)
    return distribute_tensor(whole, p.device_mesh, p.placements) if isinstance(p, DTensor) else whole
