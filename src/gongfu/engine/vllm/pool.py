"""The servers that sample, and which of them are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import cache
from ssl import SSLContext

import httpx

from gongfu.core.errors import EngineError
from gongfu.engine.vllm.folder import Published
from gongfu.engine.vllm.server import Lost, Refused, Server

_CONNECTIONS = 512
_log = logging.getLogger(__name__)


class Pool:
    """`wanted`: the adapters that every living server has, a list that its owner changes."""

    def __init__(self, urls: Sequence[str], timeout: float) -> None:
        self.servers = [Server(url, timeout) for url in urls]
        self.wanted: list[Published] = []
        self._homes: dict[str, Server] = {}
        """The server that has a session's attention cache."""

    @property
    def living(self) -> list[Server]:
        return [server for server in self.servers if not server.trouble]

    @property
    def positions(self) -> int:
        """Tokens of prompt and response that all take."""
        return min(server.positions for server in self.servers if server.positions)

    async def muster(self, http: httpx.AsyncClient, new: Sequence[Published] = ()) -> None:
        """Ask all servers that may serve, and load what they lack. Raises EngineError when none is left."""
        due = [server for server in self.servers if server.due] if self.living else self.servers
        await asyncio.gather(*(self._ask(http, server, [*self.wanted, *new]) for server in due))
        if not self.living:
            raise EngineError(
                f"no sampler is left: {'; '.join(f'{s.url}: {s.trouble}' for s in self.servers)}. Start them, or correct "
                "engine.samplers; a run resumes from its last checkpoint (gongfu train --resume)"
            )

    async def _ask(self, http: httpx.AsyncClient, server: Server, wanted: Sequence[Published]) -> None:
        try:
            if server.trouble:
                await server.greet(http)
            await server.bring(http, wanted)
        except (Lost, EngineError) as e:
            self.lose(server, str(e))
        else:
            server.trouble = ""

    async def pick(self, http: httpx.AsyncClient, lock: asyncio.Lock, session: str | None) -> Server:
        """The session's server, else the one with the fewest requests. Raises EngineError when none is left."""
        if not self.living:
            async with lock:  # the first one here brings back what can be, for all that wait
                if not self.living:
                    await self.muster(http)
        home = self._homes.get(session) if session is not None else None
        if home is None or home.trouble:
            home = min(self.living, key=lambda server: server.requests)
            if session is not None:
                self._homes[session] = home
        return home

    async def withdraw(self, http: httpx.AsyncClient, old: Published) -> None:
        async def unload(server: Server) -> None:
            try:
                await server.unload(http, old)
            except (Lost, Refused) as e:
                self.lose(server, str(e))

        await asyncio.gather(*map(unload, self.living))

    def forget_sessions(self) -> None:
        """What servers have cached is of no use any more."""
        self._homes.clear()

    def lose(self, server: Server, trouble: str) -> None:
        if not server.trouble:
            _log.warning("sampler %s is left out: %s", server.url, trouble)
        server.lose(trouble)


def connections() -> httpx.AsyncClient:
    """For one call: connections belong to their event loop, and each call may come from another one."""
    limits = httpx.Limits(max_connections=_CONNECTIONS, keepalive_expiry=2.0)  # servers close idle ones after five seconds
    return httpx.AsyncClient(verify=_tls(), timeout=None, limits=limits)


@cache
def _tls() -> SSLContext:
    return httpx.create_ssl_context()  # reads all certificates: once is enough
