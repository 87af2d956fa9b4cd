"""Samples from vLLM servers over HTTP, and publishes adapters to them.

Every version of an adapter goes to the servers under a name of its own (`actor@17-5f0c2e91`). Requests change to the new name
when it is loaded, and the old one is unloaded then. An answer is of one version throughout, wherever its request moved to.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from torch import Tensor

from gongfu.core.errors import EngineError
from gongfu.engine.local.choices import chosen
from gongfu.engine.protocol import LoraSpec, Sample, SampleRequest
from gongfu.engine.requests import refusal
from gongfu.engine.vllm import folder as folders
from gongfu.engine.vllm.folder import Published
from gongfu.engine.vllm.pool import Pool, connections
from gongfu.engine.vllm.server import Lost, Refused, Server

T = TypeVar("T")

_PLAIN = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Whatever the model's generation_config.json would put in their places."""


class VllmSampler:
    """A client of the servers at `urls`, all with the same base model; see `gongfu.engine.protocol.Engine.sample`.

    `folder`: where adapters are written, under the same path on the servers' machines. `backbone`: the base's name of what the
    adapters are in ("model" for Llama). `stop_ids`: where a request names none. `timeout`: seconds that a request may take.

    A server that dies, hangs or refuses an adapter is left out with a warning, and what it was asked goes to another one. It is
    asked again after five minutes, and given the adapters that it lacks. Raises EngineError when no server is left.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        folder: Path,
        backbone: str,
        vocab_size: int,
        stop_ids: Sequence[int],
        timeout: float,
    ) -> None:
        self.folder, self.backbone = Path(folder), backbone
        self.vocab_size, self.stop_ids = vocab_size, tuple(stop_ids)
        self.pool = Pool(urls, timeout)
        self._published: dict[str | None, Published] = {}
        self._stats: Counter[str] = Counter()
        _run(self._start())

    # ------------------------------------------------------------------ sampling

    async def sample(self, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]:
        """A call to a server for each request, and one for all that choose from the same list after the same prompt."""
        answers: dict[int, list[Sample] | EngineError] = {}
        groups: dict[Hashable, list[int]] = {}
        for i, request in enumerate(requests):
            refused = self._refusal(request)
            if refused is not None:
                answers[i] = refused
            else:
                alike = i if request.choices is None else (request.adapter, request.prompt, request.choices)
                groups.setdefault(alike, []).append(i)
        async with connections() as http:
            lock = asyncio.Lock()
            await self.pool.muster(http)
            try:
                async with asyncio.TaskGroup() as tasks:
                    found = [tasks.create_task(self._answer(http, lock, [requests[i] for i in own])) for own in groups.values()]
            except ExceptionGroup as e:
                raise e.exceptions[0] from None
        for own, task in zip(groups.values(), found, strict=True):
            answers.update(zip(own, task.result(), strict=True))
        return [answers[i] for i in range(len(requests))]

    def _refusal(self, request: SampleRequest) -> EngineError | None:
        if request.adapter not in self._published:
            known = ", ".join(name for name in self._published if name) or "none yet"
            return EngineError(f"no adapter {request.adapter!r} was published (known: {known})")
        return refusal(request, positions=self.pool.positions, vocab_size=self.vocab_size)

    async def _answer(
        self, http: httpx.AsyncClient, lock: asyncio.Lock, alike: Sequence[SampleRequest]
    ) -> Sequence[list[Sample] | EngineError]:
        """By one server after the other, until one does it."""
        error = EngineError("no sampler was asked")
        for _ in range(len(self.pool.servers) + 1):
            server = await self.pool.pick(http, lock, alike[0].session)
            server.requests += 1
            try:
                if alike[0].choices is None:
                    return [await self._written(http, server, alike[0])]
                return await self._chosen(http, server, alike)
            except Refused as e:
                error = EngineError(f"{server.url} refused a request: {e}")
                break
            except Lost as e:
                error = EngineError(f"a request failed on every sampler that it was sent to, last on {server.url}: {e}")
                self._stats["sampler_retries"] += 1
                self.pool.lose(server, str(e))
            finally:
                server.requests -= 1
        return [error for _ in alike]

    async def _written(self, http: httpx.AsyncClient, server: Server, request: SampleRequest) -> list[Sample]:
        stop = request.stop or self.stop_ids
        count = request.n if request.temperature else 1  # greedy answers are equal, and vLLM gives one
        published = self._published[request.adapter]
        body = {
            **_PLAIN,
            "model": published.name,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed % 2**62,
            "n": count,
            "stop_token_ids": stop,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        samples = []
        for choice in await server.complete(http, body, count):
            with _as_agreed():
                tokens, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
                samples.append(Sample(tokens, logprobs, "stop" if tokens[-1] in stop else "length", published.version))
        self._count(request, samples)
        return samples if count == request.n else samples * request.n

    async def _chosen(self, http: httpx.AsyncClient, server: Server, alike: Sequence[SampleRequest]) -> list[list[Sample]]:
        """The server scores every option after the prompt; the draws are made here."""
        request = alike[0]
        assert request.choices is not None
        published = self._published[request.adapter]
        body = {
            "model": published.name,
            "prompt": [(*request.prompt, *option) for option in request.choices],
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        each = []
        for option, choice in zip(request.choices, await server.complete(http, body, len(request.choices)), strict=True):
            with _as_agreed():
                scored = choice["prompt_logprobs"][-len(option) :]
                each.append([values[str(token)]["logprob"] for token, values in zip(option, scored, strict=True)])
        answers = [chosen(one, each, published.version) for one in alike]
        for one, samples in zip(alike, answers, strict=True):
            self._count(one, samples)
        return answers

    def _count(self, request: SampleRequest, samples: Sequence[Sample]) -> None:
        self._stats["prompt_tokens"] += len(request.prompt) * request.n
        self._stats["sampled_tokens"] += sum(len(sample.tokens) for sample in samples)

    def stats(self) -> dict[str, float]:
        """Tokens sampled, tokens of prompts, and calls that were made again because their server was lost."""
        return {key: float(self._stats[key]) for key in ("sampled_tokens", "prompt_tokens", "sampler_retries")}

    # ------------------------------------------------------------------ publishing

    def publish(self, adapter: str, weights: Mapping[str, Tensor], spec: LoraSpec, version: int) -> None:
        """Serve these weights from now on; when this raises, what was published before is served on.

        `weights`: by the local engine's names. Raises EngineError when no server loads them.
        """
        new = folders.write(self.folder, adapter, version, weights, spec, self.backbone)
        # On CPUs vLLM gives a request without an adapter that of others in its batch, so the base has one that does nothing.
        nothing = folders.write(self.folder, "base", version, folders.nothing(weights), spec, self.backbone)
        _run(self._publish({adapter: new, None: nothing}))

    async def _publish(self, new: Mapping[str | None, Published]) -> None:
        async with connections() as http:
            try:
                await self.pool.muster(http, list(new.values()))
            except EngineError:
                for one in new.values():
                    folders.remove(one)
                raise
            old = [self._published[name] for name in new if name in self._published]
            self._published.update(new)
            await self._withdraw(http, old)

    async def _withdraw(self, http: httpx.AsyncClient, old: Sequence[Published]) -> None:
        self.pool.wanted = list(self._published.values())
        self.pool.forget_sessions()
        for one in old:
            await self.pool.withdraw(http, one)
            folders.remove(one)

    async def _start(self) -> None:
        async with connections() as http:
            await self.pool.muster(http)

    def close(self) -> None:
        """Take this sampler's adapters off the servers."""
        _run(self._end())

    async def _end(self) -> None:
        old = list(self._published.values())
        self._published.clear()
        async with connections() as http:
            await self._withdraw(http, old)


@contextmanager
def _as_agreed() -> Iterator[None]:
    """Turns an answer of another form into Lost."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise Lost(f"its completion has another form ({e!r})") from None


def _run(work: Coroutine[Any, Any, T]) -> T:
    """To its end, also from inside a running event loop."""
    with ThreadPoolExecutor(1) as pool:
        run: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run
        return pool.submit(run, work).result()
