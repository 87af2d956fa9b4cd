"""A skill as a SKILL.md page (agentskills.io): YAML front matter, one paragraph, then sections with fixed titles.

---
name: "lamp-search"
description: "Find a light source first. Use for tasks of kind look."
metadata:
  org.gongfu.id: "139e84f358ecaf87"
---

Find a light source first.

## Plan

1. go to the dresser
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from gongfu.skills.errors import FolderError
from gongfu.skills.skill import Contract, Predicate, Skill, SkillProtocol

DESCRIPTION_LIMIT = 1024
_FRONT_LIMIT = 64 * 2**10
_DEPTH_LIMIT = 8
_SLOTS = {"When it applies": "preconditions", "Plan": "plan", "Done when": "success", "Stop when": "abort"}
_CHANGES = "What changes"
_VERBS = {"adds": "adds", "deletes": "deletes", "event": "events"}
_PREDICATE = re.compile(r"(adds|deletes|event): (.+) \(support (\d+)\)")
_STEP = re.compile(r"\d+\. (.*)")


@dataclass(frozen=True, slots=True)
class Front:
    """The front matter of a page, as far as it says something about the skill."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Body:
    """What a page of ours says."""

    text: str
    protocol: SkillProtocol | None
    contract: Contract | None


def render(skill: Skill, name: str, metadata: Mapping[str, str]) -> str:
    """The page. `name` is that of the folder; all values of the front matter are text."""
    front = [f"name: {_quoted(name)}", f"description: {_quoted(description(skill))}", "metadata:"]
    front += [f"  {key}: {_quoted(value)}" for key, value in metadata.items()]
    blocks = ["\n".join(["---", *front, "---"]), skill.text]
    if skill.protocol is not None:
        for title, slot in _SLOTS.items():
            items = getattr(skill.protocol, slot)
            if items:
                marks = (f"{i}. " if slot == "plan" else "- " for i in range(1, len(items) + 1))
                blocks += [f"## {title}", "\n".join(f"{mark}{item}" for mark, item in zip(marks, items, strict=True))]
    if skill.contract is not None:
        lines = [
            f"- {verb}: {predicate.text} (support {predicate.support})"
            for verb, slot in _VERBS.items()
            for predicate in getattr(skill.contract, slot)
        ]
        blocks += [f"## {_CHANGES}", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def description(skill: Skill) -> str:
    """What the skill does and when to use it, at most 1024 characters."""
    when = f" Use for tasks of kind {skill.kind}." if skill.kind else ""
    room = DESCRIPTION_LIMIT - len(when)
    return (skill.text if len(skill.text) <= room else skill.text[: room - 1].rstrip() + "…") + when


def split(page: str, where: str) -> tuple[Front, str]:
    """Front matter and body of any SKILL.md. Raises FolderError for a page that is not in the format."""
    lines = page.replace("\r\n", "\n").split("\n")
    if lines[0].rstrip() != "---":
        raise FolderError(f"{where} does not begin with front matter (a line ---)")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise FolderError(f"{where} does not end its front matter (a second line ---)")
    data = _load("\n".join(lines[1:end]), where)
    values: list[str] = []
    for key in ("name", "description"):
        value = data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise FolderError(f"{where} has no {key} (a text) in its front matter")
        values.append(value)
    return Front(*values), "\n".join(lines[end + 1 :])


def parse(body: str, where: str) -> Body:
    """What the body of one of our pages says; long lines may have been wrapped by hand. Raises FolderError."""
    lines = [line for line in body.split("\n") if line.strip()]
    if not lines:
        raise FolderError(f"{where} says nothing below its front matter")
    headings = [i for i, line in enumerate(lines) if i > 0 and line.startswith("## ")]
    text = " ".join(lines[: headings[0] if headings else None])
    slots: dict[str, list[str]] = {}
    changes: dict[str, list[Predicate]] = {}
    for start, end in pairwise([*headings, len(lines)]):
        title = lines[start][3:].strip()
        if title in slots or title not in {*_SLOTS, _CHANGES}:
            known = ", ".join([*_SLOTS, _CHANGES])
            raise FolderError(f"{where} has the section {title!r}; there may be one each of {known}")
        slots[title] = _items(lines[start + 1 : end], title, where)
    for item in slots.pop(_CHANGES, []):
        found = _PREDICATE.fullmatch(item)
        if found is None:
            raise FolderError(f'{where}, {_CHANGES}: {item!r} is not like "adds: holding(mug) (support 3)"')
        changes.setdefault(_VERBS[found[1]], []).append(Predicate(found[2], int(found[3])))
    protocol = SkillProtocol(**{_SLOTS[title]: tuple(items) for title, items in slots.items()}) if slots else None
    contract = Contract(**{slot: tuple(predicates) for slot, predicates in changes.items()}) if changes else None
    return Body(text, protocol, contract)


def _items(lines: list[str], title: str, where: str) -> list[str]:
    items: list[str] = []
    for line in lines:
        found = _STEP.fullmatch(line) if title == "Plan" else None
        if found is not None:
            items.append(found[1])
        elif title != "Plan" and line.startswith("- "):
            items.append(line[2:])
        elif items and line[0].isspace():
            items[-1] += " " + line.strip()
        else:
            raise FolderError(f"{where}, {title}: {line[:60]!r} is no item of the list")
    return items


def _quoted(text: str) -> str:
    # Double-quoted YAML. Three hyphens are broken up, as the public validator ends the front matter at them.
    written = "".join(_written(c) for c in text).replace("---", r"--\x2d")
    return f'"{written}"'


def _written(c: str) -> str:
    if c in '"\\':
        return "\\" + c
    if c.isprintable():
        return c
    return f"\\x{ord(c):02x}" if ord(c) < 0x100 else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


class _Loader(yaml.SafeLoader):
    """Plain data only: no aliases (a few lines of them can stand for gigabytes), no depth, no key twice."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        self.depth += 1
        if self.depth > _DEPTH_LIMIT:
            raise yaml.YAMLError(f"it is nested more than {_DEPTH_LIMIT} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(keys) != len(set(keys)):
            raise yaml.YAMLError("a key is given twice")
        return super().construct_mapping(node, deep)


def _load(front: str, where: str) -> dict[Any, Any]:
    if len(front) > _FRONT_LIMIT:
        raise FolderError(f"{where} has more than {_FRONT_LIMIT} characters of front matter")
    try:
        data = yaml.load(front, _Loader)
    except (yaml.YAMLError, ValueError, TypeError) as e:  # the last two: an impossible date, an unhashable key
        raise FolderError(f"{where} has front matter that cannot be read: {' '.join(str(e).split())}") from e
    if not isinstance(data, dict):
        raise FolderError(f"{where} has front matter that is no mapping")
    return data
