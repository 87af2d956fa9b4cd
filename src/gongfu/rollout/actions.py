"""How an action is written in a response, and how it is read back."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from gongfu.core.records import Validity

ActionFormat = Literal["plain", "tagged"]

_TAG = re.compile(r"</?(?:think|action)>")
_OPEN = re.compile(r"<your [a-z ]+>")
_TAGGED = re.compile(r"\s*<think>(.+?)</think>\s*<action>(.+?)</action>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedAction:
    action: str
    """What the environment is given; the whole text when the format is wrong."""
    validity: Validity
    span: tuple[int, int]
    """Characters of the response text that hold the action."""


def instruction(format: ActionFormat) -> str:
    """The sentence that tells the agent how to answer."""
    if format == "plain":
        return "Answer with one action and nothing else."
    return "First think inside <think> </think>, then give one action inside <action> </action>."


def write_action(format: ActionFormat, action: str, thought: str = "") -> str:
    """The response text a demonstrator would give for `action`."""
    return action if format == "plain" else f"<think>{thought or 'I choose the next action.'}</think><action>{action}</action>"


def parse_action(format: ActionFormat, text: str, *, finished: bool, admissible: Collection[str] | None) -> ParsedAction:
    """Read the action out of a response.

    `text` is the response without its end token, `finished` says whether it had one (a response cut by its length has a
    wrong format). "plain": the whole text is the action, on one line. "tagged": exactly one think block, then exactly one
    action block, nothing around (the strict rule of UniSkill's reference code). Format and admissibility are judged apart.
    An admissible action may leave a place open, "search[<your query>]", which any words fill.
    """
    start, end = _strip(text, 0, len(text))
    problem = ""
    if not finished:
        problem = "cut by the length limit"
    elif start == end:
        problem = "empty"
    elif format == "plain":
        if "\n" in text[start:end]:
            problem = "more than one line"
    else:
        match = _TAGGED.fullmatch(text)
        if match is None or len(_TAG.findall(text)) != 4 or not match[1].strip() or not match[2].strip():
            problem = "not one <think> block followed by one <action> block"
        else:
            start, end = _strip(text, *match.span(2))
    action = text[start:end]
    listed = admissible is None or action in admissible or any(_fills(action, open) for open in admissible)
    reason = problem or ("" if listed else "not an admissible action")
    return ParsedAction(action, Validity(format=not problem, admissible=listed, reason=reason), (start, end))


def _fills(action: str, admissible: str) -> bool:
    """Whether an action is an admissible one with its open place <...> filled."""
    slot = _OPEN.search(admissible)
    if slot is None:
        return False
    before, after = admissible[: slot.start()], admissible[slot.end() :]
    filling = action[len(before) : len(action) - len(after)]
    return action == f"{before}{filling}{after}" and bool(filling.strip())


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends (empty at `start` when nothing is left)."""
    inner = text[start:end]
    if not inner.strip():
        return start, start
    return start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())
