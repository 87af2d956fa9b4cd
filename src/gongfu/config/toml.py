"""A deterministic TOML writer for plain values. TOML has no null: None is written as the string "none"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

NONE = "none"

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write(table: Mapping[str, Any]) -> str:
    """TOML of nested dicts, lists, str, int, float, bool and None, keys in the given order.

    >>> print(write({"a": 1, "b": {"c": [0.5, "x"]}}), end="")
    a = 1
    <BLANKLINE>
    [b]
    c = [0.5, "x"]
    """
    return "\n".join(_table(table, ())).lstrip("\n") + "\n"


def value(item: Any) -> str:
    """One value on one line. Raises TypeError for what TOML cannot hold."""
    match item:
        case None:
            return f'"{NONE}"'
        case bool():
            return "true" if item else "false"
        case str():
            return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007F")  # JSON's escapes are TOML's, but for DEL
        case int() | float():
            return repr(item)  # shortest that reads back the same; inf and nan are TOML too
        case Mapping():
            return "{" + ", ".join(f"{_key(k)} = {value(v)}" for k, v in item.items()) + "}"
        case Sequence():
            return "[" + ", ".join(map(value, item)) + "]"
    raise TypeError(f"TOML cannot hold {item!r} of type {type(item).__name__}")


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    """Lines of a table: its values first, then its tables, since a header ends what stands above it."""
    lines = [f"{_key(k)} = {value(v)}" for k, v in table.items() if not isinstance(v, Mapping)]
    if path and (lines or not table):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            lines += _table(inner, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else value(key)
