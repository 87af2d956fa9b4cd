import pytest

from gongfu.rollout.actions import parse_action, write_action

LISTED = ("go to fridge 1", "look")


def parse(format, text, finished=True, admissible=LISTED):
    return parse_action(format, text, finished=finished, admissible=admissible)


def test_plain_action_is_the_whole_text():
    parsed = parse("plain", " go to fridge 1 ")
    assert parsed.action == "go to fridge 1" and parsed.validity.ok and parsed.span == (1, 15)


@pytest.mark.parametrize(
    ("text", "finished", "format", "admissible", "reason"),
    [
        ("go to fridge 9", True, True, False, "not an admissible action"),
        ("go to fridge 1", False, False, True, "cut by the length limit"),
        ("", True, False, False, "empty"),
        ("   ", True, False, False, "empty"),
        ("look\nlook", True, False, False, "more than one line"),
    ],
)
def test_plain_faults(text, finished, format, admissible, reason):
    validity = parse("plain", text, finished).validity
    assert (validity.format, validity.admissible, validity.reason) == (format, admissible, reason)


def test_tagged_action_and_its_span():
    text = "<think>cold things</think> <action> look </action>"
    parsed = parse("tagged", text)
    assert parsed.validity.ok and parsed.action == "look"
    assert text[slice(*parsed.span)] == "look"


@pytest.mark.parametrize(
    "text",
    [
        "look",
        "<action>look</action>",
        "<think>a</think>",
        "<action>look</action><think>a</think>",
        "<think>a</think><action>look</action> done",
        "<think>a</think><action>look</action><action>look</action>",
        "<think> </think><action>look</action>",
        "<think>a</think><action> </action>",
        "<think>a<think>b</think></think><action>look</action>",
    ],
)
def test_tagged_faults(text):
    assert not parse("tagged", text).validity.format


@pytest.mark.parametrize("format", ["plain", "tagged"])
@pytest.mark.parametrize("action", LISTED)
def test_what_a_demonstrator_writes_is_read_back(format, action):
    parsed = parse(format, write_action(format, action))
    assert parsed.action == action and parsed.validity.ok


def test_without_a_list_every_action_is_admissible():
    assert parse("plain", "anything", admissible=None).validity.ok


@pytest.mark.parametrize(
    ("action", "admissible"),
    [
        ("search[red shoes]", True),
        ("search[<your query>]", True),
        ("search[]", False),
        ("search[ ]", False),
        ("search[red shoes", False),
        ("click[<b>]", True),
        ("click[red]", False),
    ],
)
def test_any_words_fill_an_open_place(action, admissible):
    assert parse("plain", action, admissible=("search[<your query>]", "click[<b>]")).validity.admissible is admissible
