"""The local engine: transformers, PEFT and torch in this process. The reference for all other engines."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.local import checkpoint, llama
from gongfu.engine.local.adapters import Adapters, AdapterState
from gongfu.engine.local.base import BaseModel, Dtype
from gongfu.engine.local.cache import KVCache
from gongfu.engine.local.forward import Forward, GeneralForward, cache_shapes
from gongfu.engine.local.sampler import Sampler
from gongfu.engine.local.scorer import Scorer, check_rows
from gongfu.engine.protocol import Capability, LoraSpec, LossFn, OptimParams, Sample, SampleRequest
from gongfu.engine.tokenizer import HFTokenizer

_COUNTERS = (
    "sampled_tokens",
    "drafted_tokens",
    "draft_hits",
    "prompt_tokens",
    "reused_tokens",
    "sample_processed_tokens",
    "sample_padded_tokens",
    "score_processed_tokens",
    "score_padded_tokens",
    "score_shared_tokens",
    "train_processed_tokens",
    "train_padded_tokens",
    "train_shared_tokens",
    "trained_tokens",
)


class LocalEngine:
    """An engine on one model folder; see `gongfu.engine.protocol.Engine`.

    `micro_batch_tokens` and `score_batch_tokens` bound the padded area of a batch in training, and in scoring and
    prefill; `cache_tokens` bounds the tokens whose keys and values are kept for sampling. `fast=False` samples through
    the transformers model even where a faster forward exists. Checkpoints go to `store`.

    Adapters are float32 and never merged: a bfloat16 base would round their small changes away.
    Raises ModelError when the model or the device cannot be used.
    """

    capabilities = frozenset(
        (
            Capability.TRAIN,
            Capability.ADAPTERS,
            Capability.CHOOSE,
            Capability.PREFIX_CACHE,
            Capability.BASE,
            Capability.TEMPERATURE,
            Capability.CLIP,
            Capability.NATIVE_LOSS,
        )
    )

    def __init__(
        self,
        model: Path,
        *,
        store: Path,
        dtype: Dtype = "auto",
        device: str = "cpu",
        micro_batch_tokens: int = 1024,
        score_batch_tokens: int = 4096,
        cache_tokens: int = 131072,
        fast: bool = True,
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.model = model = Path(model)
        self.store = Path(store)
        self.tokenizer = HFTokenizer(model)
        self.version = 0
        self._base = BaseModel(model, dtype=dtype, device=device)
        self._adapters = Adapters(self._base)
        self._stats: Counter[str] = Counter()
        self._scorer = Scorer(
            self._base, self._adapters, self._stats, train_tokens=micro_batch_tokens, score_tokens=score_batch_tokens
        )
        self._cache = KVCache(cache_shapes(self._base), dtype=self._base.dtype, device=self._base.device, limit=cache_tokens)
        self.fast = fast and llama.supports(self._base)
        forward: Forward = (llama.LlamaForward if self.fast else GeneralForward)(self._base, self._adapters)
        self._sampler = Sampler(
            self._base,
            forward,
            self._cache,
            self._stats,
            stop_ids=self.tokenizer.stop_ids,
            prefill_tokens=score_batch_tokens,
        )
        self._waiting: list[_Ticket] = []

    def create_adapter(self, name: str, spec: LoraSpec) -> None:
        """Raises EngineError for a used name or target modules that the model lacks."""
        self._adapters.create(name, spec)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]:
        """Calls that wait at the same time are answered in one batch; a request that cannot be answered gets its error."""
        ticket = _Ticket(list(requests))
        self._waiting.append(ticket)
        await asyncio.sleep(0)  # lets the other callers that are ready join
        if ticket.answers is None:
            tickets, self._waiting = self._waiting, []
            self._answer(tickets)
        if isinstance(ticket.answers, Exception):
            raise ticket.answers
        assert ticket.answers is not None
        return ticket.answers

    def logprobs(self, rows: Sequence[Row], *, adapter: str | None) -> list[Tensor]:
        """Log-probs [targets] of each row, float32 on CPU, with the weights in training."""
        return self._scorer.logprobs(rows, adapter)

    def forward_backward(self, rows: Sequence[Row], loss: LossFn, *, adapter: str) -> dict[str, float]:
        """Accumulates gradients into `adapter`; returns the summed metrics of the micro-batches and their "loss"."""
        return self._scorer.forward_backward(rows, loss, adapter)

    def optim_step(self, params: OptimParams, *, adapter: str) -> dict[str, float]:
        """One AdamW step; returns "grad_norm" before clipping."""
        return self._adapters.step(adapter, params)

    def sync(self) -> int:
        """Publish the trained weights to the sampler and drop what it cached with the old ones."""
        for adapter in self._adapters:
            if adapter.changed:
                adapter.publish()
        self._cache.clear()
        self.version += 1
        return self.version

    def save(self, name: str) -> str:
        """Write adapters, optimiser states and version to `store`/`name` (or to an absolute folder); returns the reference.

        Save after `sync`: `load` publishes the saved weights under the saved version.
        """
        if not Path(name).is_absolute() and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise EngineError(f"checkpoint name {name!r}: use letters, digits, '.', '_' or '-', or an absolute folder")
        checkpoint.save(self.store / name, self._base, self._adapters, self.version)
        return name

    def load(self, ref: str, *, weights_only: bool = False) -> None:
        """Restore what `save` wrote (`ref` as it returned it, or a folder). Raises CheckpointError.

        `weights_only`: the adapters' weights alone, with fresh optimisers and the version as it is (a cold start).
        """
        version = checkpoint.load(self.store / ref, self._base, self._adapters, weights_only=weights_only)
        self.version = self.version if weights_only else version
        self._cache.clear()

    def adapter_state(self, name: str) -> AdapterState:
        """Weights in training and optimiser of an adapter. Raises EngineError for an unknown one."""
        return self._adapters[name].state()

    def set_adapter_state(self, name: str, state: AdapterState) -> None:
        """Put another state in its place; the sampler has it after `sync`."""
        self._adapters[name].restore(state)

    def check_rows(self, rows: Sequence[Row]) -> None:
        """Raises EngineError for a row that the model cannot score."""
        check_rows(rows, self._base.positions, self._base.vocab_size)

    @property
    def backbone(self) -> str:
        """Name of the base's backbone inside the model ("model" for Llama)."""
        return self._base.model.base_model_prefix

    @property
    def vocab_size(self) -> int:
        return self._base.vocab_size

    @property
    def half(self) -> bool:
        """Whether the base is in bfloat16."""
        return self._base.dtype is torch.bfloat16

    def stats(self) -> dict[str, float]:
        """Cumulative counters of tokens.

        sampled, prompt (as asked for) and reused (prompt tokens that needed no forward pass); processed and padded in
        sampling, scoring and training; shared in scoring and training (tokens of a prefix computed once for several rows);
        trained (scored tokens in training rows).
        """
        return {key: float(self._stats[key]) for key in _COUNTERS}

    def close(self) -> None:
        """Nothing outlives the process."""
        self._cache.clear()

    def _answer(self, tickets: Sequence[_Ticket]) -> None:
        """Answer all requests of all tickets; every caller gets its own answers, or the error that hit them all."""
        requests = [request for ticket in tickets for request in ticket.requests]
        unknown = {r.adapter for r in requests if r.adapter is not None and r.adapter not in self._adapters}
        refusals = {name: self._refusal(name) for name in unknown if name is not None}
        known = [r for r in requests if r.adapter not in refusals]
        try:
            answers = iter(self._sampler.sample(known, self.version))
        except Exception as e:
            for ticket in tickets:
                ticket.answers = e
            return
        for ticket in tickets:
            ticket.answers = [refusals[r.adapter] if r.adapter in refusals else next(answers) for r in ticket.requests]

    def _refusal(self, adapter: str) -> EngineError:
        try:
            self._adapters[adapter]
        except EngineError as e:
            return e
        raise AssertionError(adapter)


class _Ticket:
    """A caller's requests, and later their answers."""

    def __init__(self, requests: list[SampleRequest]) -> None:
        self.requests = requests
        self.answers: list[list[Sample] | EngineError] | Exception | None = None
