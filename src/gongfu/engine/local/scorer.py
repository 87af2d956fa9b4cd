"""Log-probs of given tokens, and the gradients of a loss over them, in length-sorted micro-batches of packed rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.local.adapters import Adapters
from gongfu.engine.local.base import BaseModel
from gongfu.engine.local.batching import micro_batches
from gongfu.engine.local.packing import Pack, attention_cost, can_pack, hidden_states, lay_out, plan
from gongfu.engine.protocol import LossFn

_CHUNK_LOGITS = 1 << 24
"""Most logits held at once (64 MiB in float32)."""


class Scorer:
    """Scores rows and accumulates gradients into one adapter."""

    def __init__(
        self, base: BaseModel, adapters: Adapters, stats: Counter[str], *, train_tokens: int, score_tokens: int
    ) -> None:
        self.base = base
        self.adapters = adapters
        self.stats = stats
        self.train_tokens = train_tokens
        self.score_tokens = score_tokens
        self._attention = attention_cost(base)

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], adapter: str | None) -> list[Tensor]:
        """Float32 CPU tensors [targets] in the order of `rows`, at each row's temperature."""
        self._check(rows)
        self.adapters.activate(adapter)
        result: dict[int, Tensor] = {}
        for batch in self._batches(rows, self.score_tokens):
            scored = self._forward(rows, batch, "score")
            result.update(zip(_members(batch), (t.cpu() for t in scored), strict=True))
        return [result[i] for i in range(len(rows))]

    def forward_backward(self, rows: Sequence[Row], loss: LossFn, adapter: str) -> dict[str, float]:
        """Accumulate the gradients of the summed losses of the micro-batches; returns summed metrics and "loss"."""
        if not rows:
            raise EngineError("forward_backward got no rows; skip the call when nothing is to be trained")
        self._check(rows)
        self.adapters.activate(adapter)
        totals: defaultdict[str, float] = defaultdict(float)
        for batch in self._batches(rows, self.train_tokens):
            part = [rows[i] for i in _members(batch)]
            value, metrics = loss(part, self._forward(rows, batch, "train"))
            if not value.requires_grad or value.ndim:
                raise EngineError("the loss must be a scalar tensor that depends on the log-probs")
            value.backward()
            totals["loss"] += float(value.detach())
            for key, number in metrics.items():
                totals[key] += float(number)
            self.stats["trained_tokens"] += sum(row.targets for row in part)
        return dict(totals)

    @cached_property
    def _can_pack(self) -> bool:
        return can_pack(self.base)

    def _batches(self, rows: Sequence[Row], limit: int) -> Iterator[list[Pack]]:
        """Micro-batches of packs of rows that share a prefix, and of rows alone (which attend without a mask)."""
        sequences = [row.tokens[: _needed(row)] for row in rows]
        packs = plan(sequences, limit=limit, attention=self._attention)
        packed = [pack for pack in packs if len(pack.members) > 1]
        if packed and not self._can_pack:
            packs, packed = [Pack((i,), 0, len(ids)) for i, ids in enumerate(sequences)], []
        alone = sorted((pack for pack in packs if len(pack.members) == 1), key=lambda pack: pack.members)
        for part in (packed, alone):
            for batch in micro_batches([pack.width for pack in part], limit):
                yield [part[k] for k in batch]

    def _forward(self, rows: Sequence[Row], packs: Sequence[Pack], purpose: str) -> list[Tensor]:
        """Log-probs [targets] of each row of the packs in turn. Padding is on the right, where no token looks."""
        members = [rows[i] for i in _members(packs)]
        device = self.base.device
        layout = lay_out(packs, {i: rows[i].tokens[: _needed(rows[i])] for i in _members(packs)}, self.base)
        scored = [torch.tensor(row.mask).nonzero()[:, 0] for row in members]
        row_N = torch.cat([torch.full_like(at, b) for b, at in zip(layout.rows, scored, strict=True)]).to(device)
        place_N = torch.cat([places[at - 1] for places, at in zip(layout.places, scored, strict=True)]).to(device)
        target_N = torch.cat([torch.tensor(row.tokens)[at] for row, at in zip(members, scored, strict=True)]).to(device)
        temperature_N = torch.tensor([row.temperature for row in members for _ in range(row.targets)], device=device)
        with self.base.compute():
            hidden_BTD = hidden_states(self.base, layout)
            logprobs_N = self._target_logprobs(hidden_BTD[row_N, place_N], target_N, temperature_N)
        used = sum(pack.width for pack in packs)
        self.stats[f"{purpose}_processed_tokens"] += used
        self.stats[f"{purpose}_padded_tokens"] += layout.ids.numel() - used
        self.stats[f"{purpose}_shared_tokens"] += sum(pack.prefix * (len(pack.members) - 1) for pack in packs)
        return list(logprobs_N.split([row.targets for row in members]))

    def _target_logprobs(self, hidden_ND: Tensor, targets_N: Tensor, temperature_N: Tensor) -> Tensor:
        """Log-softmax over the vocabulary at the target positions only; chunks are recomputed in the backward pass."""
        chunk = max(1, _CHUNK_LOGITS // self.base.vocab_size)
        parts = list(zip(hidden_ND.split(chunk), targets_N.split(chunk), temperature_N.split(chunk), strict=True))
        if len(parts) == 1 or not torch.is_grad_enabled():
            return torch.cat([self._chunk(*part) for part in parts])
        return torch.cat([_tensor(checkpoint(self._chunk, *part, use_reentrant=False)) for part in parts])

    def _chunk(self, hidden_ND: Tensor, targets_N: Tensor, temperature_N: Tensor) -> Tensor:
        logits_NV = self.base.logits(hidden_ND) / temperature_N[:, None]
        return -F.cross_entropy(logits_NV, targets_N, reduction="none")

    def _check(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if len(row.tokens) > self.base.positions:
                raise EngineError(f"row {row.id}: {len(row.tokens)} tokens, but the model has {self.base.positions} positions")
            if not row.targets:
                raise EngineError(f"row {row.id}: no token is to be scored (the mask is empty)")
            if not 0 <= min(row.tokens) <= max(row.tokens) < self.base.vocab_size:
                raise EngineError(f"row {row.id}: token ids outside the vocabulary of {self.base.vocab_size}")


def _needed(row: Row) -> int:
    """Number of tokens to compute: what follows the last scored token, and that token itself, predict nothing wanted."""
    return len(row.mask) - 1 - row.mask[::-1].index(True)


def _members(packs: Sequence[Pack]) -> list[int]:
    return [i for pack in packs for i in pack.members]


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
