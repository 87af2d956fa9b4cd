"""Asks a chat endpoint: cached, budgeted, retried, and validated where the answer has a form."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from gongfu.config.schema import ChatConfig
from gongfu.engine.chat import structured
from gongfu.engine.chat.cache import AnswerCache, digest
from gongfu.engine.chat.endpoint import Endpoint
from gongfu.engine.chat.records import (
    BadAnswer,
    CacheMiss,
    ChatAnswer,
    ChatCounters,
    ChatError,
    ChatRequest,
    Messages,
    Reply,
    Usage,
)
from gongfu.engine.chat.secret import excerpt

_REPAIRS = 2


class ChatClient:
    """A frozen model behind an OpenAI-compatible endpoint.

    `cache` is the file that keeps the answers; settings whose cache is "off" need none. Works from any event loop, one after
    the other too. Connections live as long as requests are in flight; `async with client:` keeps them open in between.

        client = ChatClient(ChatConfig(model="qwen3-8b"), Path("critic.sqlite"))
        answer = await client.complete([{"role": "user", "content": "Which room?"}], answer=Room)
        answer.parsed.name

    Raises ChatError when the key or the recorded answers are missing.
    """

    def __init__(self, settings: ChatConfig, cache: Path | None = None) -> None:
        self.settings = settings
        self.counters = ChatCounters()
        self._replays = settings.cache == "replay-only"
        self._cache: AnswerCache | None = None
        if settings.cache != "off":
            if cache is None:
                raise ChatError(f'cache = "{settings.cache}" needs a file for the answers; give one, or set cache = "off"')
            self._cache = AnswerCache(cache, read_only=self._replays)
        self._endpoint = None if self._replays else Endpoint(settings, self.counters)

    async def complete(
        self,
        messages: Messages,
        *,
        answer: type[BaseModel] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> ChatAnswer:
        """The model's answer to a conversation, validated as `answer` if one is given (up to two repairs).

        The same request is answered from the cache if there is one, whatever its temperature: sample anew with another `seed`.
        Raises a ChatError: ChatRefused, ChatUnavailable, BadAnswer, BudgetSpent or CacheMiss.
        """
        return await self._answer(ChatRequest(messages, answer, temperature, max_tokens, seed))

    async def complete_many(self, requests: Sequence[ChatRequest]) -> list[ChatAnswer | ChatError]:
        """An answer to each request, in their order, or the error that it ended with."""
        results: list[ChatAnswer | ChatError] = []
        for result in await asyncio.gather(*map(self._answer, requests), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, ChatError):
                raise result
            results.append(result)
        return results

    async def __aenter__(self) -> Self:
        if self._endpoint is not None:
            self._endpoint.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._endpoint is not None:
            await self._endpoint.leave()

    async def _answer(self, request: ChatRequest) -> ChatAnswer:
        try:
            return await self._converse(request)
        except ChatError:
            self.counters.failures += 1
            raise

    async def _converse(self, request: ChatRequest) -> ChatAnswer:
        started = time.monotonic()
        messages, form, parsed = request.messages, None, None
        if request.answer is not None:
            messages, form = structured.ask(messages, request.answer, self.settings.json_mode)
        usage, cached, repairs = Usage(), True, 0
        while True:
            reply, stored = await self._exchange(self._body(request, messages, form))
            usage, cached = usage + reply.usage, cached and stored
            if request.answer is None:
                break
            try:
                parsed = structured.read(reply.text, request.answer)
                break
            except BadAnswer as e:
                problem = str(e)
            if reply.stop == "length":
                problem = f"it is cut off after {reply.usage.tokens_out} tokens (max_tokens), be brief"
            if repairs == _REPAIRS:
                raise BadAnswer(
                    f"{self.settings.model} gave no {request.answer.__name__} in {1 + repairs} answers, the last one has a "
                    f'fault: {excerpt(self.settings, problem)}. It begins: "{excerpt(self.settings, reply.text)}"'
                )
            repairs += 1
            self.counters.repairs += 1
            messages = structured.repair(messages, reply.text, problem, request.answer)
        return ChatAnswer(reply.text, parsed, reply.stop, usage, cached, time.monotonic() - started, reply.model)

    def _body(self, request: ChatRequest, messages: Messages, form: dict[str, Any] | None) -> dict[str, Any]:
        temperature = self.settings.temperature if request.temperature is None else request.temperature
        body: dict[str, Any] = {
            "model": self.settings.model,
            "messages": [dict(m) for m in messages],
            "temperature": float(temperature),
            "max_tokens": self.settings.max_tokens if request.max_tokens is None else request.max_tokens,
        }
        if request.seed is not None:
            body["seed"] = request.seed
        if form is not None:
            body["response_format"] = form
        return body

    async def _exchange(self, body: dict[str, Any]) -> tuple[Reply, bool]:
        """The reply to one request, and whether it was stored."""
        if self._cache is not None and (stored := self._cache.get(digest(body))):
            self.counters.cache_hits += 1
            return stored, True
        if self._endpoint is None:
            last = body["messages"][-1]["content"] if body["messages"] else ""
            raise CacheMiss(
                f"no recorded answer of {self.settings.model} to request {digest(body)[:12]} "
                f'("{excerpt(self.settings, last, 80)}"): record it with cache = "read-write", or replay with the settings '
                "and prompts of the recording"
            )
        reply = await self._endpoint.ask(body)
        return (self._cache.put(body, reply) if self._cache is not None else reply), False
