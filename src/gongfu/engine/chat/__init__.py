"""Frozen teachers, critics and opponents behind OpenAI-compatible chat endpoints: sampled, never trained. Imports no torch."""

from gongfu.engine.chat.client import ChatClient
from gongfu.engine.chat.records import (
    BadAnswer,
    BudgetSpent,
    CacheMiss,
    ChatAnswer,
    ChatCounters,
    ChatError,
    ChatRefused,
    ChatRequest,
    ChatUnavailable,
    Usage,
)

__all__ = [
    "BadAnswer",
    "BudgetSpent",
    "CacheMiss",
    "ChatAnswer",
    "ChatClient",
    "ChatCounters",
    "ChatError",
    "ChatRefused",
    "ChatRequest",
    "ChatUnavailable",
    "Usage",
]
