"""How a proposal is written and read back.

tagged   <op>ADD</op><skill>text</skill>; KEEP has the text "none". The prompt may end with "<op>", so that the operation is the
         first token that is sampled.
plain    add <text>, update <text>, or keep: for small models, one word for the operation and nothing else around.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from gongfu.methods.uniskill.records import Op, Parsed

ProposalFormat = Literal["plain", "tagged"]

LABELS: Mapping[ProposalFormat, Mapping[Op, str]] = {
    "plain": {"ADD": "add", "UPDATE": "update", "KEEP": "keep"},
    "tagged": {"ADD": "ADD", "UPDATE": "UPDATE", "KEEP": "KEEP"},
}
OPENING: Mapping[ProposalFormat, str] = {"plain": "", "tagged": "<op>"}
"""What the prompt may be prefilled with."""

_NONE = "none"
_TAG = re.compile(r"</?(?:op|skill)>")
_TAGGED = re.compile(r"\s*<op>(.*?)</op>\s*<skill>(.*?)</skill>\s*", re.DOTALL)


def write_proposal(format: ProposalFormat, op: Op, text: str = "") -> str:
    """The answer a teacher would give (without the prefilled opening)."""
    label = LABELS[format][op]
    if format == "plain":
        return label if op == "KEEP" else f"{label} {text}"
    return f"{label}</op><skill>{_NONE if op == 'KEEP' else text}</skill>"


def parse_proposal(format: ProposalFormat, answer: str, *, finished: bool) -> Parsed:
    """Read an answer. `answer` includes the prefilled opening; `finished` is False when its length cut it off.

    Strict: exactly one operation and one text, nothing around. KEEP must have no text and an edit must have one. White space in
    the text is collapsed. An UPDATE where no skill was shown is well written all the same: its operation is judged wrong later.
    """
    if not finished:
        return Parsed(None, problem="cut by the length limit")
    if format == "plain":
        word, _, text = answer.strip().partition(" ")
    else:
        match = _TAGGED.fullmatch(answer)
        if match is None or len(_TAG.findall(answer)) != 4:
            return Parsed(None, problem="not one <op> block followed by one <skill> block")
        word, text = match[1].strip(), match[2]
    operations: dict[str, Op] = {label: op for op, label in LABELS[format].items()}
    op = operations.get(word)
    text = " ".join(text.split())
    if format == "tagged" and op == "KEEP":
        text = "" if text == _NONE else text or "(nothing)"
    if op is None:
        return Parsed(None, problem=f"unknown operation {word[:20]!r}")
    if op == "KEEP" and text:
        return Parsed(None, problem="keep with a text")
    if op != "KEEP" and (not text or text.lower() == _NONE):
        return Parsed(None, problem="an edit without a text")
    return Parsed(op, text)
