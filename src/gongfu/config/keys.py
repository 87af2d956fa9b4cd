"""What keys a pydantic model accepts: nested models, optional ones, unions told apart by a tag, dicts and lists of models."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

KeyPath = tuple[str | int, ...]

ANY_KEY = "*"
"""Stands for a key that the user names himself (of a dict) or an index (of a list)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A type taken apart: what it may be, and the key that tells its models apart."""

    options: tuple[Any, ...]
    tag: str | None = None

    @property
    def models(self) -> list[type[BaseModel]]:
        return [o for o in self.options if isinstance(o, type) and issubclass(o, BaseModel)]

    @property
    def nullable(self) -> bool:
        return types.NoneType in self.options

    def item(self, index: int = 0) -> Any:
        """Type of the values of a dict, or of item `index` of a list or tuple; Any when nothing is known."""
        for option in self.options:
            arguments = get_args(option)
            if not arguments or get_origin(option) is Literal:
                continue
            if get_origin(option) is tuple and arguments[-1] is not Ellipsis:
                return arguments[index] if index < len(arguments) else Any
            return arguments[1] if len(arguments) == 2 and arguments[1] is not Ellipsis else arguments[0]
        return Any

    def variants(self, value: Any) -> list[type[BaseModel]]:
        """Models whose tag may be `value`; all of them when there is no tag or none fits."""
        fitting = [m for m in self.models if value in tags(m, self.tag)] if self.tag else []
        return fitting or self.models


def shape(kind: Any) -> Shape:
    """Takes apart Annotated, unions and type aliases.

    >>> shape(int | None).nullable
    True
    """
    if hasattr(kind, "__value__"):  # type X = ...
        return shape(kind.__value__)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        inner = shape(arguments[0])
        found = (m.discriminator for m in arguments[1:] if isinstance(m, FieldInfo))
        return Shape(inner.options, next((tag for tag in found if isinstance(tag, str)), inner.tag))
    if origin in (Union, types.UnionType):
        parts = [shape(a) for a in arguments]
        return Shape(tuple(o for part in parts for o in part.options), next((p.tag for p in parts if p.tag), None))
    return Shape((types.NoneType if kind is None else kind,))


def field_kind(field: FieldInfo) -> Any:
    """The type of a field with its constraints and its tag."""
    return Annotated[field.annotation, field]


def tags(model: type[BaseModel], tag: str | None) -> tuple[Any, ...]:
    """Values that `model` allows for the key `tag`."""
    field = model.model_fields.get(tag or "")
    return tuple(v for o in shape(field.annotation).options for v in get_args(o)) if field else ()


def dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def keys(kind: Any, seen: tuple[type, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key below `kind`, tables included, over all variants of a union. A model inside itself is not repeated."""
    parts = shape(kind)
    for model in parts.models:
        if model in seen:
            continue
        for name, field in model.model_fields.items():
            yield (name,)
            yield from ((name, *rest) for rest in keys(field_kind(field), (*seen, model)))
    if not parts.models and (item := parts.item()) is not Any:
        yield from ((ANY_KEY, *rest) for rest in keys(item, seen))


def field_path(kind: Any, words: Sequence[str]) -> list[str]:
    """Words with kebab-case made snake_case where they name a field (keys of a dict are the user's own)."""
    path = []
    for word in words:
        parts = shape(kind)
        if parts.models:
            word = word.replace("-", "_")
            owner = next((m for m in parts.models if word in m.model_fields), None)
            kind = field_kind(owner.model_fields[word]) if owner else Any
        else:
            kind = parts.item()
        path.append(word)
    return path


def nearest(path: KeyPath, kind: Any) -> str:
    """The valid dotted key that looks most like `path`, its last word counting as much as the whole.

    A key that the user names (of a dict) is taken from `path`.
    """
    wanted = [str(p) for p in path]
    initials = "".join(word[:1] for word in wanted[-1].split("_"))  # learning_rate -> lr

    def score(key: str) -> tuple[float, str]:
        whole = SequenceMatcher(None, ".".join(wanted), key, autojunk=False).ratio()
        word = key.rpartition(".")[2]
        last = 1.0 if word == initials else SequenceMatcher(None, wanted[-1], word, autojunk=False).ratio()
        return -(whole + last), key

    def named(key: tuple[str, ...]) -> str:
        return ".".join(
            p if p != ANY_KEY else wanted[i] if i < len(wanted) and key[:i] == tuple(wanted[:i]) else "NAME"
            for i, p in enumerate(key)
        )

    return min(map(named, keys(kind)), key=score, default="none: this model has no keys")
