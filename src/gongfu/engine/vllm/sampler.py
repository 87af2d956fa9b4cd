"""Samples from vLLM servers over HTTP, and publishes adapters to them.

Every version of an adapter goes to the servers under a name of its own (`actor@17-5f0c2e91`). Requests change to the new name
when it is loaded, and the old one is unloaded then. An answer is of one version throughout, wherever its request moved to.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from ssl import SSLContext
from typing import Any, TypeVar

import httpx
from torch import Tensor

from gongfu.core.errors import EngineError
from gongfu.engine.local.choices import chosen
from gongfu.engine.protocol import LoraSpec, Sample, SampleRequest
from gongfu.engine.requests import refusal
from gongfu.engine.vllm import folder as folders
from gongfu.engine.vllm.folder import Published
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
_CONNECTIONS = 512
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    """What the requests of one call share; nothing of it outlives the call's event loop."""

    http: httpx.AsyncClient
    lock: asyncio.Lock


class VllmSampler:
    """A client of the servers at `urls`, all with the same base model; see `gongfu.engine.protocol.Engine.sample`.

    `folder`: where adapters are written, under the same path on the servers' machines. `stop_ids`: where a request names none.
    `timeout`: seconds that a request, or loading an adapter, may take.

    A server that dies, hangs or refuses an adapter is left out with a warning, and what it was asked goes to another one; it is
    asked again after a minute, and given the adapters that it lacks. Raises EngineError when no server is left.
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
        self.servers = [Server(url, timeout) for url in urls]
        self.folder, self.backbone = Path(folder), backbone
        self.vocab_size, self.stop_ids = vocab_size, tuple(stop_ids)
        self._published: dict[str, Published] = {}
        self._homes: dict[str, Server] = {}
        """The server that has a session's attention cache."""
        self._stats: Counter[str] = Counter()
        _run(self._start())

    # ------------------------------------------------------------------ sampling

    async def sample(self, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]:
        """A request of its own for each; what no server can answer gets its error."""
        async with _connections() as http:
            call = _Call(http, asyncio.Lock())
            await self._muster(http)
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._answer(call, request)) for request in requests]
            except ExceptionGroup as e:
                raise e.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _answer(self, call: _Call, request: SampleRequest) -> list[Sample] | EngineError:
        if request.adapter is not None and request.adapter not in self._published:
            return EngineError(f"no adapter {request.adapter!r} was published (known: {', '.join(self._published) or 'none'})")
        refused = refusal(request, positions=self._positions, vocab_size=self.vocab_size)
        if refused is not None:
            return refused
        trouble = ""
        for _ in range(len(self.servers) + 1):
            server = await self._server(call, request.session)
            server.requests += 1
            try:
                return await (self._written if request.choices is None else self._chosen)(call.http, server, request)
            except Refused as e:
                return EngineError(f"{server.url} refused a request: {e}")
            except Lost as e:
                trouble = f"{server.url}: {e}"
                self._stats["sampler_retries"] += 1
                self._lose(server, str(e))
            finally:
                server.requests -= 1
        return EngineError(f"a request failed on every server it was sent to, last on {trouble}")

    async def _written(self, http: httpx.AsyncClient, server: Server, request: SampleRequest) -> list[Sample]:
        stop = request.stop or self.stop_ids
        count = request.n if request.temperature else 1  # greedy answers are equal, and vLLM gives one
        model, version = self._model(server, request.adapter)
        body = {
            **_PLAIN,
            "model": model,
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
                samples.append(Sample(tokens, logprobs, "stop" if tokens[-1] in stop else "length", version))
        self._count(request, samples)
        return samples if count == request.n else samples * request.n

    async def _chosen(self, http: httpx.AsyncClient, server: Server, request: SampleRequest) -> list[Sample]:
        """The server scores every option after the prompt; the draws are made here."""
        assert request.choices is not None
        model, version = self._model(server, request.adapter)
        body = {
            "model": model,
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
        samples = chosen(request, each, version)
        self._count(request, samples)
        return samples

    def _model(self, server: Server, adapter: str | None) -> tuple[str, int]:
        """The server's name of what is asked, and its version."""
        if adapter is None:
            return server.base, max((p.version for p in self._published.values()), default=0)
        published = self._published[adapter]
        return published.name, published.version

    def _count(self, request: SampleRequest, samples: Sequence[Sample]) -> None:
        self._stats["prompt_tokens"] += len(request.prompt) * request.n
        self._stats["sampled_tokens"] += sum(len(sample.tokens) for sample in samples)

    def stats(self) -> dict[str, float]:
        """Tokens sampled, tokens of prompts, and requests that were sent again because a server was lost."""
        return {key: float(self._stats[key]) for key in ("sampled_tokens", "prompt_tokens", "sampler_retries")}

    # ------------------------------------------------------------------ publishing

    def publish(self, adapter: str, weights: Mapping[str, Tensor], spec: LoraSpec, version: int) -> None:
        """Serve these weights from now on; when this raises, the servers go on with those from before.

        `weights`: by the local engine's names. Raises EngineError when no server loads them.
        """
        new = folders.write(self.folder, adapter, version, weights, spec, self.backbone)
        _run(self._publish(adapter, new))

    async def _publish(self, adapter: str, new: Published) -> None:
        async with _connections() as http:
            try:
                await self._muster(http, extra=new)
            except EngineError:
                folders.remove(new)
                raise
            old, self._published[adapter] = self._published.get(adapter), new
            self._homes.clear()
            if old is not None:
                await self._withdraw(http, old)

    async def _withdraw(self, http: httpx.AsyncClient, old: Published) -> None:
        async def unload(server: Server) -> None:
            try:
                await server.unload(http, old)
            except (Lost, Refused) as e:
                self._lose(server, str(e))

        await asyncio.gather(*map(unload, self._living()))
        folders.remove(old)

    def close(self) -> None:
        """Take this sampler's adapters off the servers."""
        published, self._published = list(self._published.values()), {}
        _run(self._withdraw_all(published))

    async def _withdraw_all(self, published: Sequence[Published]) -> None:
        async with _connections() as http:
            for one in published:
                await self._withdraw(http, one)

    # ------------------------------------------------------------------ servers

    @property
    def _positions(self) -> int:
        return min(server.positions for server in self.servers if server.positions)

    def _living(self) -> list[Server]:
        return [server for server in self.servers if not server.trouble]

    async def _server(self, call: _Call, session: str | None) -> Server:
        """That of the session, else the one with the fewest requests. Raises EngineError when none is left."""
        if not self._living():
            async with call.lock:  # the first to ask brings back what can be, for all that wait here
                if not self._living():
                    await self._muster(call.http)
        home = self._homes.get(session or "")
        if home is None or home.trouble:
            home = min(self._living(), key=lambda server: server.requests)
            if session is not None:
                self._homes[session] = home
        return home

    async def _muster(self, http: httpx.AsyncClient, extra: Published | None = None) -> None:
        """Ask all servers that may serve, and give them the adapters they lack. Raises EngineError when there is none."""
        wanted = [*self._published.values(), *([extra] if extra else [])]

        async def ask(server: Server) -> None:
            try:
                if server.trouble:
                    await server.greet(http)
                await server.bring(http, wanted)
            except (Lost, EngineError) as e:
                self._lose(server, str(e))
            else:
                server.trouble = ""

        due = [server for server in self.servers if server.due] if self._living() else self.servers
        await asyncio.gather(*map(ask, due))
        if not self._living():
            raise EngineError(
                f"no sampler is left: {'; '.join(f'{s.url}: {s.trouble}' for s in self.servers)}. Start them, or "
                "correct engine.samplers; a run resumes from its last checkpoint (gongfu train --resume)"
            )

    async def _start(self) -> None:
        async with _connections() as http:
            await self._muster(http)

    def _lose(self, server: Server, trouble: str) -> None:
        if not server.trouble:
            _log.warning("sampler %s is lost: %s", server.url, trouble)
        server.lose(trouble)


@contextmanager
def _as_agreed() -> Iterator[None]:
    """Turns an answer of another form into Lost."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise Lost(f"its completion has another form ({e!r})") from None


def _connections() -> httpx.AsyncClient:
    """For one call: connections belong to their event loop, and each call may come from another one."""
    limits = httpx.Limits(max_connections=_CONNECTIONS, keepalive_expiry=2.0)  # servers close idle ones after five seconds
    return httpx.AsyncClient(verify=_tls(), timeout=None, limits=limits)


@cache
def _tls() -> SSLContext:
    return httpx.create_ssl_context()  # reads all certificates: once is enough


def _run(work: Coroutine[Any, Any, T]) -> T:
    """To its end, also from inside a running event loop."""
    with ThreadPoolExecutor(1) as pool:
        run: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run
        return pool.submit(run, work).result()
