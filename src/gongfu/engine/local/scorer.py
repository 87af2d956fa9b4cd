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
from gongfu.engine.local.trees import Branches, combine
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
        check_rows(rows, self.base.positions, self.base.vocab_size)
        self.adapters.activate(adapter)
        result: dict[int, Tensor] = {}
        branches = [Branches(row, _needed(row)) for row in rows]
        for batch in self._batches(rows, branches, self.score_tokens):
            scored = self._forward(rows, branches, batch, "score")
            result.update(zip(_members(batch), (t.cpu() for t in scored), strict=True))
        return [result[i] for i in range(len(rows))]

    def forward_backward(self, rows: Sequence[Row], loss: LossFn, adapter: str) -> dict[str, float]:
        """Accumulate the gradients of the summed losses of the micro-batches; returns summed metrics and "loss"."""
        if not rows:
            raise EngineError("forward_backward got no rows; skip the call when nothing is to be trained")
        check_rows(rows, self.base.positions, self.base.vocab_size)
        self.adapters.activate(adapter)
        totals: defaultdict[str, float] = defaultdict(float)
        branches = [Branches(row, _needed(row)) for row in rows]
        for batch in self._batches(rows, branches, self.train_tokens):
            part = [rows[i] for i in _members(batch)]
            value, metrics = loss(part, self._forward(rows, branches, batch, "train"))
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

    def _batches(self, rows: Sequence[Row], branches: Sequence[Branches], limit: int) -> Iterator[list[Pack]]:
        """Micro-batches of packs that need a mask (a shared prefix, branches), and of rows alone (which attend without one)."""
        sequences = [row.tokens[: _needed(row)] for row in rows]
        extra = [len(branch.nodes) for branch in branches]
        packs = plan(sequences, limit=limit, attention=self._attention, extra=extra)
        masked = [pack for pack in packs if len(pack.members) > 1 or any(extra[i] for i in pack.members)]
        if masked and not self._can_pack:
            if any(extra):
                raise EngineError(
                    f"{type(self.base.model).__name__} does not take attention masks as they are given, so it cannot be "
                    'trained on choices; use rollout.mode = "generate"'
                )
            packs, masked = [Pack((i,), 0, len(ids)) for i, ids in enumerate(sequences)], []
        alone = [pack for pack in packs if len(pack.members) == 1 and not any(extra[i] for i in pack.members)]
        for part in (masked, sorted(alone, key=lambda pack: pack.members)):
            for batch in micro_batches([pack.width for pack in part], limit):
                yield [part[k] for k in batch]

    def _forward(self, rows: Sequence[Row], branches: Sequence[Branches], packs: Sequence[Pack], purpose: str) -> list[Tensor]:
        """Log-probs [targets] of each row of the packs in turn. Padding is on the right, where no token looks."""
        members = _members(packs)
        sequences = {i: rows[i].tokens[: _needed(rows[i])] for i in members}
        layout = lay_out(packs, sequences, self.base, {i: branches[i] for i in members})
        scored = [branches[i] for i in members]
        device = self.base.device
        row_N = torch.tensor([b for b, part in zip(layout.rows, scored, strict=True) for _ in part.tokens], device=device)
        place_N = torch.cat([at[part.places] for at, part in zip(layout.places, scored, strict=True)]).to(device)
        target_N = torch.tensor([token for part in scored for token in part.tokens], device=device)
        temperature_N = torch.tensor([heat for i, part in zip(members, scored, strict=True) for heat in _heats(rows[i], part)])
        with self.base.compute():
            hidden_BTD = hidden_states(self.base, layout)
            logprobs_N = self._target_logprobs(hidden_BTD[row_N, place_N], target_N, temperature_N.to(device))
        used = sum(pack.width for pack in packs)
        self.stats[f"{purpose}_processed_tokens"] += used
        self.stats[f"{purpose}_padded_tokens"] += layout.ids.numel() - used
        self.stats[f"{purpose}_shared_tokens"] += sum(pack.prefix * (len(pack.members) - 1) for pack in packs)
        values = logprobs_N.split([len(part.tokens) for part in scored])
        return [combine(rows[i], part, v) for i, part, v in zip(members, scored, values, strict=True)]

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


def check_rows(rows: Sequence[Row], positions: int, vocab_size: int) -> None:
    """Raises EngineError for a row that the model cannot score."""
    for row in rows:
        if len(row.tokens) > positions:
            raise EngineError(f"row {row.id}: {len(row.tokens)} tokens, but the model has {positions} positions")
        if not row.targets:
            raise EngineError(f"row {row.id}: no token is to be scored (the mask is empty)")
        if not 0 <= min(row.tokens) <= max(row.tokens) < vocab_size:
            raise EngineError(f"row {row.id}: token ids outside the vocabulary of {vocab_size}")


def _needed(row: Row) -> int:
    """Number of tokens to compute: what follows the last scored token, and that token itself, predict nothing wanted."""
    return len(row.mask) - 1 - row.mask[::-1].index(True)


def _heats(row: Row, branches: Branches) -> list[float]:
    """Temperature of every scored token; that of a choice divides the options' totals instead."""
    options = len(branches.owners)
    return [row.temperature] * (len(branches.tokens) - options) + [1.0] * options


def _members(packs: Sequence[Pack]) -> list[int]:
    return [i for pack in packs for i in pack.members]


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
