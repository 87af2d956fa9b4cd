"""The chat client against an endpoint that misbehaves: retries, pauses, dead-lines, refusals."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from chat_stub import Cut, Drips, Fails, Raw, Says, Silent, Stub, in_turn
from gongfu.config.schema import ChatConfig
from gongfu.engine.chat import ChatClient, ChatRefused, ChatRequest, ChatUnavailable
from gongfu.engine.chat.endpoint import backoff, retry_after


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def client_of(url, **settings):
    defaults = {"model": "m", "cache": "off", "timeout_s": 5.0, "deadline_s": 10.0, "backoff_s": 0.01}
    return ChatClient(ChatConfig(base_url=url, **{**defaults, **settings}))


def ask(client, text="Which room?"):
    return asyncio.run(client.complete([{"role": "user", "content": text}])).text


PASSING = {
    **{f"{status}": Fails(status) for status in (408, 409, 429, 500, 502, 503, 529)},
    "cut body": Cut(),
    "no JSON": Raw('{"choices": [{"message": {"content": "The ki'),
    "an error with status 200": Raw('{"error": {"message": "overloaded"}}'),
    "no choices": Raw('{"choices": []}'),
    "an empty answer": Says(""),
    "a blank answer": Says(" \n"),
    "no content": Says(None),
}


@pytest.mark.parametrize("act", PASSING.values(), ids=PASSING.keys())
def test_what_may_pass_is_tried_again(act):
    with Stub(in_turn(act, act, "The kitchen.")) as stub:
        client = client_of(stub.url)
        assert ask(client) == "The kitchen."
    assert len(stub.seen) == 3
    assert (client.counters.requests, client.counters.retries, client.counters.failures) == (3, 2, 0)
    assert stub.seen[0].body == stub.seen[2].body


def test_attempts_end_with_the_last_trouble():
    with Stub(Fails(503, '{"error": {"message": "the model is\\n loading"}}')) as stub:
        client = client_of(stub.url, max_attempts=3)
        with pytest.raises(ChatUnavailable) as raised:
            ask(client)
    assert str(raised.value) == (
        f"m at {stub.url} gave no usable reply in 3 attempts (max_attempts); the last: HTTP 503: the model is loading"
    )
    assert len(stub.seen) == 3
    assert client.counters.failures == 1


@pytest.mark.parametrize(
    ("status", "todo"),
    [
        (400, 'json_mode = "prompt"'),
        (401, "name the environment variable in key_env"),
        (403, "The key may not use m"),
        (404, r"Check base_url \(most end in /v1\) and that the server has the model m"),
        (413, "Check base_url"),
        (302, "Check base_url"),
    ],
)
def test_what_will_not_pass_fails_at_once(status, todo):
    act = Fails(status, '{"error": {"message": "because"}}', {"Location": "http://127.0.0.1:9/"})
    with Stub(act) as stub, pytest.raises(ChatRefused, match=rf"^m at {stub.url}: HTTP {status}: because\. .*{todo}"):
        ask(client_of(stub.url))
    assert len(stub.seen) == 1


def test_a_wrong_key_names_its_variable(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-1")
    with Stub(Fails(401)) as stub, pytest.raises(ChatRefused, match="Check the key in the environment variable TEACHER_KEY"):
        ask(client_of(stub.url, key_env="TEACHER_KEY"))


def test_a_server_that_is_not_there():
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        client = client_of(f"http://127.0.0.1:{taken.getsockname()[1]}/v1", max_attempts=2)
        with pytest.raises(ChatUnavailable, match=r"in 2 attempts .*cannot connect \(.*\); is a server running there\?"):
            ask(client)
    assert (client.counters.retries, client.counters.tokens_in) == (1, 0)


# --- dead-lines ---


@pytest.mark.parametrize("act", [Silent(), Says("late", delay=5), Drips(every=0.05)], ids=["silent", "slow", "drips"])
def test_an_attempt_has_a_dead_line_for_the_whole_answer(act):
    started = time.monotonic()
    with Stub(in_turn(act, "The kitchen.")) as stub:
        client = client_of(stub.url, timeout_s=0.2)
        assert ask(client) == "The kitchen."
        assert 0.2 <= time.monotonic() - started < 2
    assert client.counters.retries == 1


def test_a_request_has_a_dead_line_for_all_its_attempts():
    started = time.monotonic()
    with Stub(Silent()) as stub:
        client = client_of(stub.url, timeout_s=0.2, deadline_s=0.5, max_attempts=50)
        with pytest.raises(ChatUnavailable, match=r"before the dead-line \(deadline_s = 0\.5\): no whole answer within"):
            ask(client)
    assert 0.3 < time.monotonic() - started < 2
    assert len(stub.seen) <= 3


def test_an_attempt_ends_with_the_request():
    started = time.monotonic()
    with Stub(Silent()) as stub, pytest.raises(ChatUnavailable, match="before the dead-line"):
        ask(client_of(stub.url, timeout_s=20, deadline_s=0.3))
    assert time.monotonic() - started < 2


def test_waiting_for_a_turn_is_not_counted():
    with Stub(Says("x", delay=0.1)) as stub:
        requests = [ChatRequest([{"role": "user", "content": str(i)}]) for i in range(5)]
        answers = asyncio.run(client_of(stub.url, concurrency=1, deadline_s=0.45).complete_many(requests))
    assert [a.text for a in answers] == ["x"] * 5


# --- pauses ---


@pytest.mark.parametrize(
    ("act", "backoff_s"),
    [(Fails(429, headers={"Retry-After": "0.5"}), 0.01), (Fails(503, headers={"Retry-After": "0.5"}), 0.01), (Fails(429), 0.5)],
    ids=["429", "503", "429 without a time"],
)
def test_the_endpoint_wants_a_pause_and_everybody_waits(act, backoff_s):
    def script(messages):
        return first(messages) if messages[-1]["content"] == "a" else "b"

    async def play(client):
        one = asyncio.create_task(client.complete([{"role": "user", "content": "a"}]))
        await asyncio.sleep(0.15)  # by now it was told to wait
        return (await client.complete([{"role": "user", "content": "b"}])).text, (await one).text

    first = in_turn(act, "a")
    with Stub(script) as stub:
        assert asyncio.run(play(client_of(stub.url, backoff_s=backoff_s))) == ("b", "a")
    told, *others = (seen.at for seen in stub.seen)
    assert len(others) == 2
    assert all(0.48 < at - told < 3 for at in others)


def test_a_pause_outlives_the_event_loop():
    with Stub(in_turn(Fails(429, headers={"Retry-After": "0.5"}), "x")) as stub:
        client = client_of(stub.url, max_attempts=1)
        with pytest.raises(ChatUnavailable):
            ask(client)
        assert ask(client) == "x"
        assert stub.seen[1].at - stub.seen[0].at > 0.48


def test_a_pause_may_be_given_as_a_date():
    with Stub(in_turn(Fails(429, headers={"Retry-After": "soon"}), "x")) as stub:
        ask(client_of(stub.url))
        assert stub.seen[1].at - stub.seen[0].at < 0.5
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=1.5), usegmt=True)
    with Stub(in_turn(Fails(429, headers={"Retry-After": date}), "x")) as stub:
        ask(client_of(stub.url))
        assert 0.4 < stub.seen[1].at - stub.seen[0].at < 3


def test_a_pause_past_the_dead_line_fails_at_once():
    started = time.monotonic()
    with Stub(Fails(429, headers={"Retry-After": "3600"})) as stub:
        client = client_of(stub.url)
        for _ in range(2):  # the second without asking
            with pytest.raises(ChatUnavailable, match=r"before the dead-line .*; the next attempt would be made in 3\d{3} s"):
                ask(client)
        assert len(stub.seen) == 1
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("value", "seconds"), [("3", 3), (" 0.25 ", 0.25), ("Fri, 01 Jan 1999 00:00:00 GMT", 0), ("01 Jan 1999 00:00:00 -0000", 0)]
)
def test_retry_after(value, seconds):
    assert retry_after(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "-3", "nan", "inf", "1e9", "9" * 400, "32 Jan"])
def test_no_retry_after(value):
    assert retry_after(value) is None


def test_back_off_doubles_to_a_bound_and_is_spread():
    for attempt, low in [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (5000, 30)]:
        delays = [backoff(attempt, 1.0, random.Random(seed)) for seed in range(50)]
        assert low <= min(delays) < low * 1.1
        assert low * 1.4 < max(delays) <= low * 1.5


def test_back_off_is_waited_and_leaves_the_random_numbers_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    with Stub(in_turn(Fails(500), Fails(500), "x")) as stub:
        ask(client_of(stub.url, backoff_s=0.1))
    at = [seen.at for seen in stub.seen]
    assert 0.1 <= at[1] - at[0] < 0.4
    assert 0.2 <= at[2] - at[1] < 0.6
    assert random.random() == expected
