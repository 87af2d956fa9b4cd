"""R_align against numbers worked apart from it: by hand on faked log-probs, and by scoring every prompt alone."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from gongfu.core.records import Call, Row, Trajectory, Turn, Validity
from gongfu.engine.protocol import LoraSpec
from gongfu.envs.runner import InlineRunner
from gongfu.methods.uniskill.align import AlignValuer
from gongfu.methods.uniskill.records import Pair, Parsed, Proposal
from gongfu.rollout.actor import ModelActor
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules
from gongfu.rollout.replay import payload_span, under_skills
from toy import ToySuite, tiny_agent

RULES = TextRules(instructions=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    from gongfu.engine.local import LocalEngine

    folder = tmp_path_factory.mktemp("agent")
    engine = LocalEngine(tiny_agent(folder), store=folder, threads=1)
    engine.create_adapter("actor", LoraSpec(rank=4))
    engine.sync()
    return engine


def play(engine, mode, shown="", temperature=3.0):
    suite = ToySuite()
    collector = Collector(InlineRunner(suite), engine.tokenizer, RULES, suite.instructions(), suite.max_steps, 400)
    actor = ModelActor(engine, "actor", 0, mode=mode, max_tokens=4, temperature=temperature)
    return collector.collect(actor, suite.tasks("train")[:1], group_size=4, skills=[{"s": shown} if shown else {}])


def proposal(played, op="ADD", text="pick the apple", target_text=""):
    pair = Pair(played[0], played[1], (played[2],), (played[3],))
    call = Call("proposer", "actor", 0, (1,), (2,), (-1.0,), text, "stop")
    parsed = Parsed(op, "" if op == "KEEP" else text)
    return Proposal("p", played[0].task, pair, "s" if target_text else "", target_text, call, parsed)


def alone(engine, trajectory, text):
    """J(τ; s): every payload of every turn scored under its own prompt, one row a turn."""
    other = under_skills(trajectory, [text] if text else [], rules=RULES, tokenizer=engine.tokenizer, system=None)
    steps = []
    for number, turn in enumerate(other.turns):
        call = turn.call
        span = payload_span(other, number, format="plain", tokenizer=engine.tokenizer)
        if not turn.validity.ok or span is None:
            continue
        prompt, payload = call.prompt + call.response[: span[0]], call.response[slice(*span)]
        row = Row("r", prompt + payload, (False,) * len(prompt) + (True,) * len(payload), call.temperature)
        steps.append(float(engine.logprobs([row], adapter="actor")[0].mean()))
    return fmean(steps)


@pytest.mark.parametrize(
    ("mode", "shown", "temperature"),
    [("choose", "", 3.0), ("choose", "pick the egg", 3.0), ("choose", "pick the egg", 1.0), ("generate", "", 3.0)],
)
def test_deltas_are_those_of_prompts_scored_alone(engine, mode, shown, temperature):
    played = play(engine, mode, shown, temperature)
    if mode == "generate":  # what a random model says is no action: call it one, so that there is something to score
        played = [replace(t, turns=tuple(replace(u, validity=Validity(True, True)) for u in t.turns)) for t in played]
    valuer = AlignValuer(engine, "actor", RULES, None)
    p = proposal(played, text="pick the apple", op="UPDATE" if shown else "ADD", target_text=shown)
    (found,) = valuer.value([p], 0)
    plus = alone(engine, played[2], "pick the apple") - alone(engine, played[2], shown)
    minus = alone(engine, played[3], "pick the apple") - alone(engine, played[3], shown)
    assert found.plus == pytest.approx((plus,), abs=1e-4) and found.minus == pytest.approx((minus,), abs=1e-4)
    assert found.r_align == pytest.approx(plus - minus, abs=2e-4) and abs(found.delta_plus) > 1e-3
    # Generated actions bring their old score along, chosen ones that at temperature 1.
    known = mode == "generate" or temperature == 1.0
    assert (valuer.reused, valuer.rows) == ((2, 2) if known else (0, 4))


def test_the_same_text_moves_nothing(engine):
    played = play(engine, "choose", "pick the egg")
    p = proposal(played, op="UPDATE", text="pick the egg", target_text="pick the egg")
    (found,) = AlignValuer(engine, "actor", RULES, None).value([p], 0)
    assert found.plus == (0.0,) and found.minus == (0.0,)


def test_keep_is_valued_by_the_shown_skill_against_none(engine):
    played = play(engine, "choose", "pick the egg")
    (keep,) = AlignValuer(engine, "actor", RULES, None).value([proposal(played, op="KEEP", target_text="pick the egg")], 0)
    plus = alone(engine, played[2], "pick the egg") - alone(engine, played[2], "")
    assert keep.plus == pytest.approx((plus,), abs=1e-4)


def test_pairs_of_text_and_episode_are_scored_once(engine):
    played = play(engine, "choose")
    again = [replace(proposal(played), id=f"p{i}") for i in range(5)]
    valuer = AlignValuer(engine, "actor", RULES, None)
    assert len({a.r_align for a in valuer.value(again, 0)}) == 1
    assert valuer.rows == 4  # two references, each under the new text and under none


def test_nothing_scorable_is_not_measured(engine):
    played = play(engine, "choose")
    dead = replace(played[3], turns=tuple(replace(t, validity=Validity(True, False)) for t in played[3].turns))
    assert AlignValuer(engine, "actor", RULES, None).value([proposal([*played[:3], dead])], 0) == [None]


def test_coverage_is_the_share_of_scorable_steps(engine):
    played = play(engine, "choose")
    turns = played[2].turns
    partly = replace(played[2], turns=(replace(turns[0], validity=Validity(True, False)), *turns[1:]))
    (found,) = AlignValuer(engine, "actor", RULES, None).value([proposal([*played[:2], partly, played[3]])], 0)
    assert found.coverage == pytest.approx((len(turns) - 1) / len(turns))


def test_the_vector_of_the_specification():
    """Success steps old [-1, -.5], [-.2], new [-.8, -.4], [-.25]; failure old [-.6, -.6, -.3], new [-.7, -.6, -.35]."""
    from gongfu.methods.uniskill.align import Scores, _alignment, _means

    def row(spans, count):
        mask = [False] * (count + 1)
        for _, low, high in spans:
            mask[low:high] = [True] * (high - low)
        return Row("r", tuple(range(count + 1)), tuple(mask), meta={"spans": spans})

    success, failure = row([(0, 1, 3), (1, 3, 4)], 3), row([(0, 1, 4)], 3)
    scores = Scores(None, "actor", RULES, None)
    turn = Turn("", None, None, "", Validity(True, True), 0.0)

    def episode(name, turns):
        return Trajectory(name, None, "g", (), (turn,) * turns, "", "success", 1.0, "terminated")

    s, f = episode("s", 2), episode("f", 1)
    scores._scores = {
        ("s", ""): _means(success, [-1, -0.5, -0.2]),
        ("s", "new"): _means(success, [-0.8, -0.4, -0.25]),
        ("f", ""): _means(failure, [-0.6, -0.6, -0.3]),
        ("f", "new"): _means(failure, [-0.7, -0.6, -0.35]),
    }
    call = Call("proposer", "actor", 0, (1,), (2,), (-1.0,), "", "stop")
    found = _alignment(Proposal("p", None, Pair(s, f, (s,), (f,)), "", "", call, Parsed("ADD", "new")), scores)
    assert found.delta_plus == pytest.approx(0.05)
    assert found.delta_minus == pytest.approx(-0.05)
    assert found.r_align == pytest.approx(0.10)
