"""Contexts, collector and rows over the real household suite and a real word-level tokenizer; scripted actors."""

import asyncio
import dataclasses
import time
from collections import Counter

import pytest

import runner_cases
from gongfu.config.schema import Recipe, RolloutConfig
from gongfu.core.errors import EngineError, EnvError, TaskError, TokenError
from gongfu.core.records import Call
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.engine.words import vocabulary, write_tokenizer
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.envs.runner import InlineRunner
from gongfu.envs.workers import WorkerRunner
from gongfu.rollout.actor import RandomActor, ScriptedActor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.context import Context, TextRules
from gongfu.rollout.measure import rollout_metrics, success_by_kind
from gongfu.rollout.rows import rows_of
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import build_collector
from gongfu.run.demonstrations import expert_for, texts


@pytest.fixture(scope="module")
def suite():
    return HouseholdSuite(sizes={"train": 40, "seen": 10, "unseen": 10})


@pytest.fixture(scope="module")
def tokenizer(suite, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, vocabulary(texts(suite, episodes=10, seed=0)))
    return HFTokenizer(folder)


def collector_of(suite, tokenizer, max_steps=50, max_tokens=4096, **rules):
    return Collector(InlineRunner(suite), tokenizer, TextRules(**rules), suite.instructions(), max_steps, max_tokens)


def expert_actor(suite, tokenizer, **options):
    return ScriptedActor(tokenizer, expert_for(suite, 0), **options)


def expert_episodes(suite, tokenizer, count=4, **rules):
    collector = collector_of(suite, tokenizer, **rules)
    return collector.collect(expert_actor(suite, tokenizer, format=collector.rules.format), suite.tasks("train")[:count])


@pytest.mark.parametrize(
    "rules", [{}, {"context": "window"}, {"format": "tagged", "list_actions": True}, {"instructions": False}]
)
def test_expert_succeeds_under_every_text_rule(suite, tokenizer, rules):
    played = expert_episodes(suite, tokenizer, **rules)
    assert all(t.success and t.stop == "terminated" and t.score == 1 for t in played)
    assert all(turn.validity.ok for t in played for turn in t.turns)


def test_append_gives_one_row_and_window_one_a_turn(suite, tokenizer):
    (appended, *_) = expert_episodes(suite, tokenizer)
    (windowed, *_) = expert_episodes(suite, tokenizer, context="window")
    assert len(rows_of(appended)) == 1
    assert len(rows_of(windowed)) == len(windowed.turns) > 1


@pytest.mark.parametrize("context", ["append", "window"])
def test_rows_are_the_sampled_tokens_and_mask_exactly_them(suite, tokenizer, context):
    for trajectory in expert_episodes(suite, tokenizer, context=context):
        seen = []
        for row in rows_of(trajectory):
            for turn, start, end in row.meta["spans"]:
                call = trajectory.turns[turn].call
                assert row.tokens[:start] == call.prompt
                assert row.tokens[start:end] == call.response
                assert all(row.mask[start:end])
                seen.append(turn)
            assert row.targets == sum(end - start for _, start, end in row.meta["spans"])
        assert seen == list(range(len(trajectory.turns)))


def test_no_token_is_ever_encoded_again(suite, tokenizer):
    """A response in an unusual split of the same text stays as it was sampled, in the next prompt and in the row."""
    (task, *_) = suite.tasks("train")
    context = Context(TextRules(), tokenizer, task, None)
    start = suite.make(task).reset()
    context.see(start)
    odd = (*(tokenizer.encode(c)[0] for c in "look"), tokenizer.stop_ids[0])
    assert tokenizer.decode(odd[:-1]) == "look" and tuple(tokenizer.encode("look")) != odd[:-1]
    before = context.prompt()
    context.say(odd, "look")
    context.see(start)
    assert context.prompt()[: len(before) + len(odd)] == before + odd


def test_append_context_equals_the_template_of_the_whole_conversation(suite, tokenizer):
    (task, *_) = suite.tasks("train")
    env, system = suite.make(task), "Be brief."
    context = Context(TextRules(), tokenizer, task, system)
    first = env.reset()
    context.see(first)
    context.say((*tokenizer.encode("look"), tokenizer.stop_ids[0]), "look")
    second = env.step("look").observation
    context.see(second)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": first.text},
        {"role": "assistant", "content": "look"},
        {"role": "user", "content": second.text},
    ]
    assert tokenizer.decode(context.prompt()) == tokenizer.render(messages, generation=True)


def test_a_response_cut_by_its_length_is_closed_by_an_unmasked_end_token(suite, tokenizer):
    (task, *_) = suite.tasks("train")
    context = Context(TextRules(), tokenizer, task, None)
    start = suite.make(task).reset()
    context.see(start)
    before, cut = context.prompt(), tuple(tokenizer.encode("go to"))
    context.say(cut, "go to")
    context.see(start)
    assert context.prompt()[: len(before) + len(cut) + 1] == (*before, *cut, tokenizer.stop_ids[0])


def test_window_prompt_holds_the_last_turns_only(suite, tokenizer):
    (task, *_) = suite.tasks("train")
    start = suite.make(task).reset()
    context = Context(TextRules(context="window", window=2), tokenizer, task, None)
    for i in range(4):
        context.see(dataclasses.replace(start, text=f"observation {i}"))
        context.say((), f"action {i}")
    context.see(dataclasses.replace(start, text="now here"))
    text = tokenizer.decode(context.prompt())
    assert [f"observation {i}" in text for i in range(4)] == [False, False, True, True]
    assert "action 3" in text and "now here" in text and "You have taken 4 steps" in text and task.goal in text


def test_reminder_ends_every_observation_but_the_first(suite, tokenizer):
    (task, *_) = suite.tasks("train")
    start = suite.make(task).reset()
    context = Context(TextRules(remind=True), tokenizer, task, None)
    for _ in range(3):
        context.see(start)
        context.say((*tokenizer.encode("look"), tokenizer.stop_ids[0]), "look")
    reminder = f"Your task is to: {task.goal}."
    assert tokenizer.decode(context.prompt()).count(f"{start.text}\n{reminder}") == 2


def test_skills_are_shown_and_recorded(suite, tokenizer):
    (task, *_) = suite.tasks("train")
    collector = collector_of(suite, tokenizer)
    shown = [{"s1": "Look in the fridge first."}]
    with_skill, *_, without = collector.collect(expert_actor(suite, tokenizer), [task], group_size=3, skills=shown, withheld=1)
    assert with_skill.skills == ("s1",) and without.skills == ()
    assert "Look in the fridge first." in tokenizer.decode(with_skill.turns[0].call.prompt)
    assert "Look in the fridge first." not in tokenizer.decode(without.turns[0].call.prompt)


def test_the_same_task_twice_may_show_two_skills(suite, tokenizer):
    (task, *_) = suite.tasks("train")
    collector = collector_of(suite, tokenizer)
    played = collector.collect(expert_actor(suite, tokenizer), [task, task], skills=[{"a": "one"}, {"b": "two"}])
    assert [t.skills for t in played] == [("a",), ("b",)]


def test_a_template_that_rewrites_history_is_refused(suite, tokenizer):
    class Forgetful:
        stop_ids = tokenizer.stop_ids
        encode, decode = tokenizer.encode, tokenizer.decode

        def render(self, messages, *, generation):
            return tokenizer.render(messages[-1:], generation=generation)

    (task, *_) = suite.tasks("train")
    context = Context(TextRules(), Forgetful(), task, None)
    start = suite.make(task).reset()
    context.see(start)
    context.say((1,), "")
    with pytest.raises(TokenError, match="window"):
        context.see(start)


def test_groups_rollouts_and_ids(suite, tokenizer):
    collector = collector_of(suite, tokenizer)
    tasks = list(suite.tasks("train")[:2])
    played = collector.collect(expert_actor(suite, tokenizer), [*tasks, tasks[0]], group_size=2, step=7, concurrency=3)
    assert len({t.id for t in played}) == 6 and [t.task for t in played] == [x for x in [*tasks, tasks[0]] for _ in range(2)]
    assert len({t.group for t in played}) == 3 and all(t.id.startswith("000007:") for t in played)


def test_concurrency_changes_no_episode(suite, tokenizer):
    collector, tasks = collector_of(suite, tokenizer), suite.tasks("train")[:5]
    one = collector.collect(expert_actor(suite, tokenizer), tasks, group_size=2, concurrency=1)
    many = collector.collect(expert_actor(suite, tokenizer), tasks, group_size=2)
    assert one == many


def test_limits_of_steps_and_context(suite, tokenizer):
    tasks = suite.tasks("train")[:3]

    def walker(task, rollout):
        return RandomActor(task, rollout, 0)

    short = collector_of(suite, tokenizer, max_steps=2).collect(ScriptedActor(tokenizer, walker), tasks)
    assert all(t.stop == "truncated" and len(t.turns) == 2 and t.outcome == "failure" for t in short)
    narrow = collector_of(suite, tokenizer, max_tokens=10).collect(ScriptedActor(tokenizer, walker), tasks)
    assert all(t.stop == "context" and not t.turns for t in narrow)


def test_a_failing_environment_or_prompt_costs_one_episode(suite, tokenizer):
    class Flaky(InlineRunner):
        def step(self, actions):
            answers = super().step(actions)
            return {key: EnvError("it broke") if key.endswith("00001:0") else a for key, a in answers.items()}

    class Refusing(ScriptedActor):
        async def answer(self, asks):
            answers = await super().answer(asks)
            return [EngineError("no") if a.episode.endswith("00002:0") else b for a, b in zip(asks, answers, strict=True)]

    collector = dataclasses.replace(collector_of(suite, tokenizer), runner=Flaky(suite))
    played = collector.collect(Refusing(tokenizer, expert_for(suite, 0)), suite.tasks("train")[:4])
    broken = [t for t in played if lost(t)]
    assert {t.error for t in broken} == {"it broke", "no"} and len(broken) == 2
    metrics = rollout_metrics(played)
    assert metrics["rollout/lost"] == 2 and metrics["rollout/success"] == 1
    assert set(success_by_kind(played).values()) == {1.0}


class Dies(InlineRunner):
    """Its environments die at a step of some episodes, the first `times` times."""

    def __init__(self, suite, times=1, error=EnvError):
        super().__init__(suite)
        self.times, self.error, self.stepped = times, error, Counter()

    def step(self, actions):
        answers = super().step(actions)
        for key in actions:
            self.stepped[key] += 1
            if "00001:" in key and self.stepped[key] % 4 == 3 and self.stepped[key] < 4 * self.times:
                self.release([key])
                answers[key] = self.error("it died")
        return answers


SCHEDULES = pytest.mark.parametrize("schedule", ["together", "apart"])


@SCHEDULES
def test_an_environment_that_fails_is_begun_anew_from_its_seed(suite, tokenizer, schedule):
    """The same episodes as without the failure: no action of the broken beginning is taken again in a living environment."""
    collector = dataclasses.replace(collector_of(suite, tokenizer), schedule=schedule)
    tasks = suite.tasks("train")[:4]
    wanted = collector.collect(expert_actor(suite, tokenizer), tasks)
    for times, retries, restarted in ((1, 1, 1), (2, 2, 2), (2, 1, None)):
        again = dataclasses.replace(collector, runner=Dies(suite, times), retries=retries)
        played = again.collect(expert_actor(suite, tokenizer), tasks)
        assert rollout_metrics(played)["rollout/restarts"] == (restarted or retries)
        if restarted:
            assert [dataclasses.replace(t, restarts=0) for t in played] == wanted
        else:
            assert [t.stop for t in played if lost(t)] == ["error"] and len([t for t in played if t.success]) == 3


def test_the_settings_of_a_recipe_reach_the_collector(suite, tokenizer):
    settings = {"schedule": "apart", "retries": 3, "episode_timeout": 7.0}
    built = build_collector(Recipe(rollout=RolloutConfig(**settings)), suite, tokenizer, InlineRunner(suite))
    assert {name: getattr(built, name) for name in settings} == settings


@SCHEDULES
def test_an_episode_has_a_dead_line(suite, tokenizer, schedule):
    class Slow(ScriptedActor):
        async def answer(self, asks):
            if any("00001:" in ask.episode for ask in asks):
                await asyncio.sleep(0.06)
            return await super().answer(asks)

    collector = dataclasses.replace(collector_of(suite, tokenizer), schedule=schedule, episode_timeout=0.1, retries=3)
    tasks = suite.tasks("train")[:4]
    played = collector.collect(Slow(tokenizer, expert_for(suite, 0)), tasks)
    late = [t for t in played if t.stop == "timeout"]
    assert late and all("rollout.episode_timeout" in t.error and t.restarts == 0 for t in late)
    if schedule == "apart":  # nobody waits for the slow one
        assert len(late) == 1 and all(t.success for t in played if t not in late)


def test_both_schedules_play_the_same_episodes(suite, tokenizer):
    collector, tasks = collector_of(suite, tokenizer), suite.tasks("train")[:6]
    apart = dataclasses.replace(collector, schedule="apart")
    one, two = (c.collect(expert_actor(suite, tokenizer), tasks, group_size=2, concurrency=5) for c in (collector, apart))
    assert one == two


def test_together_the_prompts_of_a_turn_are_one_batch(suite, tokenizer):
    class Counting(ScriptedActor):
        batches = ()

        async def answer(self, asks):
            self.batches = (*self.batches, len(asks))
            return await super().answer(asks)

    actor = Counting(tokenizer, expert_for(suite, 0))
    played = collector_of(suite, tokenizer).collect(actor, suite.tasks("train")[:9], concurrency=4)
    assert sum(actor.batches) == sum(len(t.turns) for t in played)
    assert set(actor.batches[: min(len(t.turns) for t in played)]) == {4} and len(actor.batches) < sum(actor.batches) / 2


@SCHEDULES
def test_what_ends_a_run_is_raised_and_closes_every_environment(suite, tokenizer, schedule):
    class Broken(ScriptedActor):
        async def answer(self, asks):
            if any(ask.turn == 2 for ask in asks):
                raise EngineError("no server is left")
            return await super().answer(asks)

    collector = dataclasses.replace(collector_of(suite, tokenizer), schedule=schedule)
    with pytest.raises(EngineError, match="no server is left"):
        collector.collect(Broken(tokenizer, expert_for(suite, 0)), suite.tasks("train")[:4])
    assert not collector.runner._running


@SCHEDULES
def test_a_runner_that_cannot_be_used_ends_the_collection(suite, tokenizer, schedule):
    with WorkerRunner(suite, workers=2) as runner:
        pass
    closed = dataclasses.replace(collector_of(suite, tokenizer), runner=runner, schedule=schedule, retries=3)
    with pytest.raises(EnvError, match="this runner is closed"):
        closed.collect(expert_actor(suite, tokenizer), suite.tasks("train")[:4])


def test_apart_a_slow_environment_holds_up_nobody(suite, tokenizer):
    """While one environment takes its time, the others play on in their own threads."""

    class Slow(InlineRunner):
        waits = True
        ended = ()

        def step(self, actions):
            (key,) = actions
            if "00001:" in key:
                time.sleep(0.02)
            return super().step(actions)

        def release(self, keys):
            for key in keys:
                if key in self._running:
                    self.ended = (*self.ended, key)
            super().release(keys)

    runner = Slow(suite)
    collector = dataclasses.replace(collector_of(suite, tokenizer), schedule="apart", runner=runner)
    played = collector.collect(expert_actor(suite, tokenizer), suite.tasks("train")[:4])
    assert all(t.success for t in played)
    assert "00001:" in runner.ended[-1] and len(runner.ended) == 4


def test_sampled_rows_need_one_policy(suite, tokenizer):
    (t, *_) = expert_episodes(suite, tokenizer, count=1)
    hollow = dataclasses.replace(t, turns=(dataclasses.replace(t.turns[0], call=None),))
    with pytest.raises(TokenError, match="no call"):
        rows_of(hollow)
    hotter = [
        dataclasses.replace(turn, call=dataclasses.replace(turn.call, temperature=1 + i)) for i, turn in enumerate(t.turns)
    ]
    assert len(rows_of(dataclasses.replace(t, turns=tuple(hotter)))) == len(t.turns)
    assert isinstance(t.turns[0].call, Call)


def test_task_sampler_plays_every_task_once_an_epoch(suite):
    tasks = suite.tasks("train")
    sampler = TaskSampler(tasks, seed=1)
    epoch = [t.id for step in range(4) for t in sampler.draw(step, 10)]
    assert sorted(epoch) == sorted(t.id for t in tasks)
    assert epoch != [t.id for step in range(4, 8) for t in sampler.draw(step, 10)]
    assert [t.id for t in TaskSampler(tasks, seed=1).draw(2, 10)] == epoch[20:30]
    assert [t.id for t in TaskSampler(tasks, seed=2).draw(2, 10)] != epoch[20:30]
    with pytest.raises(TaskError, match="empty"):
        TaskSampler([], seed=0)


class GoAndEnd:
    def __init__(self):
        self.actions = ["go", "end"]

    def act(self, observation):
        return self.actions.pop(0)


def test_apart_a_hanging_environment_keeps_its_worker_until_its_own_dead_line(tokenizer):
    """The episode is lost at its dead-line, and the only worker can be used again afterwards."""
    with WorkerRunner(runner_cases.ToySuite(), workers=1, step_timeout=3.0) as runner:
        late = Collector(runner, tokenizer, TextRules(), "", 5, 4096, "apart", episode_timeout=1.5)
        started = time.monotonic()
        (lost_one,) = late.collect(ScriptedActor(tokenizer, lambda task, rollout: GoAndEnd()), [runner_cases.task("hang")])
        assert time.monotonic() - started > 3.0
        assert lost_one.stop == "timeout" and "rollout.episode_timeout" in lost_one.error
        patient = dataclasses.replace(late, episode_timeout=0.0)
        (played,) = patient.collect(ScriptedActor(tokenizer, lambda task, rollout: GoAndEnd()), [runner_cases.task("fine")])
        assert played.stop == "terminated"


def test_apart_worker_processes_play_the_episodes_of_this_process(suite, tokenizer):
    collector, tasks = collector_of(suite, tokenizer), suite.tasks("train")[:6]
    wanted = collector.collect(expert_actor(suite, tokenizer), tasks)
    with WorkerRunner(suite, workers=3) as runner:
        apart = dataclasses.replace(collector, schedule="apart", runner=runner)
        assert apart.collect(expert_actor(suite, tokenizer), tasks) == wanted
