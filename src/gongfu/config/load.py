"""Reads a recipe: files, environment and command line into one strict pydantic model, knowing where each value came from.

Precedence, lowest first: defaults of the model < `base` files < files, left to right < environment < overrides, left to right.

* `base = ["other.toml"]` in a file names files it starts from, relative to its own folder.
* `GONGFU__OPTIM__LR=1e-4` in the environment sets optim.lr.
* `--optim.lr 1e-4`, `--optim.lr=1e-4` or `optim.lr=1e-4` overrides; words may be written kebab-case.

Values of overrides and of the environment are TOML literals, or text where they are not (or where the key wants text). The
text "none" stands for None where a key may be None. Tables merge key by key, everything else is replaced, and so is a dict
that a field has by default. Where a later layer chooses another variant of a tagged union, the keys of earlier layers that
the new variant does not have are dropped, and so are those that do nothing beside a setting of a later layer (`Section.idle`:
the size of a generated shop, once files are given). Every file is a layer, the environment is one and all overrides together
are one: what contradicts itself on the command line is an error. Models are used by field names, without aliases.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from gongfu.config import toml
from gongfu.config.keys import dotted, field_path
from gongfu.config.layers import Tree, grow, merge, override, read_files, read_overrides
from gongfu.config.resolve import Resolution, flatten, plain
from gongfu.core.errors import ConfigError

ENVIRONMENT = "GONGFU__"

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[M]):
    """A checked configuration and the origin of each of its values."""

    config: M
    origins: dict[str, str]
    """Dotted key -> path of a file, "environment variable X", "override --x", or "default"."""


def load(
    model: type[M], files: Sequence[Path | str] = (), overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded[M]:
    """Builds `model` from `files`, `environ` (None: no environment) and `overrides` (words as on a command line).

    Raises ConfigError that lists every unknown key with its origin and the nearest valid key, or else every value that
    does not fit as "key: problem (value X from ORIGIN)".
    """
    layers: list[Tree] = []
    for origin, data in read_files(files):
        layers.append(grow(data, origin, len(layers)))
    layer = len(layers)
    for name, text in sorted((environ or {}).items()):
        if name.startswith(ENVIRONMENT):
            path = field_path(model, name.removeprefix(ENVIRONMENT).lower().split("__"))
            layers.append(override(path, text, f"environment variable {name}", layer))
    for key, text in read_overrides(overrides):
        layers.append(override(field_path(model, key.split(".")), text, f"override --{key}", layer + 1))
    return _build(model, layers)


def to_toml(model: BaseModel) -> str:
    """All settings of `model` as TOML that `load` reads back to an equal model. Raises ConfigError if that is impossible."""
    data = plain(model)
    text = toml.write(data)
    again = plain(_build(type(model), [grow(tomllib.loads(text), "the written recipe", 0)]).config)
    # compared as printed: 1 and 1.0 are different settings, and NaN is the same as NaN
    before, after = ({key: repr(value) for key, value in flatten(d)} for d in (data, again))
    if before != after:
        lost = sorted(dotted(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        raise ConfigError(f"cannot be written as TOML and read back: {', '.join(lost)}")
    return text


def _build(model: type[M], layers: Sequence[Tree]) -> Loaded[M]:
    tree: Tree = {}
    for layer in layers:
        merge(tree, layer)
    resolution = Resolution(model, tree)
    resolution.raise_problems()
    try:
        # The strictness of JSON: "3" is no number and true no integer, but a list may be a tuple and a text a path.
        config = model.model_validate_json(to_json(resolution.data, inf_nan_mode="constants"), strict=True)
    except ValidationError as e:
        resolution.raise_problems(e.errors(include_url=False))
        raise
    return Loaded(config, {dotted(path): resolution.origin(path) for path, _ in flatten(plain(config))})
