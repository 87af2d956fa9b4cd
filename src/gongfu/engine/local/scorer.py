"""Log-probs of given tokens, and the gradients of a loss over them, in length-sorted micro-batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.local.adapters import Adapters
from gongfu.engine.local.base import BaseModel
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

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], adapter: str | None) -> list[Tensor]:
        """Float32 CPU tensors [targets] in the order of `rows`, at each row's temperature."""
        self._check(rows)
        self.adapters.activate(adapter)
        result: dict[int, Tensor] = {}
        for batch in micro_batches([_needed(row) for row in rows], self.score_tokens):
            scored = self._forward([rows[i] for i in batch], "score")
            result.update(zip(batch, (t.cpu() for t in scored), strict=True))
        return [result[i] for i in range(len(rows))]

    def forward_backward(self, rows: Sequence[Row], loss: LossFn, adapter: str) -> dict[str, float]:
        """Accumulate the gradients of the summed losses of the micro-batches; returns summed metrics and "loss"."""
        if not rows:
            raise EngineError("forward_backward got no rows; skip the call when nothing is to be trained")
        self._check(rows)
        self.adapters.activate(adapter)
        totals: defaultdict[str, float] = defaultdict(float)
        for batch in micro_batches([_needed(row) for row in rows], self.train_tokens):
            part = [rows[i] for i in batch]
            value, metrics = loss(part, self._forward(part, "train"))
            if not value.requires_grad or value.ndim:
                raise EngineError("the loss must be a scalar tensor that depends on the log-probs")
            value.backward()
            totals["loss"] += float(value.detach())
            for key, number in metrics.items():
                totals[key] += float(number)
            self.stats["trained_tokens"] += sum(row.targets for row in part)
        return dict(totals)

    def _forward(self, rows: Sequence[Row], purpose: str) -> list[Tensor]:
        """Log-probs [targets] of each row. Rows are padded on the right, where causal attention makes padding inert."""
        needed = [_needed(row) for row in rows]
        width = max(needed)
        ids_BT = torch.zeros(len(rows), width + 1, dtype=torch.long)
        mask_BT = torch.zeros(len(rows), width + 1, dtype=torch.bool)
        for b, (row, n) in enumerate(zip(rows, needed, strict=True)):
            ids_BT[b, : n + 1] = torch.tensor(row.tokens[: n + 1])
            mask_BT[b, : n + 1] = torch.tensor(row.mask[: n + 1])
        device = self.base.device
        ids_BT, mask_BT = ids_BT.to(device), mask_BT[:, 1:].to(device)
        temperature_N = torch.tensor([row.temperature for row in rows for _ in range(row.targets)], device=device)
        with self.base.compute():
            hidden_BTD = self.base.backbone(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
            logprobs_N = self._target_logprobs(hidden_BTD[mask_BT], ids_BT[:, 1:][mask_BT], temperature_N)
        used = sum(needed)
        self.stats[f"{purpose}_processed_tokens"] += used
        self.stats[f"{purpose}_padded_tokens"] += width * len(rows) - used
        return list(logprobs_N.split([row.targets for row in rows]))

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


def micro_batches(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices of rows of similar length, longest first, padded area at most `limit` (a longer row goes alone)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > limit:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
