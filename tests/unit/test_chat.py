"""The chat client against an endpoint that answers: requests, answers, turns, cache, budget, form, secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import subprocess
import sys
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from chat_stub import Fails, Raw, Says, Silent, Stub, in_turn
from gongfu.config.load import load
from gongfu.config.schema import ChatConfig, Section
from gongfu.core.errors import ConfigError, EngineError
from gongfu.engine.chat import (
    BadAnswer,
    BudgetSpent,
    CacheMiss,
    ChatAnswer,
    ChatClient,
    ChatError,
    ChatRefused,
    ChatRequest,
    Usage,
)
from gongfu.engine.chat.cache import AnswerCache
from gongfu.engine.chat.records import Reply

ASK = [{"role": "user", "content": "Which room?"}]
KEY = "sk-Secret0123456789abcdef"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def client_of(url, file=None, **settings):
    """A client whose dead-lines and pauses are short; without a cache unless a file is given."""
    defaults = {
        "model": "m",
        "timeout_s": 5.0,
        "deadline_s": 10.0,
        "backoff_s": 0.01,
        "cache": "read-write" if file else "off",
    }
    return ChatClient(ChatConfig(base_url=url, **{**defaults, **settings}), file)


def ask(client, text="Which room?", **kwargs) -> ChatAnswer:
    return asyncio.run(client.complete([{"role": "user", "content": text}], **kwargs))


def ask_many(client, texts, **kwargs):
    return asyncio.run(client.complete_many([ChatRequest([{"role": "user", "content": t}], **kwargs) for t in texts]))


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    room: str
    score: int
    kind: Literal["seen", "unseen"] = "seen"


GOOD = '{"room": "kitchen", "score": 3}'


# --- one request ---


def test_a_request_and_its_answer():
    with Stub(Says("The kitchen.", delay=0.05)) as stub:
        client = client_of(stub.url, model="teacher", temperature=0.3, max_tokens=77)
        answer = ask(client)
    assert stub.seen[0].body == {"model": "teacher", "messages": ASK, "temperature": 0.3, "max_tokens": 77}
    assert (answer.text, answer.parsed, answer.stop, answer.model) == ("The kitchen.", None, "stop", "stub-1")
    assert (answer.usage, answer.cached) == (Usage(10, 5), False)
    assert 0.05 <= answer.latency_s < 5
    counters = client.counters
    assert (counters.requests, counters.tokens_in, counters.tokens_out, counters.retries, counters.failures) == (1, 10, 5, 0, 0)
    assert 0.05 <= counters.seconds <= answer.latency_s


def test_a_call_may_differ_from_the_settings():
    with Stub("x") as stub:
        ask(client_of(stub.url), temperature=0.9, max_tokens=5, seed=4)
    assert stub.seen[0].body == {"model": "m", "messages": ASK, "temperature": 0.9, "max_tokens": 5, "seed": 4}


def test_a_cut_off_text_says_so():
    with Stub(Says("The kit", stop="length")) as stub:
        assert ask(client_of(stub.url)).stop == "length"


def test_an_answer_at_max_tokens_with_nothing_in_it_is_not_asked_for_again():
    with Stub(Says("", stop="length")) as stub, pytest.raises(BadAnswer, match="empty answer at max_tokens: raise it"):
        ask(client_of(stub.url))
    assert len(stub.seen) == 1


def test_a_refusal_of_the_model_is_not_asked_for_again():
    with Stub(Says(None, refusal="I will not")) as stub, pytest.raises(ChatRefused, match="the model refuses: I will not"):
        ask(client_of(stub.url))
    assert len(stub.seen) == 1


# --- many requests ---


def test_many_keep_their_order_and_a_failed_one_loses_no_other():
    def script(messages):
        text = messages[-1]["content"]
        return Fails(400) if text == "3" else Says(text, delay=0.1 if text == "0" else 0)

    with Stub(script) as stub:
        client = client_of(stub.url)
        answers = ask_many(client, "012345")
    assert [a.text if isinstance(a, ChatAnswer) else type(a) for a in answers] == ["0", "1", "2", ChatRefused, "4", "5"]
    assert client.counters.failures == 1


def test_a_mistake_of_the_caller_is_no_answer():
    with Stub("x") as stub, pytest.raises(TypeError):
        ask_many(client_of(stub.url), [{1, 2}])


def test_as_many_at_once_as_allowed():
    with Stub(Says("x", delay=0.1)) as stub:
        ask_many(client_of(stub.url, concurrency=3), range(7))
        assert stub.most_at_once == 3
        ask_many(client_of(stub.url, concurrency=7), range(7))
        assert 3 < stub.most_at_once <= 7


def test_one_client_in_several_event_loops():
    with Stub(Says("x", delay=0.02)) as stub:
        client = client_of(stub.url, concurrency=2)
        for _ in range(3):
            assert [a.text for a in ask_many(client, range(6))] == ["x"] * 6
        assert stub.connections == 6  # two a loop, used again within it


def test_an_entered_client_keeps_its_connection():
    async def play(client):
        for _ in range(3):
            await client.complete(ASK)
        before = stub.connections
        async with client:
            for _ in range(3):
                await client.complete(ASK)
        return before, stub.connections - before

    with Stub("x") as stub:
        assert asyncio.run(play(client_of(stub.url))) == (3, 1)


# --- cache ---


def test_a_stored_answer_costs_no_request(tmp_path):
    path = tmp_path / "deep" / "answers.sqlite"
    with Stub(in_turn("first", "second")) as stub:
        first = ask(client_of(stub.url, path))
        client = client_of(stub.url, path)
        again = ask(client)
    assert len(stub.seen) == 1
    assert (first.text, first.cached) == ("first", False)
    assert (again.text, again.cached, again.usage, again.model, again.stop) == ("first", True, first.usage, "stub-1", "stop")
    assert (client.counters.cache_hits, client.counters.requests, client.counters.tokens_in) == (1, 0, 0)


@pytest.mark.parametrize(
    ("settings", "call"),
    [
        ({"model": "other"}, {}),
        ({}, {"text": "Which house?"}),
        ({"temperature": 0.5}, {}),
        ({}, {"temperature": 0.5}),
        ({}, {"max_tokens": 7}),
        ({}, {"seed": 1}),
        ({}, {"answer": Verdict}),
    ],
)
def test_another_request_has_another_answer(tmp_path, settings, call):
    with Stub(GOOD) as stub:
        ask(client_of(stub.url, tmp_path / "a"))
        assert not ask(client_of(stub.url, tmp_path / "a", **settings), **call).cached
        assert ask(client_of(stub.url, tmp_path / "a", **settings), **call).cached
    assert len(stub.seen) == 2


def test_the_same_request_written_otherwise(tmp_path):
    with Stub("x") as stub:
        ask(client_of(stub.url, tmp_path / "a"))
        client = client_of(stub.url, tmp_path / "a")
        turned = [{"content": "Which room?", "role": "user"}]
        assert asyncio.run(client.complete(turned, temperature=0)).cached


def test_address_and_key_are_no_part_of_a_request(tmp_path, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", KEY)
    with Stub("x") as stub:
        ask(client_of(stub.url, tmp_path / "a", key_env="TEACHER_KEY"))
        assert ask(client_of("http://127.0.0.1:9/v1", tmp_path / "a")).cached
    assert KEY.encode() not in (tmp_path / "a").read_bytes()


def test_the_first_of_two_answers_is_kept_for_all(tmp_path):
    with Stub(in_turn(Says("first", delay=0.05), Says("second", delay=0.2))) as stub:
        client = client_of(stub.url, tmp_path / "a")
        answers = ask_many(client, ["same", "same"])
        assert [a.text for a in answers] == ["first", "first"]
        assert ask(client, "same").text == "first"
    assert len(stub.seen) == 2


def test_off_stores_nothing(tmp_path):
    with Stub(in_turn("first", "second")) as stub:
        client = client_of(stub.url, tmp_path / "a", cache="off")
        assert [ask(client).text, ask(client).text] == ["first", "second"]
    assert not (tmp_path / "a").exists()


def test_a_failure_is_not_stored(tmp_path):
    with Stub(in_turn(Fails(400), "right")) as stub:
        client = client_of(stub.url, tmp_path / "a")
        with pytest.raises(ChatRefused):
            ask(client)
        assert ask(client).text == "right"


def test_replay_needs_neither_key_nor_endpoint_and_names_what_is_missing(tmp_path):
    path = tmp_path / "a"
    with Stub(in_turn("no", GOOD)) as stub:
        recorded = ask(client_of(stub.url, path), answer=Verdict)
        connections = stub.connections
        replay = client_of(stub.url, path, cache="replay-only", key_env="UNSET_KEY")
        again = ask(replay, answer=Verdict)
        assert (again.parsed, again.cached, replay.counters.cache_hits) == (recorded.parsed, True, 2)  # the repair too
        with pytest.raises(CacheMiss, match=r'no recorded answer of m to request [0-9a-f]{12} \("Where to\?"\): record it'):
            ask(replay, "Where to?")
        assert stub.connections == connections
    assert (replay.counters.requests, replay.counters.failures) == (0, 1)


def test_a_cache_that_cannot_be_used(tmp_path):
    with pytest.raises(ChatError, match='"read-write" needs a file'):
        ChatClient(ChatConfig(model="m"))
    with pytest.raises(ChatError, match=r"absent is missing: .*replay-only.* needs the answers"):
        client_of("http://127.0.0.1:9/v1", tmp_path / "absent", cache="replay-only")
    assert not (tmp_path / "absent").exists()
    AnswerCache(tmp_path / "a", read_only=False)
    with pytest.raises(ChatError, match="a cannot be used: attempt to write a readonly database"):
        AnswerCache(tmp_path / "a", read_only=True).put({}, Reply("x", "stop", "m", Usage()))
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one " * 20)
    with pytest.raises(ChatError, match="text cannot be used: file is not a database"):
        client_of("http://127.0.0.1:9/v1", tmp_path / "text")
    with pytest.raises(ChatError, match="folder of the cache of answers cannot be made"):
        client_of("http://127.0.0.1:9/v1", tmp_path / "text" / "a")


def test_processes_share_a_cache(tmp_path):
    program = """
import sys
from pathlib import Path
from gongfu.engine.chat.cache import AnswerCache, digest
from gongfu.engine.chat.records import Reply, Usage
cache = AnswerCache(Path(sys.argv[1]), read_only=False)
sys.stdin.readline()
for i in range(50):
    print(cache.put({"model": "m", "i": i}, Reply(sys.argv[2], "stop", "m", Usage(1, 1))).text)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "a")]
    workers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    (a, a_errors), (b, b_errors) = (w.communicate(timeout=60) for w in workers)
    assert (a_errors, b_errors) == ("", "")
    assert a == b
    assert len(a.split()) == 50


# --- budget ---


def test_a_spent_budget_stops_before_the_request():
    with Stub(Says("x", usage=(100, 40))) as stub:
        client = client_of(stub.url, budget_tokens=350, max_tokens=50)
        for _ in range(2):
            ask(client)
        with pytest.raises(
            BudgetSpent, match=r"budget for m is spent: 280 of budget_tokens = 350 tokens are used and .* may take"
        ):
            ask(client)
    assert (len(stub.seen), client.counters.failures, client.counters.requests) == (2, 1, 2)


def test_a_request_that_may_cost_too_much_is_not_sent():
    with Stub("x") as stub:
        client = client_of(stub.url, budget_tokens=400)
        with pytest.raises(BudgetSpent):
            ask(client, max_tokens=400)
        with pytest.raises(BudgetSpent):
            ask(client, "long " * 300, max_tokens=1)
        assert not stub.seen
        ask(client, max_tokens=300)


def test_money_is_counted_by_the_prices():
    with Stub(Says("x", usage=(1000, 500))) as stub:
        client = client_of(stub.url, budget_usd=0.01, price_in=2.0, price_out=8.0, max_tokens=600)
        ask(client)
        assert client.counters.usd == pytest.approx(0.006)
        with pytest.raises(BudgetSpent, match=r"0\.0060 of budget_usd = 0\.01 USD are used"):
            ask(client)
    assert len(stub.seen) == 1


def test_parallel_requests_do_not_overdraw_and_do_not_give_up_too_early():
    with Stub(Says("x", usage=(50, 50), delay=0.02)) as stub:
        client = client_of(stub.url, budget_tokens=1000, max_tokens=300, concurrency=8)
        answers = ask_many(client, range(8))
        assert stub.most_at_once == 2  # a third might have broken the budget
    # 100 each in fact: after six the 400 that are left still cover one that may take some 330, after seven 300 do not
    assert sorted(type(a).__name__ for a in answers) == ["BudgetSpent"] + ["ChatAnswer"] * 7


def test_what_is_not_reported_or_lost_is_estimated():
    with Stub(Says("word " * 60, usage=None)) as stub:
        client = client_of(stub.url)
        assert ask(client, "word " * 30).usage.tokens_out == 101
        assert client.counters.tokens_in >= 50
    with Stub(Raw('{"choices": [{"message": {"content": "four"}}], "usage": {"prompt_tokens": 3}}')) as stub:
        assert ask(client_of(stub.url)).usage == Usage(3, 2)
    with Stub(Silent()) as stub:
        client = client_of(stub.url, timeout_s=0.1, max_attempts=1, max_tokens=50)
        with pytest.raises(ChatError):
            ask(client)
        assert client.counters.tokens_out == 50
    with Stub(Fails(500)) as stub:
        client = client_of(stub.url, max_attempts=2)
        with pytest.raises(ChatError):
            ask(client)
        assert (client.counters.tokens_in, client.counters.tokens_out) == (0, 0)


def test_a_cancelled_request_gives_back_what_was_set_aside():
    async def play(client):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.complete(ASK, max_tokens=100), 0.2)
        return await client.complete(ASK, max_tokens=700)

    with Stub(in_turn(Silent(), "x")) as stub:
        client = client_of(stub.url, budget_tokens=1000, concurrency=1)
        assert asyncio.run(asyncio.wait_for(play(client), 5)).text == "x"
    assert client.counters.tokens_out == 105  # the cancelled one may be billed


# --- answers with a form ---


@pytest.mark.parametrize("mode", ["schema", "object", "prompt"])
def test_how_a_form_is_asked_for(mode):
    with Stub(GOOD) as stub:
        answer = ask(client_of(stub.url, json_mode=mode), answer=Verdict)
    assert answer.parsed == Verdict(room="kitchen", score=3)
    assert answer.text == GOOD
    body = stub.seen[0].body
    assert len(body["messages"]) == 1
    text, form = body["messages"][0]["content"], body.get("response_format")
    schema = Verdict.model_json_schema()
    if mode == "schema":
        assert text == "Which room?"
        assert form == {"type": "json_schema", "json_schema": {"name": "Verdict", "schema": schema}}
    else:
        assert text.startswith("Which room?\n\nAnswer with one JSON object")
        assert json.loads(text.split("schema:\n")[1]) == schema
        assert form == ({"type": "json_object"} if mode == "object" else None)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("I think it is the kitchen", "it holds no complete JSON object"),
        ('{"room": "kitchen", "sco', "it holds no complete JSON object"),
        ("{'room': 'kitchen'}", "it is no valid JSON"),
        ('{"room": "kitchen", "score": "many"}', "score: Input should be a valid integer"),
        ('{"room": "kitchen", "score": 1, "mood": 2}', "mood: Extra inputs are not permitted"),
    ],
)
def test_a_wrong_answer_is_shown_to_the_model(bad, problem):
    with Stub(in_turn(bad, GOOD)) as stub:
        client = client_of(stub.url)
        answer = ask(client, answer=Verdict)
    assert (answer.parsed.room, answer.usage, answer.cached) == ("kitchen", Usage(20, 10), False)
    assert client.counters.repairs == 1
    first, second = (seen.body["messages"] for seen in stub.seen)
    assert second[:2] == [*first, {"role": "assistant", "content": bad}]
    assert second[2]["role"] == "user"
    assert second[2]["content"].startswith(f"This answer cannot be used: {problem}")
    assert '"score"' in second[2]["content"].split("JSON schema")[1]
    assert stub.seen[1].body["response_format"] == stub.seen[0].body["response_format"]


def test_an_answer_cut_off_is_asked_for_in_brief():
    with Stub(in_turn(Says(GOOD[:20], stop="length"), GOOD)) as stub:
        assert ask(client_of(stub.url), answer=Verdict).parsed.score == 3
    assert "cut off after 5 tokens (max_tokens), be brief" in stub.seen[1].body["messages"][-1]["content"]


def test_two_repairs_and_no_more():
    with Stub("blah " * 100) as stub:
        client = client_of(stub.url)
        with pytest.raises(BadAnswer) as raised:
            ask(client, answer=Verdict)
    assert len(stub.seen) == 3
    beginning = ("blah " * 100)[:200]
    assert str(raised.value) == (
        f'm gave no Verdict in 3 answers, the last one has a fault: it holds no complete JSON object. It begins: "{beginning}"'
    )
    assert (client.counters.repairs, client.counters.failures) == (2, 1)


# --- secrets ---


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", f"{KEY}\n")
    return "TEACHER_KEY"


def test_the_key_is_sent_and_only_if_there_is_one(key):
    with Stub("x") as stub:
        ask(client_of(stub.url, key_env=key))
        ask(client_of(stub.url))
    assert [s.headers.get("Authorization") for s in stub.seen] == [f"Bearer {KEY}", None]


@pytest.mark.parametrize(
    "act",
    [
        *(
            Fails(status, json.dumps({"error": {"message": f"bad {KEY} here"}}))
            for status in (400, 401, 403, 404, 418, 429, 500)
        ),
        Fails(401, f"{' ' * 10}{KEY}{'x' * 300}"),
        Fails(401, f"{'x' * 190}{KEY}"),
        Raw(f'{{"choices": "{KEY}"}}'),
        Says(f"not JSON {KEY}"),
        Says(f'{{"{KEY}": 1}}'),
        Says(None, refusal=f"no {KEY}"),
        Says("", stop=KEY),
        Silent(),
    ],
    ids=lambda act: f"{type(act).__name__} {getattr(act, 'status', '')}",
)
def test_no_error_and_no_log_shows_the_key(key, act, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    with Stub(act) as stub:
        client = client_of(stub.url, key_env=key, max_attempts=2, timeout_s=0.2)
        with pytest.raises(ChatError) as raised:
            ask(client, answer=Verdict)
    error = raised.value
    chain = [error, error.__cause__, error.__context__]
    assert all(KEY[:8] not in text for e in chain for text in (str(e), repr(e), repr(getattr(e, "__dict__", ""))))
    assert KEY[:8] not in caplog.text
    assert KEY[:8] not in repr(vars(client)) + repr(vars(client._endpoint)) + client.settings.model_dump_json()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert isinstance(error, EngineError)


def test_a_missing_or_impossible_key(monkeypatch):
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    with pytest.raises(ChatError, match=r"environment variable TEACHER_KEY \(key_env\) is not set: export the key"):
        client_of("http://127.0.0.1:9/v1", key_env="TEACHER_KEY")
    for bad in ("sk-Secret\nX-Other: 1", "sk-Secret 2", "sk-Secrét"):
        monkeypatch.setenv("TEACHER_KEY", bad)
        with pytest.raises(ChatError, match="TEACHER_KEY holds no key") as raised:
            client_of("http://127.0.0.1:9/v1", key_env="TEACHER_KEY")
        assert "sk-Secr" not in str(raised.value)


# --- settings ---


class Settings(Section):
    critic: ChatConfig | None = None


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (f"key_env={KEY}", "name of an environment variable"),
        ("key_env=gsk_abcdefgh", "name of an environment variable"),
        (f"base_url=https://me:{KEY}@example.org/v1", "no name, password"),
        (f"base_url=https://example.org/v1?key={KEY}", "no name, password, query"),
        ("base_url=example.org/v1", "must look like"),
        (f"base_url=https://me:{KEY}/v1", "must look like"),
        ("base_url=file:///v1", "must look like"),
        ("budget_usd=3.0", "counts nothing without price"),
        ("json_mode=tools", "'schema', 'object' or 'prompt'"),
    ],
)
def test_settings_that_cannot_work(override, problem):
    name, value = override.split("=", 1)
    with pytest.raises(ConfigError, match=problem) as raised:
        load(Settings, overrides=["--critic.model", "m", f"--critic.{name}", value])
    assert KEY not in str(raised.value)
    with pytest.raises(ValidationError, match=problem) as raised:
        ChatConfig.model_validate({"model": "m", name: value})
    assert KEY not in str(raised.value)


def test_settings_in_a_section():
    critic = load(Settings, overrides=["--critic.model", "m", "--critic.budget-tokens", "5"]).config.critic
    assert critic == ChatConfig(model="m", budget_tokens=5)
    assert critic.base_url.startswith("http://127.0.0.1")
    with pytest.raises(ChatError, match="is no address"):
        client_of("http://é..x/v1")
