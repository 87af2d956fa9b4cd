"""One request to a chat endpoint until it is answered: turns, dead-lines, retries, pauses, budget."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import httpx
from pydantic import BaseModel, Field, ValidationError

from gongfu.config.schema import ChatConfig
from gongfu.engine.chat.budget import Budget
from gongfu.engine.chat.records import BadAnswer, ChatCounters, ChatError, ChatRefused, ChatUnavailable, Reply, Usage
from gongfu.engine.chat.secret import excerpt, read_key

_log = logging.getLogger(__name__)

_PASSING = (408, 409, 429)  # and all above 499
_CONNECT = 10.0  # seconds
_LONGEST_BACKOFF = 30.0  # seconds
_NOTHING = Usage()


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    model: str | None = None
    usage: _Usage | None = None


@dataclass(frozen=True, slots=True)
class _Trouble:
    """An attempt without a usable reply."""

    what: str
    usage: Usage | None = _NOTHING
    """What it cost; None = unknown, as the reply was lost on its way."""
    fatal: type[ChatError] | None = None
    """The error that it is if repeating it is useless."""
    pause: float | None = None
    """Seconds that the endpoint wants to be left alone by everybody; None = it does not."""


@dataclass(slots=True)
class _Lane:
    """Connections and turns of one event loop: neither can be used in another one."""

    http: httpx.AsyncClient
    turns: asyncio.Semaphore
    users: int = 0


class Endpoint:
    """Sends requests to `settings.base_url`, counting in `counters`."""

    def __init__(self, settings: ChatConfig, counters: ChatCounters) -> None:
        if settings.key_env and not read_key(settings):
            raise ChatError(
                f"the environment variable {settings.key_env} (key_env) is not set: export the key of {settings.base_url} "
                'in it, or set key_env = "" for a server that wants none'
            )
        try:
            self._url = httpx.URL(settings.base_url.rstrip("/") + "/chat/completions")
        except httpx.InvalidURL as e:
            raise ChatError(f"base_url {settings.base_url} is no address: {e}") from None
        self._settings = settings
        self._counters = counters
        self._budget = Budget(settings, counters)
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}
        self._resume_at = 0.0
        self._jitter = random.Random()  # of its own: a seeded run's draws stay as they are

    def enter(self) -> _Lane:
        """The running event loop's connections, opened if there are none. Call `leave` after."""
        loop, settings = asyncio.get_running_loop(), self._settings
        if loop not in self._lanes:
            http = httpx.AsyncClient(
                verify=_tls(),
                timeout=httpx.Timeout(None, connect=min(_CONNECT, settings.timeout_s)),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=settings.concurrency),
            )
            self._lanes[loop] = _Lane(http, asyncio.Semaphore(settings.concurrency))
        lane = self._lanes[loop]
        lane.users += 1
        return lane

    async def leave(self) -> None:
        loop = asyncio.get_running_loop()
        lane = self._lanes[loop]
        lane.users -= 1
        if not lane.users:
            del self._lanes[loop]
            await lane.http.aclose()

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """The reply to a request body. Raises ChatRefused, ChatUnavailable, BadAnswer (an empty one) or BudgetSpent."""
        content = json.dumps(body).encode()
        estimate = Usage(_tokens(content), body["max_tokens"])
        lane = self.enter()
        try:
            async with lane.turns:
                return await self._insist(lane.http, content, estimate)
        finally:
            await self.leave()

    async def _insist(self, http: httpx.AsyncClient, content: bytes, estimate: Usage) -> Reply:
        ends = time.monotonic() + self._settings.deadline_s
        resume_at, attempt, last = 0.0, 0, "not sent yet"
        while True:
            await self._wait(resume_at, ends, last)
            attempt += 1
            self._counters.retries += attempt > 1
            got = await self._attempt(http, content, estimate, ends)
            if isinstance(got, Reply):
                return got
            last = got.what
            if got.fatal is not None:
                raise got.fatal(f"{self._name()}: {last}")
            delay = max(backoff(attempt, self._settings.backoff_s, self._jitter), got.pause or 0.0)
            resume_at = time.monotonic() + delay
            if got.pause is not None:
                if self._resume_at <= time.monotonic():
                    _log.warning("%s wants a pause: all requests wait %.1f s", self._name(), delay)
                self._resume_at = max(self._resume_at, resume_at)
            if attempt == self._settings.max_attempts:
                raise ChatUnavailable(
                    f"{self._name()} gave no usable reply in {attempt} attempts (max_attempts); the last: {last}"
                )

    async def _wait(self, resume_at: float, ends: float, last: str) -> None:
        """Sleep until this request, and all requests, may go on."""
        while (until := max(resume_at, self._resume_at)) > (now := time.monotonic()):
            if until >= ends:
                raise ChatUnavailable(
                    f"{self._name()} gave no usable reply before the dead-line (deadline_s = {self._settings.deadline_s:g}): "
                    f"{last}; the next attempt would be made in {until - now:.0f} s"
                )
            await asyncio.sleep(until - now)

    async def _attempt(self, http: httpx.AsyncClient, content: bytes, estimate: Usage, ends: float) -> Reply | _Trouble:
        await self._budget.reserve(estimate)
        used, started = estimate, time.monotonic()  # the estimate stands if this is cancelled: it may be billed all the same
        self._counters.requests += 1
        try:
            got = await self._post(http, content, max(0.0, min(self._settings.timeout_s, ends - started)))
            used = estimate if got.usage is None else got.usage
            return got
        finally:
            self._budget.settle(estimate, used)
            self._counters.seconds += time.monotonic() - started

    async def _post(self, http: httpx.AsyncClient, content: bytes, seconds: float) -> Reply | _Trouble:
        key = read_key(self._settings)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        try:
            async with asyncio.timeout(seconds):  # httpx's own limits hold for each piece of a body, not for the whole
                response = await http.post(self._url, content=content, headers=headers)
        except TimeoutError:
            return _Trouble(f"no whole answer within {seconds:.3g} s", usage=None)
        except (httpx.ConnectError, httpx.ConnectTimeout) as e:
            return _Trouble(f"cannot connect ({self._said(str(e) or type(e).__name__)}); is a server running there?")
        except httpx.HTTPError as e:
            return _Trouble(f"the connection broke: {self._said(str(e) or type(e).__name__)}", usage=None)
        if response.is_success:
            return self._read(response, content)
        said = f"HTTP {response.status_code}: {self._said(_message(response))}"
        if response.status_code in _PASSING or response.status_code >= 500:
            pause = retry_after(response.headers.get("Retry-After", ""))
            if pause is not None:
                said += f" (wait {pause:.0f} s)"
            return _Trouble(said, pause=0.0 if pause is None and response.status_code == 429 else pause)
        return _Trouble(f"{said}. {self._advice(response.status_code)}", fatal=ChatRefused)

    def _read(self, response: httpx.Response, content: bytes) -> Reply | _Trouble:
        try:
            completion = _Completion.model_validate_json(response.content)
        except ValidationError:
            return _Trouble(f"not a whole chat completion: {self._said(response.text)}", usage=None)
        choice = completion.choices[0]
        text, stop = choice.message.content or "", choice.finish_reason or "stop"
        told = completion.usage or _Usage()
        usage = Usage(
            _tokens(content) if told.prompt_tokens is None else told.prompt_tokens,
            _tokens(text.encode()) if told.completion_tokens is None else told.completion_tokens,
        )
        if choice.message.refusal:
            return _Trouble(f"the model refuses: {self._said(choice.message.refusal)}", usage, ChatRefused)
        if text.strip():
            return Reply(text, stop, completion.model or self._settings.model, usage)
        if stop == "length":
            return _Trouble("an empty answer at max_tokens: raise it, the model may spend them on thoughts", usage, BadAnswer)
        return _Trouble(f"an empty answer (finish_reason {self._said(stop)})", usage)

    def _advice(self, status: int) -> str:
        settings = self._settings
        match status:
            case 401 if settings.key_env:
                return f"Check the key in the environment variable {settings.key_env}"
            case 401:
                return "It wants a key: export it and name the environment variable in key_env"
            case 403:
                return f"The key may not use {settings.model}: ask for access or choose another model"
            case 404:
                return f"Check base_url (most end in /v1) and that the server has the model {settings.model}"
            case 400 | 422:
                return (
                    'Shorten the messages if they are too long; if it does not know response_format, set json_mode = "prompt"'
                )
        return "Check base_url and the settings of the endpoint"

    def _name(self) -> str:
        return f"{self._settings.model} at {self._settings.base_url}"

    def _said(self, text: str) -> str:
        return excerpt(self._settings, text)


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reads all certificates: once is enough


def backoff(attempt: int, base: float, jitter: random.Random) -> float:
    """Seconds to wait after the n-th failed attempt (from 1): doubling, with up to half as much on top, to spread the crowd."""
    return min(base * 2.0 ** min(attempt - 1, 60), _LONGEST_BACKOFF) * jitter.uniform(1.0, 1.5)


def retry_after(value: str) -> float | None:
    """Seconds of a Retry-After header, given in seconds or as a date. None if it is neither.

    >>> retry_after("2.5")
    2.5
    """
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value.strip()):
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _message(response: httpx.Response) -> str:
    """The `error.message` of a reply, or else its whole text."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        return str(response.json()["error"]["message"])
    return response.text


def _tokens(text: bytes) -> int:
    """A generous guess: tokens of plain English are rather four bytes long."""
    return len(text) // 3 + 1
