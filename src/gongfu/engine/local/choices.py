"""Sampling among listed responses: all are scored from the shared prompt in one packed pass over their prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gongfu.core.records import Choice
from gongfu.engine.local.batching import micro_batches
from gongfu.engine.local.cache import common_prefix
from gongfu.engine.local.draw import generator, pick
from gongfu.engine.local.step import Step
from gongfu.engine.local.trees import Tree, chain
from gongfu.engine.protocol import Sample, SampleRequest

if TYPE_CHECKING:
    from gongfu.engine.local.sampler import Path, Sampler

_CHUNK_LOGITS = 1 << 24
_KEPT = 0.99
"""Options are kept for training, likeliest first, until they hold this share of the probability. The gradient lacks what the
rest would add, at most a hundredth of it; the log-probs are exact."""


def choose(sampler: Sampler, paths: Sequence[Path], adapter: str | None) -> None:
    """Score the choices of every path, draw one, and leave its tokens in the slot of the path."""
    groups: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], list[Path]] = {}
    for path in paths:
        assert path.request.choices is not None
        groups.setdefault((path.request.prompt, path.request.choices), []).append(path)
    members = list(groups.values())
    for batch in micro_batches([_width(group) for group in members], sampler.prefill_tokens):
        _choose(sampler, [members[i] for i in batch], adapter)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One of some listed responses, and what is said about it; see `gongfu.engine.protocol.Sample`."""

    index: int
    logprobs: list[float]
    normalised: tuple[float, ...]
    choice: Choice


def draw_from(listed: Sequence[tuple[int, ...]], each: Sequence[Sequence[float]], temperature: float, uniform: float) -> Drawn:
    """Draw by the number `uniform` in [0, 1). `each`: log-prob of every token of every response at temperature 1."""
    totals = [sum(values) for values in each]
    c = pick(totals, temperature, uniform)
    choice, logprobs = _drawn(listed, totals, c, temperature or 1.0)
    normalised = tuple(torch.tensor(totals, dtype=torch.float64).log_softmax(0).tolist())
    return Drawn(c, logprobs, normalised, replace(choice, alone=tuple(each[c])))


def chosen(request: SampleRequest, each: Sequence[Sequence[float]], version: int) -> list[Sample]:
    """The samples of a request to choose, as the local engine draws them. `each`: see `draw_from`."""
    assert request.choices is not None
    samples = []
    for number in range(request.n):
        drawn = draw_from(request.choices, each, request.temperature, generator(request.seed, number).random())
        said = (tuple(drawn.logprobs), "choice", version, drawn.index, drawn.normalised, drawn.choice)
        samples.append(Sample(request.choices[drawn.index], *said))
    return samples


def _known(path: Path) -> int:
    return min(common_prefix(path.slot.tokens, path.request.prompt), len(path.request.prompt) - 1)


def _width(members: Sequence[Path]) -> int:
    """New tokens of the leader's row: the rest of the prompt and the tree."""
    leader = max(members, key=_known)
    assert leader.tree is not None
    return len(leader.request.prompt) - _known(leader) + len(leader.tree.nodes)


def _choose(sampler: Sampler, batch: Sequence[list[Path]], adapter: str | None) -> None:
    for members in batch:
        members.sort(key=lambda path: -_known(path))
    batch = sorted(batch, key=lambda members: members[0].slot.index)
    leaders = [members[0] for members in batch]
    known = [_known(leader) for leader in leaders]
    step = _packed_step(sampler, leaders, known)
    hidden_BTD = sampler.forward.hidden(step, sampler.cache, adapter)
    sampler.count(step)
    for b, members in enumerate(batch):
        leader, prompt = leaders[b], leaders[b].request.prompt
        tree, listed = leader.tree, leader.request.choices
        assert tree is not None and listed is not None
        sampler.stats["prompt_tokens"] += len(prompt) * len(members)
        sampler.stats["reused_tokens"] += known[b] + len(prompt) * (len(members) - 1)
        new = len(prompt) - known[b]
        each = _token_logprobs(sampler, hidden_BTD[b, new - 1 : new + len(tree.nodes)], tree, listed)
        leader.slot.tokens = list(prompt)
        for path in reversed(members):  # the leader last: it overwrites the tree that the others copy from
            drawn = draw_from(listed, each, path.request.temperature, path.random.random())
            c = drawn.index
            path.tokens, path.stop, path.choice, path.choice_logprobs = list(listed[c]), "choice", c, drawn.normalised
            path.logprobs, path.drawn_from = drawn.logprobs, drawn.choice
            sampler.stats["sampled_tokens"] += len(listed[c])
            if path is not leader:
                sampler.cache.fork(leader.slot, path.slot, prompt)
            places = [len(prompt) + node for node in tree.paths[c][1:]]
            if places:
                sampler.cache.gather(leader.slot, places, path.slot, listed[c][:-1])


def _packed_step(sampler: Sampler, leaders: Sequence[Path], known: Sequence[int]) -> Step:
    """Each row: what is left of the prompt, then the nodes of the tree, which see the prompt and their own ancestors."""
    device = sampler.base.device
    parts: list[tuple[list[int], list[int]]] = []
    for leader, start in zip(leaders, known, strict=True):
        assert leader.tree is not None
        prompt = leader.request.prompt
        del leader.slot.tokens[start:]
        ids = [*prompt[start:], *leader.tree.nodes]
        positions = [*range(start, len(prompt)), *(len(prompt) + depth for depth in leader.tree.depths)]
        parts.append((ids, positions))
    T = max(len(ids) for ids, _ in parts)
    width = max(start + len(ids) for start, (ids, _) in zip(known, parts, strict=True))
    places = torch.arange(width)
    visible = torch.zeros(len(leaders), T, width, dtype=torch.bool)
    for b, (leader, start) in enumerate(zip(leaders, known, strict=True)):
        assert leader.tree is not None
        end, nodes = len(leader.request.prompt), len(leader.tree.nodes)
        new = end - start
        visible[b, :, :end] = places[:end] <= start + torch.arange(T)[:, None]
        visible[b, new : new + nodes, end : end + nodes] = leader.tree.ancestry()
    return Step(
        torch.tensor([ids + [0] * (T - len(ids)) for ids, _ in parts], device=device),
        [leader.slot.index for leader in leaders],
        known,
        [len(ids) for ids, _ in parts],
        torch.tensor([positions + [0] * (T - len(positions)) for _, positions in parts], device=device),
        sampler.base.dtype,
        visible.to(device),
    )


def _token_logprobs(sampler: Sampler, states_ND: Tensor, tree: Tree, listed: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-prob of every token of every choice; row 0 of the states is the prompt's last, row 1 + i that of node i."""
    rows = [node + 1 for path in tree.paths for node in path]
    tokens = [token for response in listed for token in response]
    chunk = max(1, _CHUNK_LOGITS // sampler.base.vocab_size)
    index = torch.tensor(rows, device=states_ND.device)
    wanted = torch.tensor(tokens, device=states_ND.device)
    values = torch.empty(len(rows), device=states_ND.device)
    for low in range(0, len(states_ND), chunk):
        inside = ((index >= low) & (index < low + chunk)).nonzero()[:, 0]
        logprobs = sampler.forward.logits(states_ND[low : low + chunk]).log_softmax(-1)
        values[inside] = logprobs[index[inside] - low, wanted[inside]]
    flat = iter(values.tolist())
    return [[next(flat) for _ in response] for response in listed]


def _drawn(
    listed: Sequence[tuple[int, ...]], totals: Sequence[float], taken: int, temperature: float
) -> tuple[Choice, list[float]]:
    """What training needs of the list, and the log-prob of every token of the response given the list."""
    scores = torch.tensor(totals, dtype=torch.float64) / temperature
    order = sorted(range(len(listed)), key=lambda c: (c != taken, -totals[c]))
    mass = scores[order].softmax(0).cumsum(0)
    kept = min(int((mass < _KEPT).sum()) + 1, len(listed))
    others = float(scores[order[kept:]].logsumexp(0)) if kept < len(listed) else None
    choice = Choice(tuple(listed[c] for c in order[:kept]), others)
    return choice, chain([choice], [listed[taken]], scores[order[:kept]]).tolist()
