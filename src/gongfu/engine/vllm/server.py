"""One vLLM server behind its HTTP interface."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from gongfu.core.errors import EngineError
from gongfu.engine.vllm.folder import Published

GREET_S = 20.0
"""Seconds that the two tokens of a greeting may take."""
_LIST_S = 10.0
_UNLOAD_S = 60.0
_AGAIN_S = 300.0
"""Seconds that a lost server is left alone while others serve."""


class Lost(Exception):
    """The server does not answer, or not as a vLLM server should."""


class Refused(Exception):
    """The server will not do what it was asked."""


class Server:
    """`timeout`: seconds that an answer may take."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.base = ""
        """Its name of the base model."""
        self.positions = 0
        self.requests = 0
        """Those on their way."""
        self.trouble = "it was not asked yet"
        """Why it is not used; empty = it is used."""
        self._again_at = 0.0

    @property
    def due(self) -> bool:
        """Whether it serves, or may be tried again."""
        return not self.trouble or time.monotonic() >= self._again_at

    def lose(self, trouble: str) -> None:
        self.trouble, self._again_at = trouble, time.monotonic() + _AGAIN_S

    async def greet(self, http: httpx.AsyncClient) -> None:
        """Find out what it serves and how. Raises Lost, or EngineError for one that was started otherwise than needed."""
        models = await self._models(http)
        base = [card for card in models.values() if not card.get("parent")]
        if len(base) != 1 or not isinstance(base[0].get("max_model_len"), int):
            raise EngineError(f"{self.url} serves {len(base)} base models; a vLLM server of one is needed")
        self.base, self.positions = base[0]["id"], base[0]["max_model_len"]
        cold, warm = [await self._top_logprob(http, temperature) for temperature in (0.0, 2.0)]
        if cold == warm:
            raise EngineError(
                f"{self.url} gives log-probs at temperature 1 whatever is asked for: start it with "
                "--logprobs-mode processed_logprobs"
            )

    async def bring(self, http: httpx.AsyncClient, wanted: Sequence[Published]) -> None:
        """Load what is missing: a server that was started anew has no adapters."""
        known = await self._models(http)
        for published in wanted:
            if published.name not in known:
                await self.load(http, published)

    async def load(self, http: httpx.AsyncClient, published: Published) -> None:
        body = {"lora_name": published.name, "lora_path": str(published.folder)}
        try:
            await self._post(http, "/v1/load_lora_adapter", body, self.timeout)
        except (Refused, Lost) as e:
            if published.name in await self._models(http):
                return  # another call was first
            raise EngineError(
                f"{self.url} did not load {published.folder}: {e}. It must be started with --enable-lora, --max-lora-rank and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and see that folder (engine.sampler_adapters)"
            ) from None

    async def unload(self, http: httpx.AsyncClient, published: Published) -> None:
        await self._post(http, "/v1/unload_lora_adapter", {"lora_name": published.name}, _UNLOAD_S)

    async def complete(self, http: httpx.AsyncClient, body: Mapping[str, Any], wanted: int) -> list[dict[str, Any]]:
        """The `wanted` answers to a request for completions, in order."""
        found = await self._post(http, "/v1/completions", body, self.timeout)
        try:
            choices = sorted(json.loads(found)["choices"], key=lambda choice: choice["index"])
        except (ValueError, KeyError, TypeError):
            choices = []
        if len(choices) != wanted:
            raise Lost(f"it did not answer with {wanted} completions, but: {found[:200]}")
        return choices

    async def _post(self, http: httpx.AsyncClient, path: str, body: Mapping[str, Any], timeout: float) -> str:
        return await self._exchange(http, "POST", path, body, timeout)

    async def _models(self, http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
        try:
            return {
                card["id"]: card for card in json.loads(await self._exchange(http, "GET", "/v1/models", None, _LIST_S))["data"]
            }
        except (Refused, ValueError, KeyError, TypeError) as e:
            raise Lost(f"/v1/models gives no list of models ({e})") from None

    async def _top_logprob(self, http: httpx.AsyncClient, temperature: float) -> float:
        """Of the likeliest token after a token of no meaning."""
        body = {"model": self.base, "prompt": [0], "max_tokens": 1, "seed": 0, "temperature": temperature, "logprobs": 1}
        try:
            async with asyncio.timeout(GREET_S):
                (choice,) = await self.complete(http, body, 1)
            return max(choice["logprobs"]["top_logprobs"][0].values())
        except (Refused, TimeoutError, KeyError, IndexError, TypeError) as e:
            raise Lost(f"it did not complete a prompt of one token: {e!r}") from None

    async def _exchange(
        self, http: httpx.AsyncClient, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> str:
        try:
            async with asyncio.timeout(timeout):
                response = await http.request(method, self.url + path, json=body)
        except TimeoutError:
            raise Lost(f"no answer within {timeout:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise Lost(str(e) or type(e).__name__) from None
        if response.status_code >= 500 or response.status_code == 404:  # 404: started anew, it has no adapters
            raise Lost(f"HTTP {response.status_code}: {_said(response)}")
        if not response.is_success:
            raise Refused(f"HTTP {response.status_code}: {_said(response)}")
        return response.text


def _said(response: httpx.Response) -> str:
    """The message of an error, or what is there instead."""
    try:
        return str(response.json()["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
