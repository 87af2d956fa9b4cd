"""JSON found in what models write."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gongfu.engine.chat.records import BadAnswer
from gongfu.engine.chat.structured import ask, objects, read, repair


class Plan(BaseModel):
    steps: list[str]
    note: str = ""


GOOD = '{"steps": ["go", "take"], "note": "a } in \\"{text"}'
EXPECTED = Plan(steps=["go", "take"], note='a } in "{text')


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Here it is, in {{braces}}:\n{GOOD}\nHope {{that}} helps",
        f'The "plan": {GOOD}',
        f'the quote "is open: {GOOD}',
        f'{{"other": 1}} and {GOOD}',
        f'<think>perhaps {{"steps": []}}, or {{</think>\n{GOOD}',
        GOOD.replace(", ", ",\n\t"),
    ],
)
def test_found(text):
    assert read(text, Plan) == EXPECTED


def test_line_breaks_in_strings_are_forgiven():
    assert read('{"steps": ["one\ntwo"]}', Plan).steps == ["one\ntwo"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no complete JSON object"),
        ("[1, 2]", "no complete JSON object"),
        ('{"steps": [{"steps": []}', "no complete JSON object"),  # a part of an answer is no answer
        ("{steps: []}", "no valid JSON"),
        ('{"steps": 3}', "steps: Input should be a valid array"),
        ('{"steps": [1]}', "steps.0: Input should be a valid string"),
        ('{"steps": ["\\ud800"]}', "the object: Invalid JSON"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "no valid JSON"),
    ],
)
def test_not_found(text, problem):
    with pytest.raises(BadAnswer, match=problem):
        read(text, Plan)


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)), st.text())
def test_any_object_is_found_as_it_is(value: Any, prose: str):
    written = json.dumps({"value": value}, ensure_ascii=False)
    before, after = prose.replace("{", "("), prose
    assert next(objects(before + written + after)) == written


@settings(deadline=None)
@given(st.text(alphabet='{}"\\a:,'))
def test_any_text_is_read_or_refused(text: str):
    try:
        read(text, Plan)
    except BadAnswer as e:
        assert str(e)


def test_a_long_text_takes_no_time():
    started = time.monotonic()
    for piece in ("{", '{"a":', '"', '\\"', "{}", '{"a": 1}'):
        with pytest.raises(BadAnswer):
            read(piece * 4000, Plan)
    assert time.monotonic() - started < 3


def test_the_wish_joins_the_last_message_of_the_user():
    messages, _ = ask([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], Plan, "prompt")
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[1]["content"].startswith("u\n\nAnswer with one JSON object")
    messages, _ = ask([{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}], Plan, "prompt")
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert [m["role"] for m in repair(messages, "bad", "why", Plan)[3:]] == ["assistant", "user"]


def test_the_name_of_a_form_has_the_letters_that_endpoints_allow():
    form = ask([], type("Plan[int]", (Plan,), {}), "schema")[1]
    assert form["json_schema"]["name"] == "Plan_int_"
