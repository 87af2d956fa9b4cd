"""Rows that share a prefix, computed as one sequence: the prefix once, then every row's rest, which sees it and itself.

The rows of a group begin with the same prompt, so where prompts are long and responses short most tokens of a batch are
the same tokens. Sharing them changes no number beyond rounding: a token's keys and values depend on what precedes it only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from gongfu.engine.local.base import BaseModel
from gongfu.engine.local.cache import common_prefix
from gongfu.engine.local.trees import Branches, ancestry

_MASKED = 1.5
"""Time of masked attention over that of its arithmetic; causal attention without a mask skips half the places instead."""
_MARGIN = 1.1
"""A pack must be cheaper by this factor, since the costs are estimates."""
_OVERSIZE = 1.25
"""A row longer than the limit is still joined by others when they add at most a quarter to it."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows computed as one sequence of `width` tokens; a row alone shares nothing and has prefix 0."""

    members: tuple[int, ...]
    prefix: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of one forward pass over B packs, padded on the right to T tokens.

    `positions` [B, T] and the additive `mask` [B, 1, T, T] are None when every pack is a row alone: plain causal attention
    is then what is wanted. `rows[k]` and `places[k]` say where the tokens of the k-th member (of all packs in turn) lie.
    """

    ids: Tensor
    positions: Tensor | None
    mask: Tensor | None
    rows: list[int]
    places: list[Tensor]


def plan(sequences: Sequence[Sequence[int]], *, limit: int, attention: float, extra: Sequence[int] | None = None) -> list[Pack]:
    """A division of `sequences` into packs; rows are alone where packing does not clearly pay.

    A pack has at most `limit` tokens (a longer row may be alone, or joined by a few). The cost is the number of tokens times
    (1 + `attention` x places attended to); see `attention_cost`. Rows that are neighbours in sorted order share the longest
    prefixes, so packs are runs of that order, and the cheapest division into runs is found by dynamic programming.
    `extra` are the nodes that each row has beside its tokens (see `trees.Branches`).
    """
    extra = extra or [0] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    shared = [common_prefix(sequences[a], sequences[b]) for a, b in pairwise(order)]
    best, last = [0.0], [Pack((), 0, 0)]  # of the first k sequences in order: the least cost, the pack that ends there
    for end in range(1, len(order) + 1):
        length = len(sequences[order[end - 1]])
        longest = total = length + extra[order[end - 1]]
        places = length / 2 if total == length else _MASKED * total
        best.append(best[end - 1] + total * (1 + attention * places))
        last.append(Pack((order[end - 1],), 0, total))
        prefix = length
        for start in range(end - 2, -1, -1):
            length = len(sequences[order[start]]) + extra[order[start]]
            prefix, longest, total = min(prefix, shared[start]), max(longest, length), total + length
            width = total - (end - start - 1) * prefix
            if not prefix or width > max(limit, _OVERSIZE * longest):
                break
            cost = best[start] + _MARGIN * width * (1 + attention * _MASKED * width)
            if cost < best[end]:
                best[end], last[end] = cost, Pack(tuple(order[start:end]), prefix, width)
    packs, end = [], len(order)
    while end:
        packs.append(last[end])
        end -= len(last[end].members)
    return packs[::-1]


def attention_cost(base: BaseModel) -> float:
    """Arithmetic of attending to one place, relative to that of all the linear layers for one token."""
    config = base.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = sum(p.numel() for p in base.backbone.parameters() if p.ndim == 2)
    weights -= sum(m.weight.numel() for m in base.backbone.modules() if isinstance(m, nn.Embedding))
    return 2 * size * config.num_attention_heads * config.num_hidden_layers / weights


def lay_out(
    packs: Sequence[Pack],
    sequences: Mapping[int, Sequence[int]],
    base: BaseModel,
    branches: Mapping[int, Branches] | None = None,
) -> Layout:
    """`sequences[i]` are the tokens of row i as far as they must be computed, `branches[i]` what stands beside them.

    Of `base` only dtype and device are used.
    """
    branches = branches or {}
    width = max(pack.width for pack in packs)
    ids_BT = torch.zeros(len(packs), width, dtype=torch.long)
    positions_BT = torch.zeros_like(ids_BT)
    # Which rest a token belongs to: 0 for the prefix, which all see. Padding sees it too, and nobody sees padding.
    parts_BT = torch.zeros_like(ids_BT)
    rows: list[int] = []
    places: list[Tensor] = []
    beside: list[tuple[int, int, Tensor]] = []  # pack, first place, what each of a row's nodes sees [nodes, T]
    for b, pack in enumerate(packs):
        end = pack.prefix
        ids_BT[b, :end] = torch.tensor(sequences[pack.members[0]][:end], dtype=torch.long)
        positions_BT[b, :end] = torch.arange(end)
        for part, i in enumerate(pack.members, 1):
            rest = torch.tensor(sequences[i][pack.prefix :], dtype=torch.long)
            start, end = end, end + len(rest)
            ids_BT[b, start:end] = rest
            positions_BT[b, start:end] = torch.arange(pack.prefix, pack.prefix + len(rest))
            parts_BT[b, start:end] = part
            own = torch.cat([torch.arange(pack.prefix), torch.arange(start, end)])
            if i in branches and branches[i].nodes:
                nodes = branches[i]
                start, end = end, end + len(nodes.nodes)
                ids_BT[b, start:end] = torch.tensor(nodes.nodes)
                positions_BT[b, start:end] = torch.tensor(nodes.positions)
                parts_BT[b, start:end] = -1
                seen = torch.zeros(len(nodes.nodes), width, dtype=torch.bool)
                seen[:, own] = torch.arange(len(own)) < torch.tensor(nodes.sees)[:, None]
                seen[:, start:end] = ancestry(nodes.parents)
                beside.append((b, start, seen))
                own = torch.cat([own, torch.arange(start, end)])
            rows.append(b)
            places.append(own)
    ids_BT = ids_BT.to(base.device)
    if not beside and all(len(pack.members) == 1 for pack in packs):
        return Layout(ids_BT, None, None, rows, places)
    parts_BT = parts_BT.to(base.device)
    place_T = torch.arange(width, device=base.device)
    own_BTT = parts_BT[:, :, None] == parts_BT[:, None, :]
    visible_BTT = (place_T[:, None] >= place_T) & (own_BTT | (parts_BT[:, None, :] == 0))
    for b, start, seen in beside:
        visible_BTT[b, start : start + len(seen)] = seen.to(base.device)
    mask_BTT = torch.zeros(visible_BTT.shape, dtype=base.dtype, device=base.device).masked_fill_(~visible_BTT, -torch.inf)
    return Layout(ids_BT, positions_BT.to(base.device), mask_BTT[:, None], rows, places)


def hidden_states(base: BaseModel, layout: Layout) -> Tensor:
    """Final hidden states [B, T, D]; those of padding are meaningless."""
    if layout.mask is None:
        return base.backbone(input_ids=layout.ids, use_cache=False).last_hidden_state
    return base.backbone(
        input_ids=layout.ids, attention_mask=layout.mask, position_ids=layout.positions, use_cache=False
    ).last_hidden_state


@torch.no_grad()
def can_pack(base: BaseModel) -> bool:
    """Whether the model computes a pack as it computes its rows: it must take positions and a mask as they are given.

    Models that count distances between places instead of positions (ALiBi) do not.
    """
    if "position_ids" not in inspect.signature(base.backbone.forward).parameters:
        return False
    prefix, first, second = [3, 1, 2, 0], [2, 1] * 12, [1, 0, 3]
    probes = {i: [token % base.vocab_size for token in prefix + rest] for i, rest in enumerate((first, second))}
    pack = Pack((0, 1), len(prefix), len(prefix + first + second))
    if max(map(len, probes.values())) > base.positions:
        return False
    with base.compute():
        packed = lay_out([pack], probes, base)
        try:
            packed_TD = hidden_states(base, packed)[0].float()
        except (TypeError, ValueError, RuntimeError):  # it does not know masks of this shape
            return False
        alone_TD = hidden_states(base, lay_out([Pack((1,), 0, len(probes[1]))], probes, base))[0].float()
    error = (packed_TD[packed.places[1].to(base.device)] - alone_TD).norm() / alone_TD.norm()
    return float(error) < (1e-3 if base.dtype is torch.float32 else 0.03)
