"""A recorded episode under other skills: only the prompts change, and with its own skills nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gongfu.core.records import Validity
from gongfu.envs.runner import InlineRunner
from gongfu.rollout.actor import ModelActor
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules
from gongfu.rollout.replay import payload_span, under_skills
from toy import ToySuite, tiny_agent

SKILL = "pick the apple"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from gongfu.engine.local import LocalEngine

    folder = tmp_path_factory.mktemp("agent")
    return LocalEngine(tiny_agent(folder), store=folder, threads=1)


def play(engine, rules, skills):
    suite = ToySuite()
    collector = Collector(InlineRunner(suite), engine.tokenizer, rules, suite.instructions(), suite.max_steps, 400)
    actor = ModelActor(engine, None, 0, mode="choose", sessions=rules.context == "append")
    return collector.collect(actor, suite.tasks("train")[:2], skills=[{"s": text} if text else {} for text in skills])


@pytest.mark.parametrize("rules", [TextRules(), TextRules(context="window"), TextRules(remind=True, instructions=False)])
def test_with_its_own_skills_nothing_changes(engine, rules):
    system = rules.system(ToySuite().instructions())
    for trajectory, text in zip(play(engine, rules, [SKILL, ""]), [SKILL, ""], strict=True):
        again = under_skills(trajectory, [text] if text else [], rules=rules, tokenizer=engine.tokenizer, system=system)
        assert again == trajectory


@pytest.mark.parametrize("rules", [TextRules(), TextRules(context="window")])
def test_another_skill_changes_the_prompts_and_no_response(engine, rules):
    system = rules.system(ToySuite().instructions())
    trajectory, _ = play(engine, rules, [SKILL, ""])
    other = under_skills(trajectory, ["pick the egg"], rules=rules, tokenizer=engine.tokenizer, system=system)
    assert [t.call.response for t in other.turns] == [t.call.response for t in trajectory.turns]
    for old, new in zip(trajectory.turns, other.turns, strict=True):
        assert "Skill: pick the egg" in engine.tokenizer.decode(new.call.prompt)
        assert "Skill: pick the apple" not in engine.tokenizer.decode(new.call.prompt)
        assert old.call.prompt != new.call.prompt
    none = under_skills(trajectory, [], rules=rules, tokenizer=engine.tokenizer, system=system)
    assert "Skill" not in engine.tokenizer.decode(none.turns[-1].call.prompt)


def test_the_payload_is_the_action_without_its_end(engine):
    trajectory, _ = play(engine, TextRules(), ["", ""])
    call = trajectory.turns[0].call
    start, end = payload_span(trajectory, 0, format="plain", tokenizer=engine.tokenizer)
    assert engine.tokenizer.decode(call.response[start:end]).strip() == trajectory.turns[0].action
    assert call.response[end:] == engine.tokenizer.stop_ids[:1]


def test_the_payload_of_a_tagged_answer_leaves_the_thought_out(engine):
    trajectory, _ = play(engine, TextRules(), ["", ""])
    ids = tuple(engine.tokenizer.encode("<think>pick</think><action>apple</action>")) + engine.tokenizer.stop_ids[:1]
    turn = trajectory.turns[0]
    call = replace(turn.call, response=ids, logprobs=(0.0,) * len(ids))
    tagged = replace(trajectory, turns=(replace(turn, call=call), *trajectory.turns[1:]))
    start, end = payload_span(tagged, 0, format="tagged", tokenizer=engine.tokenizer)
    assert "apple" in engine.tokenizer.decode(ids[start:end]) and "pick" not in engine.tokenizer.decode(ids[start:end])


def test_no_payload_without_a_well_formed_action(engine):
    trajectory, _ = play(engine, TextRules(), ["", ""])
    turn = replace(trajectory.turns[0], validity=Validity(False, False, "empty"))
    assert payload_span(replace(trajectory, turns=(turn,)), 0, format="plain", tokenizer=engine.tokenizer) is None
