"""Settings of a chat endpoint."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, model_validator

from gongfu.config.section import Positive, Section


class ChatConfig(Section):
    """An OpenAI-compatible chat endpoint of a frozen model: a teacher, a critic, an opponent."""

    model_config = ConfigDict(hide_input_in_errors=True)  # it might be a key, in the wrong place

    base_url: str = "http://127.0.0.1:8000/v1"
    """Of the API; "/chat/completions" is added to it."""
    model: str = Field(min_length=1)
    key_env: str = ""
    """Name of the environment variable that holds the key; empty = the server wants none."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Dead-line of one attempt, seconds."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Dead-line of one request with all its attempts and pauses, seconds; it begins with the request's turn."""
    max_attempts: Positive = 5
    backoff_s: float = Field(default=1.0, gt=0)
    """Pause after a failed attempt, seconds; it doubles up to 30 and has up to half as much jitter on top."""
    concurrency: Positive = 4
    """Requests in flight."""
    max_tokens: Positive = 1024
    """Longest answer."""
    temperature: float = Field(default=0.0, ge=0)
    json_mode: Literal["schema", "object", "prompt"] = "schema"
    """How an answer of a given form is asked for: response_format json_schema; json_object and the prompt; the prompt alone."""
    cache: Literal["read-write", "replay-only", "off"] = "read-write"
    """replay-only: recorded answers or an error, no key and no connection."""
    budget_tokens: int = Field(default=0, ge=0)
    """Most tokens to spend, in and out; 0 = no bound."""
    budget_usd: float = Field(default=0.0, ge=0)
    """Most money to spend; 0 = no bound."""
    price_in: float = Field(default=0.0, ge=0)
    """USD for a million tokens of messages."""
    price_out: float = Field(default=0.0, ge=0)
    """USD for a million tokens of answers."""

    @model_validator(mode="after")
    def _fits(self) -> ChatConfig:
        try:
            url = urlsplit(self.base_url)
            usable = bool(url.hostname) and url.port != 0
        except ValueError:  # its message would show the address
            url, usable = urlsplit(""), False
        if not usable or url.scheme not in ("http", "https"):
            raise ValueError('base_url must look like "http://127.0.0.1:8000/v1"')
        if url.username is not None or url.query or url.fragment:
            raise ValueError(
                "base_url may hold no name, password, query or fragment; a key goes into the variable key_env names"
            )
        if self.key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.key_env):
            raise ValueError("key_env is the name of an environment variable, in capitals, never the key itself")
        if self.budget_usd and not (self.price_in or self.price_out):
            raise ValueError("budget_usd counts nothing without price_in or price_out")
        return self
