"""Records of JSON files that others wrote: a value of the kind that is wanted, or words for what stands there instead."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["field", "shown", "texts", "wanted"]

T = TypeVar("T", str, list, dict)

_KINDS = {str: "a text", list: "a list", dict: "an object"}
_MOST = 40  # characters of a text, keys of an object


def shown(value: Any) -> str:
    """What a JSON value is, in words.

    >>> shown("abc"), shown(3), shown(None), shown([1, 2]), shown({"a": 1})
    ('the text "abc"', 'the number 3', 'null', 'a list of 2', 'an object with the keys a')
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return f'the text "{value}"' if len(value) <= _MOST else f'the text "{value[:_MOST]}..."'
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object with the keys {', '.join([*value][:_MOST])}" if value else "an empty object"
    return f"a {type(value).__name__}"


def wanted(value: Any, kind: type[T], what: str) -> T:
    """`value`, which `what` names. Raises ValueError if it is not of this kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{what} should be {_KINDS[kind]}, but is {shown(value)}")
    return value


def field(record: dict[str, Any], key: str, kind: type[T]) -> T:
    """The value of a key. Raises ValueError if it is not there or not of this kind."""
    if key not in record:
        raise ValueError(f'it lacks the key "{key}" (it is {shown(record)})')
    return wanted(record[key], kind, f'its "{key}"')


def texts(value: Any, what: str) -> tuple[str, ...]:
    """A list of texts. Raises ValueError if it is none."""
    return tuple(wanted(text, str, f"each of {what}") for text in wanted(value, list, what))
