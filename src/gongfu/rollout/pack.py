"""A trajectory as JSON values that do not grow with the square of its length.

In an append context every prompt repeats the whole episode so far. A call's prompt is therefore kept as {"shared": k,
"tokens": [...]}: the first k tokens of the previous call's prompt + response, then these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gongfu.core.records import Trajectory, from_json, to_json


def pack(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as JSON values (tuples become lists when written)."""
    prompts: list[dict[str, Any]] = []
    bare = []
    before: tuple[int, ...] = ()
    for turn in trajectory.turns:
        if turn.call is not None:
            shared = _shared(before, turn.call.prompt)
            prompts.append({"shared": shared, "tokens": turn.call.prompt[shared:]})
            before = turn.call.prompt + turn.call.response
            turn = replace(turn, call=replace(turn.call, prompt=()))
        bare.append(turn)
    data = to_json(replace(trajectory, turns=tuple(bare)))
    calls = [turn["call"] for turn in data["turns"] if turn["call"] is not None]
    for call, prompt in zip(calls, prompts, strict=True):
        call["prompt"] = prompt
    return data


def unpack(data: dict[str, Any]) -> Trajectory:
    """What `pack` was given. Raises ValueError, TypeError or KeyError for what it did not make."""
    before: list[int] = []
    for turn in data["turns"]:
        if (call := turn["call"]) is not None:
            shared = call["prompt"]["shared"]
            if not 0 <= shared <= len(before):
                raise ValueError(f"a prompt shares {shared} tokens with a call of {len(before)}")
            call["prompt"] = before[:shared] + call["prompt"]["tokens"]
            before = call["prompt"] + call["response"]
    return from_json(Trajectory, data)


def _shared(before: tuple[int, ...], prompt: tuple[int, ...]) -> int:
    """Length of the common prefix."""
    if prompt[: len(before)] == before:  # the usual case, compared in C
        return len(before)
    pairs = enumerate(zip(before, prompt, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(before), len(prompt)))
