"""Critics: rules, the frozen base model, a chat model that answers, misbehaves or is down."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field

import pytest

from chat_stub import Fails, Says, Stub
from gongfu.config.schema import ChatConfig
from gongfu.core.errors import ConfigError, EngineError
from gongfu.engine.chat import ChatClient
from gongfu.engine.protocol import Capability, Sample, SampleRequest
from gongfu.methods.uniskill.critics import BaseCritic, ChatCritic, NoCritic, RuleCritic
from gongfu.methods.uniskill.records import Pair, Verdict
from gongfu.methods.uniskill.shelf import similarity
from uniskill_cases import SHOWN, TEXT, proposal, rollout

GROUNDED = "Go to the fridge and take the mug before you open a cabinet."
FAILED = rollout(0, False, "go to cabinet 2; open cabinet 2")
WON = rollout(1, True, "go to fridge 1; take mug 1")
PAIR = Pair(FAILED, WON, (), ())
SAME = Pair(rollout(0, False, "go to fridge"), rollout(1, True, "go to fridge"), (), ())


def test_no_critic_says_nothing():
    assert NoCritic().judge([proposal(), proposal(None)]) == [Verdict(None, None)] * 2


# --- rules ---


def ruled(op="ADD", text=GROUNDED, pair=PAIR, critic=None, **about) -> Verdict:
    return (critic or RuleCritic()).judge([proposal(op, text, pair=pair, **about)])[0]


def test_a_sound_proposal():
    assert ruled() == Verdict(True, True)
    assert ruled("UPDATE", target="s") == Verdict(True, True)
    assert ruled("ADD", target="s") == Verdict(True, True)
    assert ruled(None) == Verdict(None, None)


def test_an_update_needs_a_shown_skill():
    assert ruled("UPDATE") == Verdict(False, True, ("UPDATE, but no skill was shown",))


def test_an_add_that_paraphrases_the_shown_skill():
    close = SHOWN.replace("Look into", "look in")
    assert 0.8 < similarity(close, SHOWN) < 0.95
    verdict = ruled("ADD", close, target="s", critic=RuleCritic(grounded=0.0))
    assert (verdict.op_ok, verdict.content_ok) == (False, False)
    assert ruled("UPDATE", close, target="s", critic=RuleCritic(grounded=0.0)) == Verdict(True, True)
    assert ruled("UPDATE", SHOWN.upper(), target="s", critic=RuleCritic(grounded=0.0)).content_ok is False


def test_keep_is_wrong_where_nothing_was_shown_and_the_episodes_differ():
    assert ruled("KEEP") == Verdict(False, None, ("KEEP, but no skill was shown and the episodes differ",))
    assert ruled("KEEP", target="s") == Verdict(True, None)
    assert ruled("KEEP", pair=SAME) == Verdict(True, None)


def test_two_episodes_of_the_same_actions_teach_nothing():
    assert ruled("ADD", pair=SAME).op_ok is False
    assert ruled("UPDATE", pair=SAME, target="s").op_ok is False


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Look first.", "2 words, allowed are 3 to 120"),
        ("mug " * 121, "121 words"),
        ("Take the mug from the fridge 1 and go.", "'fridge 1'"),
        ("Go to cabinet 7 and take the mug.", "'cabinet 7'"),  # no cabinet 7 was seen, but cabinets are numbered here
        ("Think hard, keep calm, plan carefully.", "0% of its words occur"),
    ],
)
def test_bad_texts(text, reason):
    verdict = ruled(text=text)
    assert verdict.content_ok is False
    assert reason in verdict.reasons[0]


def test_numbers_that_name_no_thing_and_codes_that_do():
    assert ruled(text="Within 3 steps go to the fridge and take the mug.").content_ok is True
    shop = Pair(rollout(0, False, "click b09kp78g37"), rollout(1, True, "click b01mq3wabc; buy"), (), ())
    assert ruled(text="Always click B01MQ3WABC and then buy.", pair=shop).content_ok is False
    assert ruled(text="Always click x77y88z99 and then buy.", pair=shop).content_ok is True


def test_words_count_by_their_stem():
    assert ruled(text="Opening cabinets, taking mugs.", critic=RuleCritic(grounded=1.0)).content_ok is True
    assert ruled(text="Opening cabinets, slicing mugs.", critic=RuleCritic(grounded=1.0)).content_ok is False


# --- the base model ---


@dataclass
class Oracle:
    """An engine that says yes with the probability that `answers` gives for a part of the prompt."""

    answers: dict[str, float | EngineError]
    capabilities: frozenset[Capability] = frozenset({Capability.BASE, Capability.CHOOSE})
    seen: list[SampleRequest] = field(default_factory=list)

    async def sample(self, requests):
        self.seen += requests
        return [self._answer(r) for r in requests]

    def _answer(self, request):
        prompt = "".join(map(chr, request.prompt))
        p = next(value for part, value in self.answers.items() if part in prompt)
        if isinstance(p, EngineError):
            return p
        taken = int(p < 0.5)
        return [Sample(request.choices[taken], (0.0,), "choice", 0, taken, (math.log(p), math.log(1 - p)))]


class Letters:
    stop_ids = (0,)

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def render(self, messages, *, generation):
        return messages[0]["content"]


def based(answers, *proposals, **settings) -> tuple[list[Verdict], list[SampleRequest]]:
    engine = Oracle(answers)
    return BaseCritic(engine, Letters(), **settings).judge(proposals), engine.seen


def test_the_base_model_answers_two_questions_of_an_edit_and_one_of_a_keep():
    answers = {"Is the text a sound skill": 0.25, "Is the operation": 0.9}
    verdicts, seen = based(answers, proposal(), proposal(None), proposal("KEEP"))
    assert verdicts == [
        Verdict(True, False, ("P(yes) = 0.900", "P(yes) = 0.250")),
        Verdict(None, None),
        Verdict(True, None, ("P(yes) = 0.900",)),
    ]
    assert len(seen) == 3
    for request in seen:
        assert (request.adapter, request.temperature) == (None, 0.0)
        assert request.choices == (tuple(map(ord, "yes")), tuple(map(ord, "no")))
    assert based({"Is": 0.9}) == ([], [])


def test_the_threshold_of_yes():
    assert based({"Is": 0.25}, proposal("KEEP"), threshold=0.2)[0][0].op_ok is True
    assert based({"Is": 0.25}, proposal("KEEP"), threshold=0.3)[0][0].op_ok is False


def test_an_engine_error_costs_its_answer_only():
    answers = {"Is the text a sound skill": EngineError("too long"), "Is the operation": 0.9}
    assert based(answers, proposal())[0] == [Verdict(True, None, ("P(yes) = 0.900", "no answer"), "too long")]


def test_what_the_base_model_is_shown():
    case = proposal(target="s", pair=PAIR)
    for observations in (False, True):
        (request, _) = based({"Is": 0.9}, case, observations=observations)[1]
        prompt = Letters().decode(request.prompt)
        for shown in (SHOWN, TEXT, "go to cabinet 2", "take mug 1", '"outcome": "failure"', '"operation": "ADD"'):
            assert shown in prompt
        assert ("You see a mug 1." in prompt) == observations


def test_an_engine_that_cannot_and_a_tokenizer_that_does_not_tell_the_words_apart():
    with pytest.raises(ConfigError, match="can base and choose"):
        BaseCritic(Oracle({}, frozenset()), Letters())

    class Deaf(Letters):
        def encode(self, text):
            return [3]

    with pytest.raises(ConfigError, match="alike"):
        BaseCritic(Oracle({}), Deaf())


def test_a_real_base_model_does_not_change_with_the_adapter(tmp_path):
    from gongfu.core.records import Row
    from gongfu.engine.local import LocalEngine
    from gongfu.engine.protocol import LoraSpec, OptimParams
    from support import WORDS, tiny_model

    folder = tiny_model(tmp_path / "model", (*WORDS, "yes", "no"), max_position_embeddings=1024)
    engine = LocalEngine(folder, store=tmp_path, threads=1)
    engine.create_adapter("actor", LoraSpec(rank=4, seed=1))
    critic = BaseCritic(engine, engine.tokenizer)
    before = critic.judge([proposal(), proposal("KEEP")])
    assert before[0].op_ok is not None and before[0].content_ok is not None
    row = Row("d", tuple(range(5, 15)), (False, *(True,) * 9))
    engine.forward_backward([row], lambda rows, lps: (-lps[0].sum(), {}), adapter="actor")
    engine.optim_step(OptimParams(lr=0.5), adapter="actor")
    engine.sync()
    assert critic.judge([proposal(), proposal("KEEP")]) == before


# --- a chat model ---


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def client_of(url) -> ChatClient:
    return ChatClient(
        ChatConfig(
            base_url=url,
            model="m",
            timeout_s=5,
            deadline_s=5,
            backoff_s=0.01,
            max_attempts=2,
            cache="off",
            concurrency=8,
            temperature=0.7,
        )
    )


def reviewer(messages) -> str:
    """Finds operations right, and texts about fridges bad."""
    content = messages[0]["content"]
    opinion = {"op_ok": '"operation": "KEEP"' not in content, "op_reason": "as the episodes show"}
    if '"operation": "KEEP"' not in content:
        opinion |= {"content_ok": "the fridge" not in content.rpartition('"text"')[2], "content_reason": "plausible"}
    return json.dumps(opinion)


def test_one_request_a_proposal_and_its_structured_answer():
    with Stub(reviewer) as stub:
        critic = ChatCritic(client_of(stub.url))
        verdicts = critic.judge([proposal(text=GROUNDED), proposal("KEEP"), proposal(None), proposal()])
    assert verdicts == [
        Verdict(True, False, ("as the episodes show", "plausible")),
        Verdict(False, None, ("as the episodes show",)),
        Verdict(None, None),
        Verdict(True, True, ("as the episodes show", "plausible")),
    ]
    assert len(stub.seen) == 3
    assert {seen.body["temperature"] for seen in stub.seen} == {0.0}


def test_the_requests_go_out_at_once():
    with Stub(lambda messages: Says(reviewer(messages), delay=0.2)) as stub:
        ChatCritic(client_of(stub.url)).judge([proposal(text=f"Take mug and go, {word}.") for word in ("one", "two", "three")])
    assert stub.most_at_once == 3


def test_the_same_content_is_asked_once():
    with Stub(reviewer) as stub:
        critic = ChatCritic(client_of(stub.url))
        first = critic.judge([proposal(id="a"), proposal(id="b"), proposal("UPDATE", id="c", target="s")])
        assert critic.judge([proposal(id="d")]) == first[:1] == first[1:2]
    assert len(stub.seen) == 2


def test_an_endpoint_that_is_down_gives_errors_and_is_asked_again_later():
    acts = [Fails(500), Fails(500)]
    with Stub(lambda messages: acts.pop() if acts else reviewer(messages)) as stub:
        critic = ChatCritic(client_of(stub.url))
        (down,) = critic.judge([proposal()])
        assert (down.op_ok, down.content_ok, bool(down.error)) == (None, None, True)
        assert critic.judge([proposal()])[0].op_ok is True
    critic = ChatCritic(client_of("http://127.0.0.1:9/v1"))
    assert all(v.error and v.op_ok is None for v in critic.judge([proposal(), proposal("KEEP")]))


def test_one_bad_answer_costs_one_verdict():
    with Stub(
        lambda messages: "no idea" if "KEEP" in str(messages[0]).rpartition("operation")[2] else reviewer(messages)
    ) as stub:
        verdicts = ChatCritic(client_of(stub.url)).judge([proposal("KEEP"), proposal()])
    assert verdicts[0].error and verdicts[0].op_ok is None
    assert verdicts[1] == Verdict(True, True, ("as the episodes show", "plausible"))


def test_what_the_chat_model_is_shown():
    case = proposal(target="s", pair=PAIR)
    for observations in (True, False):
        with Stub(reviewer) as stub:
            ChatCritic(client_of(stub.url), observations=observations).judge([case])
        content = stub.seen[0].body["messages"][0]["content"]
        for shown in (SHOWN, TEXT, "heat some mug", "open cabinet 2", '"outcome": "success"'):
            assert shown in content
        assert ("You see a fridge 1." in content) == observations
