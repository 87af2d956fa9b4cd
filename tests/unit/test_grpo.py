"""GRPO on a real tiny model: every mechanism is cut or fed what shows it."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from gongfu.config.schema import CustomSuiteConfig, GRPOConfig, Recipe, RolloutConfig
from gongfu.config.update import KLConfig
from gongfu.core.errors import EngineError, EnvError
from gongfu.engine.protocol import Capability, OptimParams
from gongfu.envs.runner import InlineRunner
from gongfu.methods.actions import action_part, anchors_of, group_metrics
from gongfu.methods.base import Schedule
from gongfu.methods.grpo import GRPO, _live, _trimmed
from gongfu.methods.returns import returns_of
from gongfu.methods.stale import corrected
from gongfu.methods.update import token_rows
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.context import TextRules
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import ACTOR, build_actor, build_engine
from toy import ToySuite, tiny_agent
from uniskill_cases import rollout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_agent(tmp_path_factory.mktemp("agent"))


def make(folder, tmp_path, *, lr=1e-2, mode="choose", rules=None, runner=None, **settings):
    recipe = Recipe(
        engine={"name": "local", "model": str(folder)},
        suite=CustomSuiteConfig(object="toy:ToySuite"),
        rollout=RolloutConfig(mode=mode, max_context=400, context=(rules or TextRules()).context),
        method=GRPOConfig(**{"tasks": 3, "group_size": 4, **settings}),
        run={"threads": 1},
    )
    engine, suite = build_engine(recipe, tmp_path), ToySuite()
    engine.sync()
    collector = Collector(
        runner or InlineRunner(suite), engine.tokenizer, rules or TextRules(), suite.instructions(), suite.max_steps, 400
    )
    actor = build_actor(recipe, engine, purpose="train", temperature=1.0)
    return GRPO(
        engine,
        collector,
        actor,
        TaskSampler(suite.tasks("train"), 0),
        recipe.method,
        OptimParams(lr),
        Schedule(steps=40),
        0,
        ACTOR,
        concurrency=64,
    )


def test_success_rises(folder, tmp_path):
    method = make(folder, tmp_path, tasks=6, group_size=8)
    scores = [method.step(k).metrics["rollout/score"] for k in range(40)]
    assert sum(scores[-8:]) / 8 > sum(scores[:8]) / 8 + 0.12


@pytest.mark.parametrize("rules", [TextRules(), TextRules(context="window", list_actions=True)])
@pytest.mark.parametrize(
    "settings",
    [
        {"advantage": "grpo", "statistics": "step", "std": "population"},
        {"advantage": "dr_grpo", "aggregation": "seq-mean-token-sum-norm"},
        {"advantage": "rloo"},
        {"advantage": "reinforce++", "kl": KLConfig(coefficient=0.05, place="reward")},
        {"advantage": "reinforce++_baseline"},
        {"advantage": "gigpo", "gamma": 0.9, "anchor_similarity": 0.8},
    ],
)
def test_every_estimator_trains_under_every_context(folder, tmp_path, rules, settings):
    method = make(folder, tmp_path, rules=rules, **settings)
    for k in range(2):
        metrics = method.step(k).metrics
        assert metrics["actor/grad_norm"] > 0 and metrics["train/tokens"] > 0
        assert metrics["actor/sampler_gap"] < 1e-4


def test_flat_groups_are_left_out_and_counted(folder, tmp_path):
    method = make(folder, tmp_path)
    played = method.collector.collect(method.actor, method.tasks.draw(0, 3), group_size=4)
    flat = [dataclasses.replace(t, score=1.0) if t.task.id == played[0].task.id else t for t in played]
    from gongfu.credit.advantages import zero_variance

    dead = zero_variance([returns_of(t, method.settings) for t in flat], [t.group for t in flat])
    assert dead[:4].all()
    part = action_part(flat, method.settings, method.engine, anchors=anchors_of(flat, method.settings))
    kept = {e.row.meta["trajectory"] for e in part.examples}
    assert kept and not kept & {t.id for t in flat[:4]}


def test_flat_groups_are_left_out_with_a_kl_unless_their_steps_are_compared_with_others(folder, tmp_path):
    from gongfu.config.role_agent import RoleAgentConfig

    method = make(folder, tmp_path)
    played = method.collector.collect(method.actor, method.tasks.draw(0, 2), group_size=4)
    flat = [dataclasses.replace(t, score=float(t.task.id == played[0].task.id)) for t in played]
    kl = {"kl": {"coefficient": 0.01}, "std": "none"}

    def kept(**settings):
        s = RoleAgentConfig(**kl, prediction={"horizon": 0.0}, **settings)
        return action_part(flat, s, method.engine, anchors=anchors_of(flat, s))

    assert RoleAgentConfig().anchor_scope == "batch"
    assert kept(advantage="grpo", gamma=1.0) is None
    assert kept(advantage="gigpo", anchor_scope="group", gamma=1.0) is None
    assert {e.row.meta["trajectory"] for e in kept(advantage="gigpo").examples} == {t.id for t in flat}


def test_lost_episodes_are_left_out(folder, tmp_path):
    class Flaky(InlineRunner):
        def step(self, actions):
            return {k: EnvError("broke") if k.endswith(":0") else a for k, a in super().step(actions).items()}

    report = make(folder, tmp_path, runner=Flaky(ToySuite())).step(0)
    assert report.metrics["rollout/lost"] == 3
    assert report.metrics["train/rows"] <= 9 and sum(lost(t) for t in report.trajectories) == 3


def test_penalty_and_discount_of_step_returns(folder, tmp_path):
    method = make(folder, tmp_path)
    (t, *_) = method.collector.collect(method.actor, method.tasks.draw(0, 1))
    bad = dataclasses.replace(t.turns[1], validity=dataclasses.replace(t.turns[1].validity, admissible=False))
    t = dataclasses.replace(t, turns=(t.turns[0], bad, t.turns[2]), score=1.0)
    assert returns_of(t, GRPOConfig(gamma=0.5, invalid_penalty=0.1)) == pytest.approx([0.25, 0.4, 1.0])


def test_a_wrong_format_earns_its_own_score_and_an_invalid_action_no_praise(folder, tmp_path):
    method = make(folder, tmp_path)
    played = method.collector.collect(method.actor, method.tasks.draw(0, 1), group_size=4)

    def turned(t, number, **flags):
        turns = list(t.turns)
        turns[number] = dataclasses.replace(turns[number], validity=dataclasses.replace(turns[number].validity, **flags))
        return dataclasses.replace(t, turns=tuple(turns))

    best = turned(turned(dataclasses.replace(played[0], score=1.0), 0, format=False), 1, admissible=False)
    group = [best, *(dataclasses.replace(t, score=0.0) for t in played[1:])]
    settings = GRPOConfig(invalid_penalty=0.1, format_score=-0.1, statistics="step")
    assert returns_of(best, settings) == pytest.approx([-0.1, 0.9, 1.0])

    def praise(settings):
        part = action_part(group, settings, method.engine, anchors=anchors_of(group, settings))
        rows = [e for e in part.examples if e.row.meta["trajectory"] == best.id]
        values = dict(zip([i for i, m in enumerate(rows[0].row.mask) if m], rows[0].advantages, strict=True))
        return [values[start] for _, start, _ in rows[0].row.meta["spans"]]

    free, capped = praise(settings), praise(GRPOConfig(**{**settings.model_dump(), "cap_invalid": True}))
    assert free[0] < 0 < free[1] and free[2] > 0
    assert capped == pytest.approx([free[0], 0.0, free[2]])


def test_kl_pulls_towards_the_frozen_base(folder, tmp_path):
    free = make(folder, tmp_path)
    held = make(folder, tmp_path, kl=KLConfig(coefficient=20.0, estimator="k2"))
    drift = []
    for method in (free, held):
        for k in range(6):
            metrics = method.step(k).metrics
        rows = [r for t in method.step(6).trajectories for r in token_rows(t)]
        base = method.engine.logprobs([r.row for r in rows], adapter=None)
        now = method.engine.logprobs([r.row for r in rows], adapter=ACTOR)
        drift.append(float(sum((a - b).square().sum() for a, b in zip(now, base, strict=True))))
    assert metrics["actor/kl_k3"] > 0
    assert drift[1] < 0.5 * drift[0]


def test_minibatches_and_epochs_are_optimiser_steps(folder, tmp_path):
    metrics = make(folder, tmp_path, minibatches=2, epochs=3).step(0).metrics
    assert metrics["actor/optimiser_steps"] == 6


def test_a_sampler_that_serves_other_weights_is_noticed(folder, tmp_path):
    method = make(folder, tmp_path, lr=0.3, max_gap=0.05)
    method.step(0)
    stale = method.engine.sync
    method.engine.sync = lambda: method.engine.version  # the disease: weights never reach the sampler
    with pytest.raises(EngineError, match="serves other weights"):
        for k in range(1, 8):
            method.step(k)
    method.engine.sync = stale


def test_one_step_off_plays_with_the_weights_of_before(folder, tmp_path):
    method = make(folder, tmp_path, lr=1e-3, one_step_off=True)
    steps = [method.step(k).metrics for k in range(3)]
    assert [m["train/version_lag"] for m in steps] == [0, 1, 1]
    assert [m["train/version"] for m in steps] == [2, 3, 4]
    assert steps[0]["train/importance_log_abs"] < 1e-5 < 1e-4 < steps[1]["train/importance_log_abs"]
    assert all(m["actor/grad_norm"] > 0 for m in steps)
    fresh = make(folder, tmp_path / "fresh", lr=1e-3)
    plain = [fresh.step(k) for k in range(2)]
    assert plain[0].metrics["actor/grad_norm"] == pytest.approx(steps[0]["actor/grad_norm"], rel=1e-4)
    assert plain[1].metrics["train/version_lag"] == 0


def test_one_step_off_goes_on_exactly_from_a_checkpoint(folder, tmp_path):
    method = make(folder, tmp_path, lr=1e-3, one_step_off=True)
    method.schedule = Schedule(steps=4)
    for k in range(2):
        method.step(k)
    ref, state = method.engine.save("here"), json.loads(json.dumps(method.state()))
    wanted = [method.step(k) for k in (2, 3)]
    assert method.state() == {}  # nothing is played beyond the last step
    again = make(folder, tmp_path, lr=1e-3, one_step_off=True)
    again.schedule = method.schedule
    again.engine.load(ref)
    again.restore(state)
    for k, report in zip((2, 3), wanted, strict=True):
        found = again.step(k)
        assert found.trajectories == report.trajectories
        same = [name for name in report.metrics if not name.startswith("time/")]
        assert {n: found.metrics[n] for n in same} == pytest.approx({n: report.metrics[n] for n in same}, rel=1e-6)


def test_an_older_policy_is_made_up_for_by_truncated_ratios(folder, tmp_path):
    """By hand: of two tokens that were sampled with exp(-1) and exp(-3) of today's probability, one is cut off at 2."""
    method = make(folder, tmp_path)
    batch = [t for t in method.collector.collect(method.actor, method.tasks.draw(0, 3), group_size=4) if t.turns]
    example = action_part(batch, method.settings, method.engine, anchors=anchors_of(batch, method.settings)).examples[0]
    now = [float(v) for v in method.engine.logprobs([example.row], adapter=ACTOR)[0]]
    gaps = [0.5, 3.0, *[0.0] * (len(now) - 2)]
    old = dataclasses.replace(
        example, old_logprobs=tuple(v - g for v, g in zip(now, gaps, strict=True)), advantages=(-2.0,) * len(now)
    )
    (fresh,), metrics = corrected([old], method.engine, adapter=ACTOR, cap=2.0, max_gap=10.0)
    assert fresh.old_logprobs == pytest.approx(now)
    assert fresh.advantages == pytest.approx([-2.0 * 1.6487213, -4.0, *[-2.0] * (len(now) - 2)])
    assert metrics["train/importance_truncated"] == pytest.approx(1 / len(now))
    assert metrics["train/importance_log_abs"] == pytest.approx(3.5 / len(now))
    with pytest.raises(EngineError, match="nats a token from the policy that sampled"):
        corrected([old], method.engine, adapter=ACTOR, cap=2.0, max_gap=3.0 / len(now))


def test_rollouts_of_too_old_a_version_are_refused(folder, tmp_path):
    method = make(folder, tmp_path, one_step_off=True)
    method.step(0)
    method.engine.sync()
    with pytest.raises(EngineError, match="version 1 came to be trained at version 3; at most 1 behind"):
        method.step(1)


def test_an_engine_that_can_do_both_plays_beside_the_update(folder, tmp_path):
    """The same numbers, from two threads."""
    one, two = (make(folder, tmp_path / name, lr=1e-3, one_step_off=True) for name in ("one", "two"))
    two.engine = Both(two.engine)
    two.actor = dataclasses.replace(two.actor, engine=two.engine)
    for k in range(3):
        reports = [method.step(k) for method in (one, two)]
        assert reports[0].trajectories == reports[1].trajectories
        a, b = ({n: v for n, v in r.metrics.items() if not n.startswith("time/")} for r in reports)
        assert a == pytest.approx(b, rel=1e-6)
    assert len(two.engine.sampled_in) == 2  # the first step's rollouts here, the others' elsewhere


class Both:
    """An engine that may be sampled while it trains, one call at a time."""

    def __init__(self, engine):
        self.engine, self.lock, self.sampled_in = engine, threading.Lock(), set()
        self.capabilities = engine.capabilities | {Capability.OVERLAP}

    async def sample(self, requests):
        self.sampled_in.add(threading.current_thread().name.split("_")[0])
        with self.lock:
            return await self.engine.sample(requests)

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if name not in ("logprobs", "forward_backward", "optim_step"):
            return found

        def locked(*args, **kwargs):
            with self.lock:
                return found(*args, **kwargs)

        return locked


def test_warmup_scales_the_first_steps(folder, tmp_path):
    slow, fast = make(folder, tmp_path), make(folder, tmp_path)
    slow.schedule = Schedule(steps=1, warmup=1000)
    rows = [r.row for t in fast.step(0).trajectories for r in token_rows(t)]
    slow.step(0)
    base = fast.engine.logprobs(rows, adapter=None)
    moved = [
        max(float((a - b).abs().max()) for a, b in zip(m.engine.logprobs(rows, adapter=ACTOR), base, strict=True))
        for m in (slow, fast)
    ]
    assert moved[0] < 0.1 * moved[1]


def test_gigpo_compares_states_and_not_only_texts():
    def episode(number, success, *steps):
        played = rollout(number, success, "; ".join("go" for _ in steps))
        turns = [dataclasses.replace(t, observation=seen, actions=a) for t, (seen, a) in zip(played.turns, steps, strict=True)]
        return dataclasses.replace(played, turns=tuple(turns))

    batch = [
        episode(0, True, ("Nothing happens.", ("open",)), ("You see mug 1.", ("take",))),
        episode(1, False, ("Nothing happens.", ("close",)), ("You see mug 2.", ("take",))),
    ]

    def cells(**settings):
        return [list(row) for row in anchors_of(batch, GRPOConfig(advantage="gigpo", **settings))]

    plain, state = cells(), cells(anchor="state")
    assert plain[0][0] == plain[1][0] and plain[0][1] != plain[1][1]
    assert state[0][0] != state[1][0]
    alike = cells(anchor_similarity=0.9)
    assert alike[0] == alike[1]
    settings = GRPOConfig(advantage="gigpo")
    assert group_metrics(batch, settings, anchors_of(batch, settings))["train/anchor_shared_steps"] == 0.5


class Scripted:
    """A collector whose groups end as told: one list of successes a task, round after round."""

    def __init__(self, *rounds):
        self.rounds, self.played = list(rounds), []

    def collect(self, actor, tasks, *, group_size, step, concurrency):
        told = self.rounds[len(self.played)]
        self.played.append([task.id for task in tasks])
        return [
            rollout(k, success, group=f"{step}:{task.id}")
            for task, successes in zip(tasks, told, strict=False)
            for k, success in enumerate(successes)
        ]


FLAT, MIXED = [True, True, True, True], [True, False, True, False]


def test_dynamic_sampling_plays_on_until_enough_groups_teach_something(folder, tmp_path):
    method = make(folder, tmp_path, dynamic_rounds=3)
    method.collector = Scripted([FLAT, MIXED, FLAT], [MIXED, MIXED, MIXED], [MIXED] * 3)
    rollouts = method._play(0)
    played = rollouts.trajectories
    assert rollouts.rounds == 1 and len(method.collector.played) == 2
    assert not set(method.collector.played[0]) & set(method.collector.played[1])  # no task twice
    trained = _trimmed(played, 3)
    assert len({t.group for t in trained}) == 3 and len(_live(played)) == 4  # the surplus is left out


def test_dynamic_sampling_stops_at_its_bound_and_can_be_off(folder, tmp_path):
    method = make(folder, tmp_path, dynamic_rounds=2)
    method.collector = Scripted(*[[FLAT] * 3] * 4)
    assert method._play(0).rounds == 2 and len(method.collector.played) == 3
    off = make(folder, tmp_path / "off")
    off.collector = Scripted([FLAT] * 3)
    assert off._play(0).rounds == 0 and len(off.collector.played) == 1


def test_penalties_do_not_make_a_group_live():
    from gongfu.core.records import Validity

    odd = dataclasses.replace(rollout(0, False).turns[0], validity=Validity(True, False))
    batch = [dataclasses.replace(rollout(0, False), turns=(odd,)), rollout(1, False)]
    assert _live(batch) == []


@pytest.mark.parametrize(("tokens", "penalty"), [(16384, 0.0), (18432, 0.5), (20480, 1.0), (30000, 1.0)])
def test_overlong_responses_are_punished_softly(tokens, penalty):
    from gongfu.core.records import Call

    call = Call("actor", "actor", 0, (1,), (2,) * tokens, (-1.0,) * tokens, "", "stop")
    turn = dataclasses.replace(rollout(0, True).turns[0], call=call)
    settings = GRPOConfig(overlong_from=16384, overlong_to=20480)
    assert returns_of(dataclasses.replace(rollout(0, True), turns=(turn,)), settings) == [1.0 - penalty]
