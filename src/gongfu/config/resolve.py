"""From the merged layers to the data of one model, and from what is wrong with them to sentences about keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_json, to_jsonable_python

from gongfu.config import toml
from gongfu.config.keys import KeyPath, dotted, field_kind, nearest, shape, tags
from gongfu.config.layers import Leaf, Tree, grow, newest, origins
from gongfu.config.section import Section
from gongfu.core.errors import ConfigError

DEFAULT = "default"

_BRACKETS = {
    "{": 'a table as {size = 3}, or text in quotes of its own: "{..."',
    "[": 'a list as [1, "two"], or text in quotes of its own: "[..."',
}
"""Beginnings of values that are no text, unless a key wants text: how they are written."""


class Resolution:
    """The data of one model out of its merged layers, with the problems found on the way."""

    def __init__(self, model: type[BaseModel], tree: Tree) -> None:
        self._model = model
        self._leaves: dict[KeyPath, Leaf] = {}
        self._problems: list[str] = []
        self.data = self._table(model, tree, (), None)

    def origin(self, path: KeyPath) -> str:
        """Where the value at `path` came from; a value inside a list came with the list."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._leaves:
                return self._leaves[path[:length]].origin
        return DEFAULT

    def raise_problems(self, errors: Sequence[ErrorDetails] = ()) -> None:
        """Raises ConfigError that lists every unknown key, or else every one of pydantic's `errors`."""
        problems = [*self._problems, *self._sentences(errors)]
        if len(problems) == 1:
            raise ConfigError(problems[0])
        if problems:
            raise ConfigError("\n  - ".join([f"{len(problems)} problems in the configuration:", *problems]))

    def _table(self, kind: Any, tree: Tree, path: KeyPath, default: Any) -> dict[str, Any]:
        """Data of a table; what it leaves open is taken from `default`, if that is a model of the same variant."""
        parts = shape(kind)
        if not parts.models:
            return {key: self._node(parts.item(), node, (*path, key), None) for key, node in tree.items()}
        chosen = tree.get(parts.tag) if parts.tag else None
        variants = parts.variants(chosen.value if isinstance(chosen, Leaf) else None)
        start: dict[str, Any] = {}
        if isinstance(default, BaseModel) and (parts.models == [type(default)] or _same_variant(default, parts.tag, chosen)):
            variants = [type(default)]
            start = {name: getattr(default, name) for name in type(default).model_fields}
        data: dict[str, Any] = {}
        idle = _idle(variants, tree)
        for key, node in tree.items():
            if newest(node) < idle.get(key, 0):
                continue
            owner = next((m for m in variants if key in m.model_fields), None)
            if owner is not None:
                field = owner.model_fields[key]
                data[key] = self._node(field_kind(field), node, (*path, key), start.get(key, _default(field)))
                continue
            others = [m for m in parts.models if key in m.model_fields]
            if not (others and isinstance(chosen, Leaf) and newest(node) < chosen.layer):
                self._unknown((*path, key), node, parts.tag, others, variants)
        return {name: plain(value) for name, value in start.items() if name not in data} | data

    def _node(self, kind: Any, node: Tree | Leaf, path: KeyPath, default: Any) -> Any:
        if not isinstance(node, Leaf):
            return self._table(kind, node, path, default)
        self._leaves[path] = node
        value = node.value
        if value == {}:
            return self._table(kind, {}, path, default)
        if node.text is not None and not isinstance(value, str) and not _fits(kind, value) and _fits(kind, node.text):
            value = node.text  # --run.name 2024
        if isinstance(value, str) and value == node.text and value[:1] in _BRACKETS and (kind is Any or not _fits(kind, value)):
            self._problems.append(f"{dotted(path)}: {value} from {node.origin} is no TOML; write {_BRACKETS[value[0]]}")
        return self._value(kind, value, node, path)

    def _value(self, kind: Any, value: Any, leaf: Leaf, path: KeyPath) -> Any:
        parts = shape(kind)
        if isinstance(value, str) and value == toml.NONE and parts.nullable:
            return None
        if isinstance(value, dict):
            return self._table(kind, grow(value, leaf.origin, leaf.layer), path, None)
        if isinstance(value, list):
            return [self._value(parts.item(i), item, leaf, (*path, i)) for i, item in enumerate(value)]
        return value

    def _unknown(
        self,
        path: KeyPath,
        node: Tree | Leaf,
        tag: str | None,
        others: Sequence[type[BaseModel]],
        variants: Sequence[type[BaseModel]],
    ) -> None:
        while not isinstance(node, Leaf) and len(node) == 1 and not others:  # a table of one key: name the key
            ((key, node),) = node.items()
            path = (*path, key)
        if others:
            theirs, ours = (", ".join(toml.value(v) for m in models for v in tags(m, tag)) for models in (others, variants))
            hint = f"it belongs to {tag} = {theirs}, but {tag} is {ours} here"
        else:
            hint = f"the nearest valid key is {nearest(path, self._model)}"
        self._problems.append(f"unknown key {dotted(path)} (from {', '.join(origins(node))}); {hint}")

    def _sentences(self, errors: Sequence[ErrorDetails]) -> list[str]:
        """One sentence a key: the options of a union fail one by one, but their key is one."""
        messages: dict[KeyPath, list[str]] = {}
        sources: dict[KeyPath, str] = {}
        for error in errors:
            path = _path_of(error, self.data)
            message = _message(error)
            sources.setdefault(path, self._source(path, error))
            if message not in messages.setdefault(path, []):
                messages[path].append(message)
        return [f"{dotted(p) or self._model.__name__}: {', or '.join(m)}{sources[p]}" for p, m in messages.items()]

    def _source(self, path: KeyPath, error: ErrorDetails) -> str:
        """The value that is wrong and who wrote it; for a whole table all who wrote in it."""
        if path in self._leaves:
            return f" (value {toml.value(plain(self._leaves[path].value))} from {self.origin(path)})"
        if not isinstance(error["input"], (dict, BaseModel)):
            return f" (value {toml.value(plain(error['input']))} from {self.origin(path)})"
        below = sorted({leaf.origin for key, leaf in self._leaves.items() if key[: len(path)] == path})
        return f" (set by {', '.join(below)})" if below else ""


def plain(item: Any) -> Any:
    """A model as dicts by field name, lists, str, numbers, bool and None."""
    if isinstance(item, BaseModel):
        return {name: plain(getattr(item, name)) for name in type(item).model_fields}
    if isinstance(item, Mapping):
        return {str(to_jsonable_python(k)): plain(v) for k, v in item.items()}
    if isinstance(item, (set, frozenset)):
        return sorted(map(plain, item), key=repr)
    if isinstance(item, (list, tuple)):
        return [plain(v) for v in item]
    return to_jsonable_python(item)


def flatten(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """(path, value) of everything that is not a table; an empty table counts as a value."""
    if isinstance(data, dict) and (data or not path):
        for key, value in data.items():
            yield from flatten(value, (*path, key))
    else:
        yield path, data


def _same_variant(default: BaseModel, tag: str | None, chosen: Tree | Leaf | None) -> bool:
    """Does a table that says `chosen` for its tag, or nothing, go on from `default`?"""
    if tag is None:
        return False
    return chosen is None or (isinstance(chosen, Leaf) and chosen.value == getattr(default, tag))


def _idle(variants: Sequence[type[BaseModel]], tree: Tree) -> dict[str, int]:
    """Key -> the layer of the setting beside which it does nothing."""
    found: dict[str, int] = {}
    for model in variants if len(variants) == 1 else ():
        for setting, names in model.idle.items() if issubclass(model, Section) else ():
            leaf = tree.get(setting)
            if isinstance(leaf, Leaf):
                found |= {name: max(leaf.layer, found.get(name, 0)) for name in names(leaf.value)}
    return found


def _default(field: FieldInfo) -> Any:
    return None if field.default_factory_takes_validated_data else field.get_default(call_default_factory=True)


def _fits(kind: Any, value: Any) -> bool:
    try:
        TypeAdapter(kind).validate_json(to_json(value, inf_nan_mode="constants"), strict=True)
    except ValidationError:
        return False
    return True


def _message(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing" if isinstance(error["loc"][-1], int):
            return "has too few items"
        case "missing" | "union_tag_not_found":
            return "is required and was set nowhere"
        case "union_tag_invalid":
            return f"must be one of {context['expected_tags']}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "should be a table"
        case "value_error" | "assertion_error":
            return str(context["error"])
    return error["msg"].replace("Input should", "should", 1)


def _path_of(error: ErrorDetails, data: Any) -> KeyPath:
    """The key an error is about: its location without the names of union variants, which are no keys."""
    path: list[str | int] = []
    for part in error["loc"]:
        inside: Mapping[Any, Any] = dict(enumerate(data)) if isinstance(data, list) else data if isinstance(data, dict) else {}
        if part in inside:
            path.append(part)
            data = inside[part]
    if error["type"] == "missing" and isinstance(error["loc"][-1], str):
        path.append(error["loc"][-1])
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        path.append(error.get("ctx", {})["discriminator"].strip("'"))
    return tuple(path)
