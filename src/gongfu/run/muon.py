"""Muon (Jordan et al. 2024) in float32: momentum, orthogonalised, for the matrices of a small model.

`torch.optim.Muon` orthogonalises in bfloat16, which a CPU without bfloat16 instructions has to emulate (some 25 times slower);
here matrices of one shape also go through the iteration together.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# Quintic Newton-Schulz coefficients of the reference implementation: they bring singular values near 1 in five rounds.
_A, _B, _C, _ROUNDS = 3.4445, -4.775, 2.0315, 5


class Muon(torch.optim.Optimizer):
    """W <- W - lr * sqrt(max(1, rows / columns)) * orthogonalise(Nesterov momentum of the gradient)."""

    def __init__(self, parameters: Iterable[Tensor], *, lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        if any(p.ndim != 2 for group in self.param_groups for p in group["params"]):
            raise ValueError("Muon is for matrices; give vectors and embeddings to AdamW")

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameters in _by_shape(group["params"]):
                updates = orthogonalise(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
                rows, columns = parameters[0].shape
                scale = max(1.0, rows / columns) ** 0.5
                for p, update in zip(parameters, updates, strict=True):
                    p.add_(update, alpha=-group["lr"] * scale)

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        assert p.grad is not None
        average = self.state[p].setdefault("average", torch.zeros_like(p))
        average.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(average, momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix of each of [N, rows, columns], roughly: singular values within 0.7 to 1.2."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x.mT if tall else x


def _by_shape(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    shapes: dict[torch.Size, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            shapes.setdefault(p.shape, []).append(p)
    return list(shapes.values())
