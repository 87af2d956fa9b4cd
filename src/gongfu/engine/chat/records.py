"""What goes to a chat endpoint, what comes back, what it cost, and what can go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from gongfu.core.errors import EngineError

Messages = Sequence[Mapping[str, str]]
"""A conversation: {"role": ..., "content": ...} each."""


@dataclass(frozen=True, slots=True)
class Usage:
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out)

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.tokens_in - other.tokens_in, self.tokens_out - other.tokens_out)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One thing to ask; None stands for the client's setting."""

    messages: Messages
    answer: type[BaseModel] | None = None
    """What the answer has to be; None = free text."""
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    """Sent along, and a part of the request's identity: the cache gives requests that differ in it different answers."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The endpoint's answer to one request, as it is kept in the cache."""

    text: str
    stop: str
    model: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    text: str
    parsed: Any
    """The validated instance of the model that was asked for; None for free text."""
    stop: str
    """Why the endpoint ended the text: "stop", or "length" where it is cut off at max_tokens."""
    usage: Usage
    """Of all requests it took; for a cached answer those of its recording."""
    cached: bool
    """Whether no request was sent for it."""
    latency_s: float
    """From the call to the answer, waiting for a turn, retries and repairs included."""
    model: str
    """As the endpoint names it."""


@dataclass(slots=True)
class ChatCounters:
    """Sums since the client was made."""

    requests: int = 0
    """HTTP requests sent."""
    retries: int = 0
    """Of these, repetitions after a failure that may pass."""
    repairs: int = 0
    """Answers sent back to the model because they did not fit."""
    cache_hits: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    """As reported, else estimated. An answer that was lost on the way counts with its estimate: it may be billed."""
    usd: float = 0.0
    failures: int = 0
    """Calls without an answer."""
    seconds: float = 0.0
    """Spent on requests, summed over those in parallel."""


class ChatError(EngineError):
    """A call has no answer. Its message never holds the key."""


class ChatRefused(ChatError):
    """The endpoint or the model refuses the request as it is; repeating it is useless."""


class ChatUnavailable(ChatError):
    """No reply within the attempts or before the dead-line."""


class BadAnswer(ChatError):
    """The model answers, but not with what it was asked for."""


class BudgetSpent(ChatError):
    """What is left of the budget does not cover the request; it was not sent."""


class CacheMiss(ChatError):
    """Only recorded answers may be used and this request has none."""
