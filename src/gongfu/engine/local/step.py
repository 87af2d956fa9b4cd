"""One forward pass of the sampler, described once for every kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(eq=False)
class Step:
    """New tokens [B, T] for B slots, padded on the right, to be stored after what the slots hold.

    `starts` and `counts` say for each row how many tokens its slot holds and how many are new. `positions` [B, T] feed
    the position encoding. `mask` is None for plain causal attention, or [B, 1, T, width] in the model's dtype: 0 where
    a new token may look at a stored place, -inf elsewhere.
    """

    ids: Tensor
    indices: Sequence[int]
    """Slot index of each row."""
    starts: Sequence[int]
    counts: Sequence[int]
    positions: Tensor
    dtype: torch.dtype
    visible: Tensor | None = None
    """For packed branches: bool [B, T, width], replaces the causal rule."""

    @cached_property
    def width(self) -> int:
        """Stored places that the step's rows use at most."""
        return max(s + c for s, c in zip(self.starts, self.counts, strict=True))

    @cached_property
    def fresh(self) -> bool:
        """Nothing is stored before these tokens and they attend causally: no need to read the cache."""
        return self.visible is None and not any(self.starts)

    @cached_property
    def slots(self) -> Tensor:
        return torch.tensor(self.indices, device=self.ids.device)

    @cached_property
    def span(self) -> tuple[int, int]:
        """Smallest range of slot indices that holds all rows."""
        return min(self.indices), max(self.indices) + 1

    @cached_property
    def places(self) -> Tensor:
        """Place in storage [B, T] of each new token."""
        starts = torch.tensor(self.starts, device=self.ids.device)
        return starts[:, None] + torch.arange(self.ids.shape[1], device=self.ids.device)

    @cached_property
    def real(self) -> Tensor | None:
        """Flat indices of the tokens that are not padding; None when all are real."""
        T = self.ids.shape[1]
        if all(count == T for count in self.counts):
            return None
        counts = torch.tensor(self.counts, device=self.ids.device)
        return (torch.arange(T, device=self.ids.device) < counts[:, None]).flatten().nonzero()[:, 0]

    def packed(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [tokens, ...] without padding."""
        x = x.flatten(0, 1)
        return x if self.real is None else x[self.real]

    def padded(self, x: Tensor) -> Tensor:
        """[tokens, ...] -> [B, T, ...] with zeros for padding."""
        if self.real is None:
            return x.view(*self.ids.shape, *x.shape[1:])
        whole = x.new_zeros(self.ids.numel(), *x.shape[1:])
        whole[self.real] = x
        return whole.view(*self.ids.shape, *x.shape[1:])

    @cached_property
    def targets(self) -> tuple[Tensor, Tensor]:
        """Slot index and place of each real token, flat."""
        rows, places = self.slots[:, None].expand_as(self.places).flatten(), self.places.flatten()
        return (rows, places) if self.real is None else (rows[self.real], places[self.real])

    @cached_property
    def mask(self) -> Tensor:
        visible = self.visible
        if visible is None:
            visible = torch.arange(self.width, device=self.ids.device) <= self.places[:, :, None]
        return torch.zeros(visible.shape, dtype=self.dtype, device=self.ids.device).masked_fill_(~visible, -torch.inf)[:, None]

    @cached_property
    def spread_mask(self) -> Tensor:
        """The mask of all slots in the span; slots that are not of this step see everything."""
        low, high = self.span
        mask = self.mask.new_zeros(high - low, *self.mask.shape[1:])
        mask[self.slots - low] = self.mask
        return mask

    @cached_property
    def ends(self) -> Tensor:
        """Index of the last real token of each row [B]."""
        return torch.tensor(self.counts, device=self.ids.device) - 1


def extend(rows: Sequence[tuple[int, int, Sequence[int]]], *, dtype: torch.dtype, device: torch.device) -> Step:
    """A step that appends tokens causally: (slot index, tokens stored, new tokens) for each row."""
    indices = [index for index, _, _ in rows]
    starts = [start for _, start, _ in rows]
    counts = [len(new) for _, _, new in rows]
    T = max(counts)
    ids = torch.tensor([[*new, *(0,) * (T - len(new))] for _, _, new in rows], device=device)
    positions = torch.tensor(starts, device=device)[:, None] + torch.arange(T, device=device)
    return Step(ids, indices, starts, counts, positions, dtype)
