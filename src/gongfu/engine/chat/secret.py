"""The key of an endpoint: read when it is needed, held by no object, shown in no text."""

from __future__ import annotations

import os

from gongfu.config.schema import ChatConfig
from gongfu.engine.chat.records import ChatError


def read_key(settings: ChatConfig) -> str:
    """The key, or "" where none is set. Raises ChatError for what no HTTP header can carry."""
    key = os.environ.get(settings.key_env, "").strip() if settings.key_env else ""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ChatError(f"the environment variable {settings.key_env} holds no key: it has characters that no key has")
    return key


def excerpt(settings: ChatConfig, text: str, length: int = 200) -> str:
    """The first characters of a text on one line, the key blacked out."""
    if key := read_key(settings):
        text = text.replace(key, "***")
    return " ".join(text.split())[:length]
