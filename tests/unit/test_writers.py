"""Who writes taught proposals: the suite's teacher, or a chat model that answers, fails now and then, or is down."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pydantic import ValidationError

from chat_stub import Fails, Stub
from gongfu.config.load import load
from gongfu.config.schema import ChatConfig, Recipe, SFTConfig
from gongfu.engine.chat import ChatClient, ChatError
from gongfu.engine.models import resolve_model
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.run.build import build_collector, build_runner, build_suite
from gongfu.run.proposals import scripted_proposals, taught_rules
from gongfu.run.writers import ChatWriter, Lesson, ScriptedWriter
from uniskill_cases import rollout

ROOT = Path(__file__).resolve().parents[2]
WON, LOST = rollout(1, True, "go to fridge; take mug"), rollout(0, False, "go to cabinet; open cabinet")


def lesson(quality="good", shown=""):
    return Lesson(WON.task, WON, LOST, shown, quality, random.Random(0))


def answer(text):
    return json.dumps({"comparison": "one looked into the fridge", "text": text})


def written(script, lessons):
    with Stub(script) as stub:
        client = ChatClient(ChatConfig(base_url=stub.url, model="m", cache="off", max_attempts=1))
        return ChatWriter(client).write(lessons), [seen.body["messages"][0]["content"] for seen in stub.seen]


def test_a_chat_model_reads_both_episodes_and_is_told_what_kind_of_text_is_wanted():
    texts, asked = written(lambda messages: answer("Look into\n the fridge  first."), [lesson(), lesson("vague", shown="Old.")])
    assert texts == ["Look into the fridge first."] * 2
    good, vague = sorted(asked, key=lambda text: "no use" in text)
    assert "take mug" in good and "open cabinet" in good and "heat some mug" in good
    assert "made the difference" in good and "no use" in vague and "Old." in vague


def test_one_answer_that_is_missing_costs_one_text():
    def script(messages):
        return Fails(400) if "no use" in messages[0]["content"] else answer("Look.")

    assert written(script, [lesson(), lesson("vague")])[0] == ["Look.", ""]
    with pytest.raises(ChatError):
        written(Fails(400), [lesson()])


@pytest.fixture(scope="module")
def taught():
    recipe = load(Recipe, files=[ROOT / "recipes" / "uniskill-household-nano.toml"], overrides=["--suite.train=60"]).config
    suite, tokenizer = build_suite(recipe.suite), HFTokenizer(resolve_model("nano"))
    collector = build_collector(recipe, suite, tokenizer, build_runner(recipe, suite))

    def rows(writer):
        found = scripted_proposals(
            collector, suite, tokenizer, taught_rules(recipe), suite.tasks("train")[:40], writer=writer, seed=0, noise=0.15
        )
        return {row.id: tokenizer.decode([t for t, s in zip(row.tokens, row.mask, strict=True) if s]) for row in found}

    return suite, rows


class Told:
    def __init__(self, text):
        self.text, self.lessons = text, []

    def write(self, lessons):
        self.lessons += lessons
        return [self.text if i else "" for i in range(len(lessons))]


def test_the_writer_writes_the_texts_and_nothing_else(taught):
    suite, rows = taught
    scripted = rows(ScriptedWriter(suite))
    writer = Told("look in the fridge")
    other = rows(writer)
    edits = [name for name, text in scripted.items() if not text.startswith("keep")]
    assert len(edits) == len(writer.lessons) > 3
    assert set(scripted) - set(other) == {edits[0]}  # there was no text for it
    for name in other:
        op = scripted[name].split("<")[0].split()[0]
        assert other[name].startswith("keep" if op == "keep" else f"{op} look in the fridge")


def test_a_teacher_without_proposals_is_refused():
    with pytest.raises(ValidationError, match="none are taught"):
        SFTConfig(teacher=ChatConfig(model="m"))
