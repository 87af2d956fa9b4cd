"""Key-value storage of the sampler: one slot per sequence, each with its own length, padded on the right, no holes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gongfu.engine.local.step import Step

_BLOCK = 64
"""Capacities are multiples of this many tokens."""


@dataclass(eq=False)
class Slot:
    """A sequence whose keys and values are stored. `tokens` are those in storage, in order."""

    index: int
    tokens: list[int] = field(default_factory=list)
    owner: Hashable | None = None
    """Session that may come back for it; a slot without an owner lives only during one call."""
    used: int = 0


class KVCache:
    """Keys and values [slots, heads, capacity, head size] per layer, grown on demand, at most `limit` tokens in all.

    Everything must be called under the same inference mode. Slots of owners are evicted least recently used first.
    """

    def __init__(self, shapes: Sequence[tuple[int, int, int]], *, dtype: torch.dtype, device: torch.device, limit: int) -> None:
        """`shapes`: for each layer the number of key-value heads, the size of a key and the size of a value."""
        self.shapes = shapes
        self.dtype = dtype
        self.device = device
        self.limit = limit
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.rows = 0
        self.capacity = 0
        self._slots: list[Slot] = []
        self._owners: dict[Hashable, Slot] = {}
        self._clock = 0

    def fits(self, rows: int, length: int) -> bool:
        """Whether the limit allows so many slots of so many tokens."""
        return rows * _blocks(length) <= self.limit

    def find(self, owner: Hashable) -> Slot | None:
        return self._owners.get(owner)

    def clear(self) -> None:
        """Forget all sequences; the storage stays for the next ones."""
        self._slots.clear()
        self._owners.clear()

    def release(self, slot: Slot) -> None:
        """End of a call: keep the slot for its owner, or give it back."""
        self._clock += 1
        slot.used = self._clock
        if slot.owner is None:
            self._slots.remove(slot)

    def reserve(self, held: Sequence[Slot], owners: Sequence[Hashable | None], length: int) -> list[Slot]:
        """New empty slots for `owners`, with room for `length` tokens in them and in `held`, which are not evicted."""
        needed = len(held) + len(owners)
        capacity = max(self.capacity, _blocks(length))
        if needed * capacity > self.limit:
            capacity = _blocks(length)  # shorter slots than before: longer ones that nobody holds must go
        holding = {id(slot) for slot in held}
        idle = sorted((slot for slot in self._slots if id(slot) not in holding), key=lambda slot: slot.used)
        kept = len(idle)
        for slot in idle:
            if len(slot.tokens) > capacity or (needed + kept) * capacity > self.limit:
                self._slots.remove(slot)
                self._owners.pop(slot.owner, None)
                kept -= 1
        rows = needed + kept
        if capacity > self.capacity and 2 * self.capacity * rows <= self.limit:
            capacity = max(capacity, 2 * self.capacity)  # sequences grow turn by turn: copy them less often
        if capacity != self.capacity or rows > self.rows:
            self._rebuild(rows, capacity)
        taken = {slot.index for slot in self._slots}
        free = (index for index in range(self.rows) if index not in taken)
        new = [Slot(index, owner=owner) for owner, index in zip(owners, free, strict=False)]
        self._slots += new
        self._owners.update((slot.owner, slot) for slot in new if slot.owner is not None)
        return new

    def fork(self, source: Slot, target: Slot, tokens: Sequence[int]) -> None:
        """Make `target` hold `tokens`, a prefix of `source`; what it holds of them already is kept."""
        start, end = common_prefix(target.tokens, tokens), len(tokens)
        for stored in (*self.keys, *self.values):
            stored[target.index, :, start:end] = stored[source.index, :, start:end]
        target.tokens = list(tokens)

    def gather(self, source: Slot, places: Sequence[int], target: Slot, tokens: Sequence[int]) -> None:
        """Append `tokens`, stored at `places` of `source`, to `target`."""
        start = len(target.tokens)
        index = torch.tensor(places, device=self.device)
        for stored in (*self.keys, *self.values):
            stored[target.index, :, start : start + len(places)] = stored[source.index].index_select(1, index)
        target.tokens += tokens

    def write(self, layer: int, step: Step, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values [tokens, heads, size] of a step's tokens, without those of padding."""
        rows, places = step.targets
        self.keys[layer][rows, :, places] = keys
        self.values[layer][rows, :, places] = values

    def read(self, layer: int, step: Step) -> tuple[Tensor, Tensor]:
        """Keys and values [B, heads, step.width, size] of the step's rows: a view when their slots are adjacent."""
        keys, values, width = self.keys[layer], self.values[layer], step.width
        low, high = step.span
        if high - low == len(step.indices):
            return keys[low:high, :, :width], values[low:high, :, :width]
        return keys[step.slots, :, :width], values[step.slots, :, :width]

    def _rebuild(self, rows: int, capacity: int) -> None:
        """Bigger storage with the living slots moved together."""
        old = (self.keys, self.values)
        living = sorted(self._slots, key=lambda slot: slot.index)
        source = torch.tensor([slot.index for slot in living], dtype=torch.long, device=self.device)
        length = max((len(slot.tokens) for slot in living), default=0)

        def moved(stored: list[Tensor], sizes: list[tuple[int, int]]) -> list[Tensor]:
            # Zeros, not empty: masked places are multiplied by zero, which would keep a NaN alive.
            new = [torch.zeros(rows, heads, capacity, size, dtype=self.dtype, device=self.device) for heads, size in sizes]
            if length:
                for before, after in zip(stored, new, strict=True):
                    after[: len(living), :, :length] = before[source, :, :length]
            return new

        self.keys = moved(old[0], [(heads, size) for heads, size, _ in self.shapes])
        self.values = moved(old[1], [(heads, size) for heads, _, size in self.shapes])
        self.rows, self.capacity = rows, capacity
        for index, slot in enumerate(living):
            slot.index = index


def _blocks(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading items that two sequences share."""
    n = min(len(a), len(b))
    a, b = list(a[:n]), list(b[:n])
    if a == b:
        return n
    low, high = 0, n  # a[:low] equals b[:low], a[:high] does not equal b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low
