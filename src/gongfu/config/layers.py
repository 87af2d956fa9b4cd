"""Layers of a configuration: trees whose leaves know where they were written."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gongfu.core.errors import ConfigError

BASE = "base"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value with the place it was written in; a higher layer beats a lower one."""

    value: Any
    origin: str
    layer: int
    text: str | None = None
    """As it was written, for a value that is text if the key wants text."""


Tree = dict[str, "Tree | Leaf"]


def grow(data: Mapping[str, Any], origin: str, layer: int) -> Tree:
    """The tree of a whole layer. An empty table is a leaf, so that it too has an origin."""
    return {k: grow(v, origin, layer) if v and isinstance(v, dict) else Leaf(v, origin, layer) for k, v in data.items()}


def override(path: Sequence[str], text: str, origin: str, layer: int) -> Tree:
    """The tree of one override, which writes `text` at `path`."""
    value = literal(text)
    node: Tree | Leaf = grow(value, origin, layer) if value and isinstance(value, dict) else Leaf(value, origin, layer, text)
    for key in reversed(path):
        node = {key: node}
    assert isinstance(node, dict)
    return node


def merge(below: Tree, above: Tree) -> None:
    """Puts `above` over `below`, in place: tables key by key, everything else replaced."""
    for key, node in above.items():
        under = below.get(key)
        if isinstance(node, dict) and isinstance(under, dict):
            merge(under, node)
        elif not (isinstance(under, dict) and isinstance(node, Leaf) and node.value == {}):
            below[key] = node


def newest(node: Tree | Leaf) -> int:
    """Highest layer that wrote in `node`."""
    return node.layer if isinstance(node, Leaf) else max(map(newest, node.values()))


def read_files(files: Sequence[Path | str]) -> list[tuple[str, dict[str, Any]]]:
    """Every base of every file, then the files."""
    bases: list[tuple[str, dict[str, Any]]] = []
    tops: list[tuple[str, dict[str, Any]]] = []
    for file in files:
        *below, top = _read(Path(file), ())
        bases += below
        tops.append(top)
    return bases + tops


def _read(path: Path, asked_by: tuple[Path, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The bases of a file, deepest first, then the file itself."""
    because = f" (base of {asked_by[-1]})" if asked_by else ""
    if path.resolve() in [p.resolve() for p in asked_by]:
        raise ConfigError(f"files that are each other's base: {' -> '.join(map(str, (*asked_by, path)))}")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"cannot read {path}{because}: {e.strerror or e}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}{because} is not TOML: {e}") from None
    bases = data.pop(BASE, [])
    bases = [bases] if isinstance(bases, str) else bases
    if not (isinstance(bases, list) and all(isinstance(b, str) for b in bases)):
        raise ConfigError(f'{path}: base must be a list of file names such as ["other.toml"], got {bases!r}')
    for base in bases:
        yield from _read(path.parent / base, (*asked_by, path))
    yield str(path), data


def read_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(key, text) of each `--key text`, `--key=text` or `key=text`."""
    words = iter(overrides)
    for word in words:
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            following = next(words, None) if word.startswith("--") else None
            if following is None or following.startswith("--"):
                example = f"{word} true" if word.startswith("--") else f"{word}=VALUE, --{word} VALUE"
                raise ConfigError(f"{word} has no value; write {example} (or @FILE for a file)")
            text = following
        yield key, text


def literal(text: str) -> Any:
    """A TOML value, or the text itself where it is none.

    >>> literal("1e-4"), literal("[1, 2]"), literal("household")
    (0.0001, [1, 2], 'household')
    """
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def origins(node: Tree | Leaf) -> list[str]:
    """All who wrote in `node`."""
    if isinstance(node, Leaf):
        return [node.origin]
    return sorted({origin for inner in node.values() for origin in origins(inner)})
