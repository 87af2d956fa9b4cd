"""The step of UniSkill on the shipped nano model and real tasks: each mechanism is there, and shows when it is cut."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import CheckpointError, ConfigError
from gongfu.methods.uniskill.gate import choose_edits
from gongfu.methods.uniskill.learning import proposal_rows
from gongfu.methods.uniskill.prompt import body
from gongfu.methods.uniskill.records import Group
from gongfu.methods.uniskill.trials import RolloutValuer
from gongfu.run.build import build_collector, build_engine, build_method, build_runner, build_suite
from gongfu.skills.edits import Add
from gongfu.skills.skill import Skill
from toy import ToySuite
from uniskill_cases import judged, proposal

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    *("--method.tasks=3", "--run.threads=1", "--suite.train=60", "--suite.seen=12", "--rollout.concurrency=64"),
    *("--suite.families=6", "--method.group-size=8", "--method.sources=4", "--method.references=0"),
    "--method.shared-references=false",
    *("--method.proposer.mode=generate", "--method.reward.duplicate-factor=1"),
    *("--method.retrieval.relative-to=query", "--method.retrieval.floor=0"),
]
"""Small steps with written proposals, and some skill for every task."""


def make(folder, *overrides):
    """The method of the nano recipe in a folder, with the bank that lies there."""
    folder.mkdir(exist_ok=True)
    files = [ROOT / "recipes" / "uniskill-household-nano.toml"]
    recipe = load(Recipe, files=files, overrides=[*SMALL, *overrides]).config
    suite, engine = build_suite(recipe.suite), build_engine(recipe, folder)
    engine.sync()
    collector = build_collector(recipe, suite, engine.tokenizer, build_runner(recipe, suite))
    return build_method(recipe, engine, collector, suite, folder)


def adapter_of(method):
    return {name: value.clone() for name, value in method.engine._adapters["actor"].parameters.items()}


def moved(before, after):
    return max(float((before[name] - after[name]).detach().abs().max()) for name in before)


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """One step with an empty bank: the method afterwards, its report, the adapter before."""
    method = make(tmp_path_factory.mktemp("run"))
    before = adapter_of(method)
    report = method.step(STEP)
    return method, report, before


STEP = 1
"""A step whose tasks give groups with both outcomes."""


def with_skills(method):
    """Give every task of a step the right skill, one commit."""
    import random

    suite = build_suite(load(Recipe, files=[ROOT / "recipes" / "uniskill-household-nano.toml"], overrides=SMALL).config.suite)
    texts = {suite.advise(t, "good", random.Random(0)).text for t in method.tasks.draw(STEP, method.settings.tasks)}
    edits = [Add(Skill(text=text)) for text in sorted(texts)]
    method.library.bank.commit(edits, parent=method.library.view.commit, message="taught")
    method.library.view = method.library.bank.at()
    return texts


def test_proposals_are_made_judged_and_recorded(step):
    method, report, _ = step
    recorded = method.library.bank.proposals()
    assert report.metrics["proposals/eligible_groups"] > 0
    assert len(recorded) == report.metrics["proposals/count"] > 0
    assert {p.decision for p in recorded} <= {"accepted", "rejected"} and all(p.reason for p in recorded)
    assert any(p.scores.get("r_align") is not None for p in recorded)  # cut: nothing is ever measured
    assert len({p.text for p in recorded}) > 1


def test_only_what_the_gate_lets_pass_is_in_the_bank(step):
    method, report, _ = step
    accepted = {p.text for p in method.library.bank.proposals() if p.decision == "accepted"}
    assert {s.text for s in method.library.view.skills()} == accepted
    assert report.metrics["proposals/accepted"] == len([p for p in method.library.bank.proposals() if p.decision == "accepted"])
    for p in method.library.bank.proposals():
        if p.decision == "accepted":
            assert p.scores["r_align"] > 0


def test_an_open_gate_would_let_more_in(step, tmp_path):
    _, report, _ = step
    open_gate = make(
        tmp_path, "--method.gate.use-align=false", "--method.gate.kind=paper", "--method.gate.max-adds-per-group=0"
    )
    assert open_gate.step(STEP).metrics["proposals/accepted"] > report.metrics["proposals/accepted"]


def test_the_alignment_is_what_an_edit_is_paid(step):
    method, _, _ = step
    eta = method.rewards.eta
    paid = [p for p in method.library.bank.proposals() if p.scores.get("r_align") is not None and p.op in ("add", "update")]
    assert paid
    for p in paid:
        assert p.scores["skill"] == pytest.approx(min(max(p.scores["r_align"], -eta), eta))
    assert len({round(p.scores["skill"], 6) for p in paid}) > 1


def test_without_r_align_every_good_edit_is_paid_the_same(tmp_path):
    method = make(tmp_path, "--method.reward.use-align=false")
    method.step(STEP)
    paid = [p.scores["skill"] for p in method.library.bank.proposals() if p.op in ("add", "update")]
    assert set(paid) <= {0.0, -method.rewards.eta, None}


def test_the_bank_is_read(tmp_path):
    method = make(tmp_path)
    texts = with_skills(method)
    report = method.step(STEP)
    decode = method.engine.tokenizer.decode
    shown = [t for t in report.trajectories if t.skills]
    assert report.metrics["rollout/skills_shown"] == len(shown) / len(report.trajectories) > 0.5
    for t in shown:
        assert any(text in decode(t.turns[0].call.prompt) for text in texts)
    for t in report.trajectories:
        if not t.skills:
            assert "Skill:" not in decode(t.turns[0].call.prompt)


def test_some_rollouts_of_every_group_are_played_without_and_counted(tmp_path):
    method = make(tmp_path)
    with_skills(method)
    report = method.step(STEP)
    uses = method.library.bank.uses()
    assert len(uses) == len(report.trajectories)
    groups = {t.group for t in report.trajectories}
    assert sum(u.mode == "without" for u in uses) == len(groups) * method.settings.lifecycle.withheld
    none = make(tmp_path / "none", "--method.lifecycle.withheld=0")
    with_skills(none)
    none.step(STEP)
    assert {u.mode for u in none.library.bank.uses()} == {"with"}


def test_a_shown_skill_can_be_updated(tmp_path):
    method = make(tmp_path, "--method.tasks=6")
    with_skills(method)
    method.step(STEP)
    shown = [p for p in method.library.bank.proposals() if p.target]
    assert shown and {p.op for p in shown} != {"malformed"}


def test_actions_and_proposals_are_learned_in_the_same_steps(step):
    method, report, before = step
    metrics = report.metrics
    assert metrics["train/rows_actor"] > 0 and metrics["train/rows_proposer"] > 0
    assert metrics["proposer/loss"] != 0 and metrics["proposer/sampler_gap"] < 1e-3 > metrics["actor/sampler_gap"]
    assert metrics["actor/optimiser_steps"] == method.settings.minibatches
    assert moved(before, adapter_of(method)) > 0


@pytest.mark.parametrize(
    ("cut", "trained"), [("--method.train-actor=false", "proposer"), ("--method.train-proposer=false", "actor")]
)
def test_each_role_alone_moves_the_adapter(tmp_path, cut, trained):
    method = make(tmp_path, cut)
    before = adapter_of(method)
    metrics = method.step(STEP).metrics
    assert {name for name in metrics if name.startswith("train/rows_")} == {f"train/rows_{trained}"}
    assert moved(before, adapter_of(method)) > 0


def test_the_support_floor_is_there_and_can_be_cut(step, tmp_path):
    _, report, _ = step
    assert report.metrics["proposer/p_ADD"] > 0 and report.metrics["proposer/op_entropy"] > 0
    formed = report.metrics["proposals/count"] - report.metrics["proposals/refused_malformed"]
    assert report.metrics["train/decisions_placed"] == formed > 0
    without = make(tmp_path, "--method.support.weight=0").step(STEP).metrics
    assert "proposer/p_ADD" not in without


def test_the_warm_up_pays_form_only_and_writes_nothing(tmp_path):
    method = make(tmp_path, "--method.warmup=5")
    metrics = method.step(STEP).metrics
    assert metrics["proposals/count"] > 0 == metrics["proposals/accepted"] == metrics["bank/skills"]
    eta, factor = method.rewards.eta, method.rewards.malformed_factor
    assert {p.scores["total"] for p in method.library.bank.proposals()} <= {eta, -factor * eta}


def test_the_same_step_twice_makes_the_same_commit(step, tmp_path):
    method, report, _ = step
    again = make(tmp_path)
    report_again = again.step(STEP)
    assert again.library.view.commit == method.library.view.commit
    assert [t.id for t in report_again.trajectories] == [t.id for t in report.trajectories]
    assert [p.text for p in again.library.bank.proposals()] == [p.text for p in method.library.bank.proposals()]


def test_restore_goes_back_to_the_commit_and_refuses_another_bank(step, tmp_path):
    method, _, _ = step
    state = method.state()
    fresh = make(tmp_path)
    with pytest.raises(CheckpointError, match="restored together"):
        fresh.restore({**state, "bank": "f" * 64})
    with_skills(fresh)
    later = fresh.library.view.commit
    root = {**fresh.state(), "bank": fresh.library.bank.log()[-1].id}
    fresh.restore(root)
    assert fresh.library.view.commit == root["bank"] != later and not fresh.library.view.skills()


def test_rollouts_can_value_proposals_instead(tmp_path):
    method = make(tmp_path, "--method.feedback=rollout", "--method.feedback-rollouts=2", "--method.sources=2")
    method.step(STEP)
    measured = [p for p in method.library.bank.proposals() if p.scores.get("r_align") is not None]
    assert measured and all(abs(p.scores["r_align"]) <= 1 for p in measured)
    assert method.trials.episodes == 4 * len(measured)  # two episodes with each edit and two without it


def test_proposals_of_a_group_can_share_their_references(tmp_path):
    method = make(tmp_path, "--method.shared-references=true", "--method.references=2")
    played = method._play(method.tasks.draw(STEP, method.settings.tasks), {}, STEP)
    proposals, _ = method.proposer.propose(method._groups(played, {}), STEP)
    groups = [list(g) for _, g in groupby(proposals, key=lambda p: p.task.id)]
    assert len(groups) > 1
    for group in groups:
        assert len({(p.pair.successes[0].id, p.pair.failures[0].id) for p in group}) == 1
    method.valuer.value([replace(p, parsed=groups[0][0].parsed) for p in groups[0] if p.is_edit], STEP)
    first = groups[0][0].pair
    assert method.valuer.rows == len(first.successes) + len(first.failures)  # one text, and the sampler knows its old score


OUTCOME = [
    "--method.feedback=outcome",
    "--method.feedback-rollouts=2",
    "--method.gate.use-align=false",
    "--method.reward.partial-when-unscorable=false",
]


def test_later_episodes_can_value_proposals_instead(tmp_path):
    method = make(tmp_path, *OUTCOME)
    first = method.step(STEP).metrics
    entered = method.library.view.skills()
    assert entered and len(method.delayed.waiting) == len(entered) and first["proposals/waiting"] == 0
    assert all(p.scores["skill"] is None for p in method.library.bank.proposals() if p.decision == "accepted")
    again = make(tmp_path / "resumed", *OUTCOME)
    again.restore({**method.state(), "bank": again.library.view.commit})
    assert again.delayed.waiting == method.delayed.waiting
    tasks = method.tasks.draw(STEP, method.settings.tasks)
    method.tasks = StubTasks(tasks)
    method.step(STEP + 1)  # the same tasks: their homes ask for the skills that they gave rise to
    later = method.step(STEP + 2).metrics
    valued = later["proposals/valued_late"]
    assert valued > 0 and later["proposer_late/tokens"] > 0


def test_a_skill_that_nobody_uses_is_given_up(tmp_path):
    method = make(tmp_path, *OUTCOME, "--method.feedback-rollouts=999", "--method.feedback-patience=1")
    method.step(STEP)
    waiting = len(method.delayed.waiting)
    assert method.delayed.due(STEP) == ([], {**NOTHING, "proposals/waiting": waiting})
    assert method.delayed.due(STEP + 1) == ([], {**NOTHING, "proposals/given_up": waiting})


class StubTasks:
    def __init__(self, tasks):
        self.tasks = tasks

    def draw(self, step, count):
        return self.tasks


NOTHING = {"proposals/valued_late": 0.0, "proposals/given_up": 0.0, "proposals/waiting": 0.0}


def test_an_append_only_bank_offers_no_update_and_takes_none(tmp_path):
    method = make(tmp_path, "--method.proposer.updates=false")
    p = proposal("UPDATE", target="s")
    asked = {
        updates: body(replace(method.proposer.rules, updates=updates), p.pair.source, p.pair.opposite, "A skill.")
        for updates in (True, False)
    }
    assert method.proposer.rules.updates is False and "update" in asked[True] and "update" not in asked[False]
    judgments = [replace(judged(), proposal=replace(p, may_update=may)) for may in (True, False)]
    decisions = [choose_edits([one], replace(method.gate, kind="paper"), bank={}, threshold=None)[0][1] for one in judgments]
    assert [d.reason for d in decisions] == ["accepted", "critic"]


def test_probes_calibrate_the_gate(tmp_path):
    method = make(tmp_path, "--method.calibration.alpha=0.4", "--method.calibration.every=1", "--method.calibration.rollouts=2")
    metrics = method.step(STEP).metrics
    assert metrics["calibration/pairs"] == 2 and method.trials.episodes == 8
    other = make(tmp_path / "other")
    other.restore({**method.state(), "bank": other.library.view.commit})
    assert len(other.calibration) == 2


def test_the_canary_sets_a_harmful_bank_back(tmp_path):
    method = make(
        tmp_path, "--method.canary.every=1", "--method.canary.tasks=12", "--method.canary.errors=0", "--method.tasks=2"
    )
    before = method.trusted
    with_skills(method)
    played = []

    def worse(library, old, new, step):
        played.append((old, new))
        return 9, 2

    method.trials.compare_banks = worse
    metrics = method.step(STEP).metrics
    assert played[0][0] == before and metrics["canary/rolled_back"] == 1
    assert method.library.view.commit == before and method.library.bank.head() == before


def test_banks_are_compared_on_tasks_that_training_never_plays(tmp_path):
    method = make(tmp_path, "--method.canary.every=1", "--method.canary.tasks=6", "--method.tasks=2")
    held_out = {t.id for t in method.trials.held_out}
    assert len(held_out) == 6 and not held_out & {t.id for t in method.tasks.tasks}
    before = method.library.view.commit
    with_skills(method)
    old, new = method.trials.compare_banks(method.library, before, method.library.view.commit, 0)
    assert 0 <= old <= 6 and 0 <= new <= 6 and method.trials.episodes == 12


# ---------------------------------------------------------------------- chosen proposals

CHOOSING = ["--method.proposer.mode=choose"]


@pytest.fixture(scope="module")
def choosing(tmp_path_factory):
    method = make(tmp_path_factory.mktemp("choosing"), *CHOOSING)
    played = method.collector.collect(
        method.actor, method.tasks.draw(STEP, 3), group_size=8, step=STEP, skills=method.shown(method.tasks.draw(STEP, 3))
    )
    groups = [
        Group(group[0].task, group, "some-skill" if k == 0 else "", SHOWN if k == 0 else "")
        for k, group in enumerate([list(g) for _, g in groupby(played, key=lambda t: t.group)])
    ]
    proposals, _ = method.proposer.propose(groups, STEP)
    return method, groups, proposals


SHOWN = "Something is usually somewhere else."


def test_a_chosen_proposal_says_what_the_suite_lists(choosing):
    method, _, proposals = choosing
    suite = method.collector.runner.suite
    assert proposals and {p.parsed.op for p in proposals} > {"ADD"}
    assert all(p.parsed.text in suite.lessons(p.task) for p in proposals if p.is_edit)
    assert all(p.parsed.op in p.legal for p in proposals)
    assert len({p.parsed.text for p in proposals}) > 2, "several lessons are tried"


def test_the_trainer_agrees_with_what_was_chosen(choosing):
    """Operation and text are two choices of one row; their log-probs are those that the sampler drew by."""
    method, _, proposals = choosing
    rows = proposal_rows(proposals)
    assert {len(row.choices) for row in rows} == {1, 2}, "a KEEP is one choice, an edit two"
    for row, p, logprobs in zip(rows, proposals, method.engine.logprobs(rows, adapter="actor"), strict=True):
        assert row.tokens == p.call.prompt + p.call.response
        assert logprobs.tolist() == pytest.approx(p.call.logprobs, abs=1e-4)


def test_chosen_proposals_are_trained_and_kept_for_later(tmp_path):
    method = make(tmp_path, *CHOOSING, *OUTCOME)
    before = adapter_of(method)
    metrics = method.step(STEP).metrics
    assert metrics["proposer/tokens"] > 0 and moved(before, adapter_of(method)) > 0
    waiting = method.valuer.waiting
    assert waiting and all(len(w.choices) == 2 for w in waiting.values())
    other = make(tmp_path / "other", *CHOOSING, *OUTCOME)
    other.valuer.restore(json.loads(json.dumps(method.valuer.state())))
    assert other.valuer.waiting == waiting


def test_a_suite_without_lessons_cannot_be_chosen_from(tmp_path):
    method = make(tmp_path)
    recipe = load(Recipe, files=[ROOT / "recipes" / "uniskill-household-nano.toml"], overrides=[*SMALL, *CHOOSING]).config
    with pytest.raises(ConfigError, match="lessons"):
        build_method(recipe, method.engine, method.collector, ToySuite(), tmp_path / "toy")


def test_proposals_that_say_the_same_are_tried_by_rollouts_once(choosing):
    method, _, proposals = choosing
    before = method.trials.episodes
    found = RolloutValuer(method.trials, 2).value(proposals, STEP)
    distinct = {(p.task.id, p.target_text, p.parsed.text) for p in proposals if p.is_edit}
    assert len(distinct) < sum(p.is_edit for p in proposals), "the fixture has none that say the same"
    assert method.trials.episodes - before == 4 * len(distinct)
    assert [value is not None for value in found] == [p.is_edit for p in proposals]
