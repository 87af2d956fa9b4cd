"""Generation: prompts are prefilled once and forked, sessions go on from their slots, finished rows leave at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from gongfu.core.errors import EngineError
from gongfu.core.records import Choice
from gongfu.engine.local import choices
from gongfu.engine.local.base import BaseModel
from gongfu.engine.local.batching import micro_batches
from gongfu.engine.local.cache import KVCache, Slot, common_prefix
from gongfu.engine.local.drafts import Draft
from gongfu.engine.local.draw import draw, generator
from gongfu.engine.local.forward import Forward
from gongfu.engine.local.step import Step, extend
from gongfu.engine.protocol import Sample, SampleRequest
from gongfu.engine.requests import refusal

_Prefill = tuple[Slot, tuple[int, ...], int]
"""A slot, the prompt that it shall hold, and how many tokens of it are stored already."""


@dataclass(eq=False)
class Path:
    """One sample in the making: sample number `number` of a request, in its slot."""

    request: SampleRequest
    number: int
    random: random.Random
    tree: choices.Tree | None = None
    slot: Slot = field(init=False)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: Literal["stop", "length", "choice"] = "length"
    choice: int | None = None
    choice_logprobs: tuple[float, ...] | None = None
    drawn_from: Choice | None = None
    uniforms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draft = Draft(self.request.draft)

    @property
    def owner(self) -> tuple[str | None, str] | None:
        """Only the first of several samples goes on with the session."""
        session = self.request.session
        return None if session is None or self.number else (self.request.adapter, session)

    @property
    def room(self) -> int:
        """Tokens that the slot must hold at most."""
        new = len(self.tree.nodes) if self.tree is not None else self.request.max_tokens
        return len(self.request.prompt) + new

    def uniform(self, number: int) -> float:
        """The random number that draws token `number` of the response."""
        while len(self.uniforms) <= number:
            self.uniforms.append(self.random.random())
        return self.uniforms[number]

    def guess(self) -> list[int]:
        """Tokens that may come next, one fewer than the response has room for: behind them another one is drawn."""
        return list(self.draft.guess(self.request.max_tokens - len(self.tokens) - 1))

    def take(self, drawn: Sequence[tuple[int, float]], guess: Sequence[int], stop_ids: frozenset[int]) -> bool:
        """Add tokens drawn one after the other, up to the first that is not as guessed; whether the response goes on."""
        for (token, logprob), expected in zip(drawn, [*guess, None], strict=True):
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.draft.follow(token)
            if token in (self.request.stop or stop_ids) or self._all_read():
                self.stop = "stop"
                return False
            if len(self.tokens) == self.request.max_tokens:
                return False
            if token != expected:
                break
        return True

    def _all_read(self) -> bool:
        until = self.request.until
        return bool(until) and tuple(self.tokens[-len(until) :]) == until

    def sample(self, version: int) -> Sample:
        return Sample(
            tuple(self.tokens),
            tuple(self.logprobs),
            self.stop,
            version,
            self.choice,
            self.choice_logprobs,
            self.drawn_from,
        )


class Sampler:
    """Answers sample requests from one model, one cache and the published adapters."""

    def __init__(
        self,
        base: BaseModel,
        forward: Forward,
        cache: KVCache,
        stats: Counter[str],
        *,
        stop_ids: Sequence[int],
        prefill_tokens: int,
    ) -> None:
        self.base = base
        self.forward = forward
        self.cache = cache
        self.stats = stats
        self.stop_ids = frozenset(stop_ids)
        self.prefill_tokens = prefill_tokens

    @torch.inference_mode()
    def sample(self, requests: Sequence[SampleRequest], version: int) -> list[list[Sample] | EngineError]:
        """One list of `n` samples a request, or the error of a request that cannot be answered."""
        positions, vocab_size = self.base.positions, self.base.vocab_size
        results: list[list[Sample] | EngineError] = [
            refusal(request, positions=positions, vocab_size=vocab_size) or [] for request in requests
        ]
        groups: dict[tuple[str | None, bool], list[tuple[int, Path]]] = {}
        for i, (request, result) in enumerate(zip(requests, results, strict=True)):
            if isinstance(result, EngineError):
                continue
            tree = None if request.choices is None else choices.Tree(request.choices)
            for number in range(request.n):
                path = Path(request, number, generator(request.seed, number), tree)
                groups.setdefault((request.adapter, tree is not None), []).append((i, path))
        for (adapter, choosing), members in groups.items():
            for wave in self._waves([path for _, path in members]):
                self._play(wave, adapter, choosing)
            for i, path in members:
                answer = results[i]
                assert isinstance(answer, list)
                answer.append(path.sample(version))
        return results

    def _waves(self, paths: list[Path]) -> Iterator[list[Path]]:
        """As many at once as the cache holds."""
        wave: list[Path] = []
        longest = 0
        for path in paths:
            longest = max(longest, path.room)
            if wave and not self.cache.fits(len(wave) + 1, longest):
                yield wave
                wave, longest = [], path.room
            wave.append(path)
        yield wave

    def _play(self, paths: list[Path], adapter: str | None, choosing: bool) -> None:
        self._seat(paths)
        try:
            paths = sorted(paths, key=lambda path: path.slot.index)  # adjacent rows are read without a copy
            if choosing:
                choices.choose(self, paths, adapter)
            else:
                self._generate(paths, adapter)
        finally:
            for path in paths:
                self.cache.release(path.slot)

    def _seat(self, paths: Sequence[Path]) -> None:
        """A slot for every path: that of its session, or a new one.

        Of a session that is asked several times the first path goes on with its slot, and the others begin with a copy of what
        they share with it.
        """
        sessions = {owner: self.cache.find(owner) for owner in dict.fromkeys(path.owner for path in paths) if owner is not None}
        shared: dict[Path, int] = {}
        kept: dict[Slot, int] = {}
        sources: dict[Path, Slot] = {}
        for path in paths:
            if path.owner is not None and (slot := sessions[path.owner]) is not None:
                shared[path] = common_prefix(slot.tokens, path.request.prompt)
                kept[slot] = max(kept.get(slot, 0), shared[path])
                sources[path] = slot
        for slot, length in kept.items():
            del slot.tokens[length:]  # what no prompt shares is lost, and need not fit
        new: list[tuple[Path, Hashable | None]] = []
        seen: set[Hashable] = set()
        for path in paths:
            owner = None if path.owner in seen else path.owner
            seen.add(path.owner)
            slot = None if owner is None else sessions[owner]
            if slot is None:
                new.append((path, owner))
            else:
                path.slot = slot
        slots = self.cache.reserve(list(kept), [owner for _, owner in new], max(path.room for path in paths))
        for (path, _), slot in zip(new, slots, strict=True):
            path.slot = slot
            if path in shared:
                self.cache.fork(sources[path], slot, path.request.prompt[: shared[path]])
        for path, known in shared.items():
            del path.slot.tokens[known:]

    def prefill(self, paths: Sequence[Path], adapter: str | None) -> Tensor:
        """Bring every slot to hold its prompt; returns the hidden state that predicts the next token [paths, D]."""
        leaders: dict[tuple[int, ...], list[Path]] = {}
        for path in paths:
            leaders.setdefault(path.request.prompt, []).append(path)
        work: list[_Prefill] = []
        for prompt, members in leaders.items():
            members.sort(key=lambda path: -common_prefix(path.slot.tokens, prompt))
            slot = members[0].slot
            known = min(common_prefix(slot.tokens, prompt), len(prompt) - 1)
            del slot.tokens[known:]
            work.append((slot, prompt, known))
            self.stats["prompt_tokens"] += len(prompt) * len(members)
            self.stats["reused_tokens"] += known + len(prompt) * (len(members) - 1)
        hidden: dict[tuple[int, ...], Tensor] = {}
        for batch in self._prefill_batches(work):
            rows = [(slot.index, known, prompt[known:]) for slot, prompt, known in batch]
            step = extend(rows, dtype=self.base.dtype, device=self.base.device)
            states = self.forward.hidden(step, self.cache, adapter)
            last = states[torch.arange(len(batch), device=states.device), step.ends]
            self.count(step)
            for (slot, prompt, known), state in zip(batch, last, strict=True):
                slot.tokens += prompt[known:]
                hidden[prompt] = state
        for prompt, members in leaders.items():
            source = members[0].slot
            for path in members[1:]:
                self.cache.fork(source, path.slot, prompt)
        return torch.stack([hidden[path.request.prompt] for path in paths])

    def _prefill_batches(self, work: Sequence[_Prefill]) -> Iterator[list[_Prefill]]:
        """Rows with as many new tokens, those of empty slots apart (they need not read the cache), in slot order."""
        for started in (False, True):
            rows = [w for w in work if bool(w[2]) is started]
            for batch in micro_batches([len(prompt) - known for _, prompt, known in rows], self.prefill_tokens):
                yield sorted((rows[i] for i in batch), key=lambda w: w[0].index)

    def count(self, step: Step) -> None:
        new = sum(step.counts)
        self.stats["sample_processed_tokens"] += new
        self.stats["sample_padded_tokens"] += step.ids.numel() - new

    def _generate(self, paths: Sequence[Path], adapter: str | None) -> None:
        """Each pass computes a row's last token and the tokens guessed to follow it, and draws behind every one of them."""
        live: list[tuple[Path, list[int]]] = [(path, []) for path in paths]
        states = self.prefill(paths, adapter)
        while True:
            places = [(path, len(path.tokens) + i) for path, guess in live for i in range(1 + len(guess))]
            heat, uniforms = [path.request.temperature for path, _ in places], [path.uniform(i) for path, i in places]
            drawn = zip(*draw(self.forward.logits(states), heat, uniforms), strict=True)
            going: list[Path] = []
            for path, guess in live:
                known = len(path.tokens)
                if path.take(list(islice(drawn, 1 + len(guess))), guess, self.stop_ids):
                    going.append(path)
                right = len(path.tokens) - known - 1
                path.slot.tokens += guess[:right]  # what is stored behind them is overwritten
                self.stats["sampled_tokens"] += right + 1
                self.stats["drafted_tokens"] += len(guess)
                self.stats["draft_hits"] += right
            if not going:
                return
            live = [(path, path.guess()) for path in going]
            rows = [(path.slot.index, len(path.slot.tokens), (path.tokens[-1], *guess)) for path, guess in live]
            step = extend(rows, dtype=self.base.dtype, device=self.base.device)
            states = step.packed(self.forward.hidden(step, self.cache, adapter))
            for path in going:
                path.slot.tokens.append(path.tokens[-1])
            self.count(step)
