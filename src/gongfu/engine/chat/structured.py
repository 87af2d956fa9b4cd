"""Answers that have to be JSON: how they are asked for, found, validated and sent back for repair."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from gongfu.engine.chat.records import BadAnswer, Messages

A = TypeVar("A", bound=BaseModel)

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}]', re.DOTALL)


def ask(
    messages: Messages, answer: type[BaseModel], mode: Literal["schema", "object", "prompt"]
) -> tuple[Messages, dict[str, Any] | None]:
    """The messages and the `response_format` that ask for an `answer`."""
    if mode == "schema":
        # Not "strict": that mode forbids optional fields and free-form tables, and the answer is validated here anyway.
        name = re.sub(r"[^A-Za-z0-9_-]", "_", answer.__name__)[:64]
        return messages, {"type": "json_schema", "json_schema": {"name": name, "schema": answer.model_json_schema()}}
    wish = _wish(answer)
    if messages and messages[-1]["role"] == "user":  # many chat templates refuse two messages of the user in a row
        last = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{wish}"}
        messages = [*messages[:-1], last]
    else:
        messages = [*messages, {"role": "user", "content": wish}]
    return messages, {"type": "json_object"} if mode == "object" else None


def read(text: str, answer: type[A]) -> A:
    """The first JSON object that fits, looked for behind a reasoning model's thoughts. Raises BadAnswer with what is wrong."""
    problem = "it holds no complete JSON object"
    for found in objects(text.rpartition("</think>")[2]):
        try:
            value = json.loads(found, strict=False)  # models put line breaks into strings
            return answer.model_validate_json(json.dumps(value))
        except ValidationError as e:
            errors = e.errors(include_url=False, include_input=False)
            problem = "; ".join(f"{'.'.join(map(str, error['loc'])) or 'the object'}: {error['msg']}" for error in errors)
        except (ValueError, RecursionError) as e:
            problem = f"it is no valid JSON: {e}"
    raise BadAnswer(problem)


def repair(messages: Messages, text: str, problem: str, answer: type[BaseModel]) -> Messages:
    """The conversation that shows the model what is wrong with its answer."""
    wish = f"This answer cannot be used: {problem}.\n{_wish(answer)}"
    return [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": wish}]


def objects(text: str) -> Iterator[str]:
    """Every stretch from a "{" to its matching "}", left to right, braces in strings not counted.

    >>> list(objects('so: {"a": {"b": "}"}}, or {c}'))
    ['{"a": {"b": "}"}}', '{c}']
    """
    start = text.find("{")
    while start >= 0:
        depth, end = 0, -1
        for token in _TOKEN.finditer(text, start):
            depth += {"{": 1, "}": -1}.get(token[0], 0)
            if depth == 0:
                end = token.end()
                break
        if end < 0:  # cut off: what lies inside is a part of the answer, not the answer
            return
        yield text[start:end]
        start = text.find("{", end)


def _wish(answer: type[BaseModel]) -> str:
    schema = json.dumps(answer.model_json_schema(), ensure_ascii=False)
    return f"Answer with one JSON object and nothing else. It has to fit this JSON schema:\n{schema}"
