"""What no engine can answer."""

from __future__ import annotations

from gongfu.core.errors import EngineError
from gongfu.engine.protocol import SampleRequest


def refusal(request: SampleRequest, *, positions: int, vocab_size: int) -> EngineError | None:
    """The error that is the answer to a request that a model with so many positions and tokens cannot have."""
    room = len(request.prompt) + request.max_tokens
    if request.choices is not None:
        if not request.choices or not all(request.choices):
            return EngineError("a request to choose needs choices, each with at least one token")
        room = len(request.prompt) + max(map(len, request.choices))
    if not request.prompt:
        return EngineError("the prompt is empty; give at least one token")
    if request.max_tokens < 1 or request.n < 1 or request.temperature < 0:
        return EngineError(
            f"max_tokens and n must be at least 1 and temperature at least 0, got {request.max_tokens}, {request.n}, "
            f"{request.temperature}"
        )
    if room > positions:
        return EngineError(
            f"the prompt has {len(request.prompt)} tokens and needs {room} with its response, but the model has "
            f"{positions} positions; shorten the context"
        )
    for ids in (request.prompt, *(request.choices or ())):
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            return EngineError(f"token ids outside the vocabulary of {vocab_size}")
    return None
