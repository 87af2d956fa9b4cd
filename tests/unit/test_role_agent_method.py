"""Role-Agent on a real tiny model: predictions scale returns, failures choose tasks; each is cut."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from gongfu.config.load import load
from gongfu.config.role_agent import FailureConfig
from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError
from gongfu.core.records import Task, Trajectory
from gongfu.engine.protocol import Sample
from gongfu.methods.actions import action_part, anchors_of
from gongfu.methods.role_agent.agent_in_world import AgentInWorld, parse_reflection
from gongfu.methods.role_agent.curriculum import Failure, FailureCurriculum
from gongfu.methods.role_agent.world_in_agent import Predictions, _read, similarities
from gongfu.rollout.context import reminder
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import build_collector, build_engine, build_method, build_runner, build_suite
from toy import TOY_RECIPE, ToySuite, tiny_agent


class BlamingToy(ToySuite):
    """The toy suite with failure modes; an episode's is how many picks were right."""

    failure_modes = ("none right", "one right", "two right")

    def diagnose(self, trajectory: Trajectory) -> str:
        return self.failure_modes[round(trajectory.score * 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_agent(tmp_path_factory.mktemp("agent"))


ROLE_AGENT = """
[method]
name = "role_agent"

[method.prediction]
mode = "continue"
max_response = 12

[method.failures]
writer = "choose"
retrieval = "similarity"
every = 1
"""


def make(folder, tmp_path, *overrides):
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "role_agent.toml").write_text(ROLE_AGENT)
    settings = [*TOY_RECIPE, f"--engine.model={folder}", "--suite.object=test_role_agent_method:BlamingToy", *overrides]
    recipe = load(Recipe, files=[tmp_path / "role_agent.toml"], overrides=settings).config
    suite = build_suite(recipe.suite)
    engine = build_engine(recipe, tmp_path)
    engine.sync()
    collector = build_collector(recipe, suite, engine.tokenizer, build_runner(recipe, suite))
    return build_method(recipe, engine, collector, suite, tmp_path)


def test_a_step_predicts_reads_failures_and_trains(folder, tmp_path):
    method = make(folder, tmp_path)
    metrics = method.step(0).metrics
    turns = sum(len(t.turns) for t in method.step(1).trajectories)
    assert metrics["prediction/count"] == turns == 2 * 4 * 3
    assert 0 < metrics["prediction/similarity"] < 1 and metrics["prediction/factor"] > 1
    assert metrics["failures/read"] > 0 and metrics["failures/pool"] > 0
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize(("mode", "context"), [("ask", "append"), ("ask", "window"), ("continue", "append")])
def test_predictions_are_of_the_steps_that_come_and_of_none_beyond_the_end(folder, tmp_path, mode, context):
    method = make(
        folder,
        tmp_path,
        f"--method.prediction.mode={mode}",
        f"--rollout.context={context}",
        "--method.prediction.horizon=0.67",
    )
    played = method.step(0).trajectories
    predicted = method.world.predict(played, 0)
    for t in played:
        assert [len(texts) for texts in predicted[t.id]] == [2, 2, 1]
        assert [len(row) for row in similarities(t, predicted[t.id])] == [2, 2, 1]
    assert predicted == method.world.predict(played[::-1], 0), "the order of the episodes must not matter"


def test_looking_further_ahead_does_not_read_the_episodes_again(folder, tmp_path):
    """A few turns at a time go on from the cache; all turns of a step at once come back to it when it is at other turns."""
    method = make(folder, tmp_path, "--method.prediction.horizon=0.67")
    played = method.step(0).trajectories

    def read(concurrency: int) -> tuple[Predictions, float]:
        before = method.engine.stats()
        method.world = dataclasses.replace(method.world, concurrency=concurrency)
        found = method.world.predict(played, 0)
        after = method.engine.stats()
        return found, sum(sign * (after[k] - before[k]) for k, sign in (("prompt_tokens", 1), ("reused_tokens", -1)))

    read(1000)
    (few, few_tokens), (all_, all_tokens) = read(8), read(1000)  # both begin where a prediction has ended
    assert few == all_
    assert few_tokens < 0.7 * all_tokens


def test_a_perfect_prediction_is_worth_one_and_a_missing_one_nothing(folder, tmp_path):
    (t, *_) = make(folder, tmp_path).step(0).trajectories
    seen = [turn.observation for turn in t.turns[1:]] + [t.final_observation]
    assert similarities(t, [[seen[0], seen[1]], [""], [seen[2]]]) == [[1.0, 1.0], [0.0], [1.0]]


@pytest.mark.parametrize("mode", ["ask", "continue"])
def test_what_really_came_is_a_draft_that_changes_no_prediction(folder, tmp_path, mode):
    method = make(folder, tmp_path, f"--method.prediction.mode={mode}", "--method.prediction.horizon=0.67")
    played = method.step(0).trajectories
    predicted = method.world.predict(played, 0)
    sample, drafts = method.engine.sample, []

    def without(requests):
        drafts.extend(request.draft for request in requests)
        return sample([replace(request, draft=()) for request in requests])

    method.engine.sample = without
    assert method.world.predict(played, 0) == predicted
    texts = [method.engine.tokenizer.decode(draft) for draft in drafts]
    seen = [turn.observation for t in played for turn in t.turns[1:]] + [t.final_observation for t in played]
    assert all(any(said in text for text in texts) for said in seen)


def test_greedy_predictions_of_one_prompt_are_asked_for_once(folder, tmp_path):
    method = make(folder, tmp_path, "--method.prediction.temperature=0", "--method.prediction.horizon=0.67")
    (one, *_, other) = method.step(0).trajectories
    played = [one, replace(one, id="again"), other]
    sample, asked = method.engine.sample, []

    def listen(requests):
        asked.extend(requests)
        return sample(requests)

    method.engine.sample = listen
    greedy = method.world.predict(played, 0)
    assert greedy["again"] == greedy[one.id] and len(asked) == len({r.prompt for r in asked})
    few = len(asked)
    method.world.settings = method.world.settings.model_copy(update={"temperature": 1.0})
    method.world.predict(played, 0)
    assert len(asked) - few == 3 * 3 + 2 * 2 * 3, "the draws of two episodes are two"


def test_a_reminder_of_another_task_is_no_part_of_a_prediction(folder, tmp_path):
    method = make(folder, tmp_path, "--rollout.remind=true", "--method.prediction.mode=continue")
    played = method.step(0).trajectories
    method.world._text = lambda answer: "It is dark.\nYour task is to: dance."
    assert {texts for turns in method.world.predict(played, 0).values() for texts in turns} == {("It is dark.",)}


def test_the_second_step_is_foreseen_with_the_episodes_own_task_in_mind(folder, tmp_path):
    method = make(
        folder, tmp_path, "--rollout.remind=true", "--method.prediction.mode=continue", "--method.prediction.horizon=0.67"
    )
    played = method.step(0).trajectories
    method.world._text = lambda answer: "It is dark.\nYour task is to: dance."
    sample, asked = method.engine.sample, []

    def listen(requests):
        asked.extend(requests)
        return sample(requests)

    method.engine.sample = listen
    method.world.predict(played, 0)
    tokenizer = method.engine.tokenizer
    predictions = [r for r in asked if r.until]
    assert predictions and all(tokenizer.decode(r.until) == "\nYour task is to:" for r in predictions)
    own = {t.id: f"It is dark.\n{reminder(t.task)}" for t in played}
    prompts = [(tokenizer.decode(r.prompt), own[r.session]) for r in asked]
    later = [(text, end) for text, end in prompts if "It is dark." in text]
    assert len(set(own.values())) > 1
    assert len(later) == 2 * sum(len(t.turns) - 1 for t in played), "an action and a prediction for every second step"
    assert all(end in text for text, end in later) and not any("dance" in text for text, _ in prompts)


def test_how_well_the_last_step_is_foreseen_is_told_apart(folder, tmp_path):
    """Where the end is foreseen worse than the steps before it, putting it off pays."""
    method = make(folder, tmp_path)
    method.world.predict = lambda played, step: {t.id: [*[("",)] * (len(t.turns) - 1), (t.final_observation,)] for t in played}
    metrics = method.step(0).metrics
    assert metrics["prediction/factor_last"] == 2.0
    assert metrics["prediction/factor"] == pytest.approx(4 / 3), "the last of three turns"


def test_blocks_are_read_by_their_number():
    assert _read('<predict h="2">later</predict> <predict h="1"> soon </predict>', 3) == ["soon", "later", ""]
    assert _read("soon", 1) == [""]
    assert _read('<predict h="1">soon</predict><predict h="2">lat', 2) == ["soon", "lat"], "cut by the length limit"


def test_predicting_for_successes_only_trains_the_same(folder, tmp_path):
    """A failed episode's return is 0 whatever it foresees."""
    few, all_ = (make(folder, tmp_path / of, f"--method.prediction.of={of}") for of in ("successes", "all"))
    a, b = few.step(0).metrics, all_.step(0).metrics
    assert a["actor/grad_norm"] == pytest.approx(b["actor/grad_norm"], rel=1e-5)
    assert a["prediction/count"] < b["prediction/count"]


def test_without_predictions_the_update_is_another(folder, tmp_path):
    cut, whole = make(folder, tmp_path / "a", "--method.prediction.horizon=0"), make(folder, tmp_path / "b")
    a, b = cut.step(0).metrics, whole.step(0).metrics
    assert "prediction/count" not in a
    assert a["actor/grad_norm"] != pytest.approx(b["actor/grad_norm"], rel=1e-3)


def test_answers_that_were_cut_or_never_came_are_counted(folder, tmp_path):
    method = make(folder, tmp_path, "--method.prediction.max-response=1")
    metrics = method.step(0).metrics
    assert 0 < metrics["prediction/cut"] <= metrics["prediction/count"] and metrics["prediction/unanswered"] == 0
    (episode, *_) = method.step(1).trajectories
    many = replace(episode.turns[0].call, prompt=episode.turns[0].call.prompt * 500)
    longest = replace(episode, turns=(replace(episode.turns[0], call=many), *episode.turns[1:]))
    method.world.predict([longest], 0)
    assert method.world.unanswered == 1, "the model has no room for such a prompt"


def test_a_template_that_rewrites_earlier_turns_is_refused_before_anything_is_played(folder, tmp_path):
    rewriting = tmp_path / "rewriting"
    shutil.copytree(folder, rewriting)
    template = "{% for m in messages %}{{ m['content'] if loop.last else 'gone' }}{% endfor %}"
    file = rewriting / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    (rewriting / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        make(rewriting, tmp_path, "--rollout.context=window", "--method.prediction.mode=ask")


# ---------------------------------------------------------------------- failures


def tasks(count: int = 40) -> list[Task]:
    return [Task(f"t{i}", "toy", "k", f"goal {i}", "train") for i in range(count)]


def curriculum(**settings) -> FailureCurriculum:
    return FailureCurriculum(TaskSampler(tasks(), 0), FailureConfig(**{"every": 1, **settings}), 0)


def failure(task: int, mode: str = "lost", step: int = 0) -> Failure:
    return Failure(f"t{task}", "k", f"goal {task}", mode, f"{mode} {task}", step)


def own(mode, now, earlier, most):
    """Selects the failures of the mode itself."""
    return [f for f in earlier if f.mode == mode][:most]


def test_failures_change_which_tasks_are_drawn():
    """The cut: with the curriculum disconnected the failing task is drawn as often as any."""
    steered, cut = curriculum(share=0.5), curriculum(share=0.5)
    for c in (steered, cut):
        c.record([], [failure(7)])
    steered.look(0, own)
    counts = [Counter(t.id for k in range(1, 41) for t in c.draw(k, 4)[0])["t7"] for c in (steered, cut)]
    assert counts[0] >= 30 and counts[1] <= 5
    assert sum(steered.draw(k, 4)[1] for k in range(1, 41)) >= 30 and not any(cut.draw(k, 4)[1] for k in range(1, 41))


def test_a_task_of_the_pool_is_drawn_once_a_step():
    c = curriculum(share=1.0)
    c.record([], [failure(7), failure(8)])
    c.look(0, own)
    drawn, replaced = c.draw(1, 4)
    assert replaced == 2 and Counter(t.id for t in drawn)["t7"] <= 2


def test_frequent_modes_weigh_more_and_focus_sharpens_that():
    weights = {}
    for focus in (1.0, 0.5):
        c = curriculum(focus=focus)
        c.record([], [failure(1, "a"), failure(2, "a"), failure(3, "a"), failure(4, "b")])
        c.look(0, own)
        weights[focus] = (c.pool["t1"], c.pool["t4"])
    assert weights[1.0] == (0.75, 0.25) and weights[0.5] == (0.5625, 0.0625)


def test_old_weights_decay_and_fall_out_at_the_floor():
    c = curriculum(decay=0.5, floor=0.3)
    c.record([], [failure(1)])
    c.look(0, own)
    assert c.pool == {"t1": 1.0}
    c.look(1, own)
    assert c.pool == {"t1": 0.5}, "no new failures: nothing but decay"
    c.look(2, own)
    assert c.pool == {}


def test_only_the_most_frequent_modes_are_looked_at():
    c = curriculum(modes=1)
    c.record([], [failure(1, "a"), failure(2, "a"), failure(3, "b"), failure(4, "")])
    c.look(0, own)
    assert set(c.pool) == {"t1", "t2"}


def test_a_solved_task_leaves_the_pool_after_two_groups(folder, tmp_path):
    c = curriculum(solved_after=2)
    c.record([], [failure(1)])
    c.look(0, own)
    (t, *_) = make(folder, tmp_path).step(0).trajectories
    win = dataclasses.replace(t, task=tasks()[1], group="g", outcome="success")
    loss = dataclasses.replace(win, outcome="failure")
    c.record([win, win], [])
    c.record([win, loss], [])
    c.record([win, win], [])
    assert "t1" in c.pool, "a failure in between starts the count anew"
    c.record([win, win], [])
    assert "t1" not in c.pool


def test_memory_is_bounded_and_gives_up_the_oldest_of_the_most_frequent_mode():
    c = curriculum(capacity=3)
    c.record([], [failure(1, "a"), failure(2, "b"), failure(3, "a"), failure(4, "a")])
    assert [f.task for f in c.memory] == ["t2", "t3", "t4"]


def test_failures_of_now_bring_back_earlier_ones():
    """A full window of new failures does not hide the earlier ones; without any, the new ones stand in."""
    c = curriculum(shortlist=4)
    c.record([], [failure(i, "a", step=0) for i in range(3)])
    assert c.look(0, own) == 3 and set(c.pool) == {"t0", "t1", "t2"}
    c.pool = {}
    c.record([], [failure(i, "a", step=1) for i in range(10, 30)])
    c.look(1, own)
    assert set(c.pool) == {"t0", "t1", "t2"}


def test_a_solved_task_is_not_brought_back_by_old_failures(folder, tmp_path):
    c = curriculum(solved_after=1)
    c.record([], [failure(1)])
    c.look(0, own)
    (t, *_) = make(folder, tmp_path).step(0).trajectories
    c.record([dataclasses.replace(t, task=tasks()[1], group="g", outcome="success")], [failure(2, step=1)])
    c.look(1, own)
    assert "t1" not in c.pool and all(f.task != "t1" for f in c.memory)


def test_a_resumed_curriculum_draws_the_same(folder, tmp_path):
    method = make(folder, tmp_path / "a")
    method.step(0)
    other = make(folder, tmp_path / "b")
    other.restore(json.loads(json.dumps(method.state())))
    assert other.curriculum.draw(1, 2) == method.curriculum.draw(1, 2)
    assert other.state() == method.state()


def test_a_reflection_is_read_strictly():
    text = "<reflection>\nfailure_mode: b\ndetail: it looked: twice\ncritical_step: 3\nlesson: l\nquery: q\n</reflection>"
    found = parse_reflection(text, ["a", "b"])
    assert (found.mode, found.detail, found.critical_step, found.query) == ("b", "it looked: twice", "3", "q")
    assert parse_reflection(text, ["a"]).mode == "" and parse_reflection("b", ["b"]).mode == ""


def test_what_is_written_is_compared_with_what_is_measured(folder, tmp_path):
    method = make(folder, tmp_path)
    metrics = method.step(0).metrics
    assert 0 <= metrics["failures/agreement"] <= 1
    assert sum(metrics[f"failures/mode/{mode}"] for mode in BlamingToy.failure_modes) == pytest.approx(1)
    assert sum(metrics[f"failures/measured/{mode}"] for mode in BlamingToy.failure_modes) == pytest.approx(1)
    measured = make(folder, tmp_path / "m", "--method.failures.writer=measured").step(0).metrics
    assert "failures/agreement" not in measured
    assert measured["failures/mode/one right"] == metrics["failures/measured/one right"]


def said(method, *texts, logprobs=None):
    """The onlooker with these answers of the model in place of its own, one after the other."""
    method.onlooker = AnsweringOnlooker(**{f.name: getattr(method.onlooker, f.name) for f in dataclasses.fields(AgentInWorld)})
    object.__setattr__(method.onlooker, "waiting", list(texts))
    object.__setattr__(method.onlooker, "logprobs", logprobs)
    return method.onlooker


class AnsweringOnlooker(AgentInWorld):
    def _sample(self, texts, purpose, step, names, choices=()):
        if choices:
            return [Sample((1,), (0.0,), "choice", 0, 0, self.logprobs[i]) for i in range(len(texts))]
        return [self.waiting.pop(0) for _ in texts]

    def _text(self, answer):
        return answer


def test_a_written_reflection_is_kept_whole_and_right_ones_are_counted(folder, tmp_path):
    method = make(folder, tmp_path, "--method.failures.writer=tagged")
    failed = [t for t in method.step(0).trajectories if not t.success][:2]
    right = BlamingToy().diagnose(failed[0])
    answer = f"<reflection>\nfailure_mode: {right}\nlesson: look first\nquery: words\n</reflection>"
    failures, metrics = said(method, answer, "I do not know").read(failed, 0)
    assert (failures[0].mode, failures[0].lesson, failures[0].query) == (right, "look first", "words")
    assert failures[1].mode == "" and metrics["failures/unreadable"] == 0.5 and metrics["failures/agreement"] == 0.5


def test_the_written_step_of_no_return_is_compared_with_where_an_expert_could_not_help_any_more(folder, tmp_path):
    """In the toy suite that is the first wrong pick."""
    method = make(folder, tmp_path, "--method.failures.writer=tagged")
    failed = [t for t in method.step(0).trajectories if not t.success][:3]
    lost = [next(i for i, turn in enumerate(t.turns, 1) if turn.action != t.task.kind) for t in failed]
    written = [
        f"<reflection>\nfailure_mode: x\ncritical_step: step {n}\n</reflection>" for n in (lost[0], lost[1] + 1, lost[2] + 2)
    ]
    _, metrics = said(method, *written).read(failed, 0)
    assert metrics["failures/critical_step"] == pytest.approx(sum(lost) / 3)
    assert metrics["failures/critical_step_known"] == 1.0
    assert metrics["failures/critical_step_agreement"] == pytest.approx(2 / 3)
    chosen = make(folder, tmp_path / "chosen").step(0).metrics
    assert "failures/critical_step" not in chosen, "nothing was written to compare it with"


def test_a_mode_is_chosen_by_what_the_story_adds_and_not_by_the_length_of_its_name(folder, tmp_path):
    """The first name is likeliest, but no less so without a story; this story speaks for the second, that one for the third."""
    method = make(folder, tmp_path, "--method.failures.temperature=0")
    failed = [t for t in method.step(0).trajectories if not t.success][:2]
    logprobs = [(-0.1, -5.0, -6.0), (-0.2, -4.0, -6.0), (-0.1, -5.0, -4.0)]
    failures, _ = said(method, logprobs=logprobs).read(failed, 0)
    assert [f.mode for f in failures] == ["one right", "two right"]


def test_the_model_selects_by_number(folder, tmp_path):
    method = make(folder, tmp_path, "--method.failures.retrieval=model")
    earlier = [failure(1), failure(2), failure(3)]
    answer = "<selected_tasks>\n3: alike\n1: alike too\n</selected_tasks>"
    assert [f.task for f in said(method, answer).select("lost", [failure(9)], earlier, 2)] == ["t3", "t1"]


def test_the_model_selects_by_all_that_was_written(folder, tmp_path):
    method = make(folder, tmp_path, "--method.failures.retrieval=model")
    seen = []

    class Reading(AgentInWorld):
        def _sample(self, texts, purpose, step, names, choices=()):
            seen.extend(texts)
            return [None]

    onlooker = Reading(**{f.name: getattr(method.onlooker, f.name) for f in dataclasses.fields(AgentInWorld)})
    earlier = dataclasses.replace(failure(1), detail="it took\nthe wrong one", lesson="look twice")
    onlooker.select("lost", [failure(9)], [earlier], 1)
    assert ": it took the wrong one: look twice" in seen[0]


def test_a_scaled_reward_reaches_the_episode_term_and_scaled_returns_do_not(folder, tmp_path):
    method = make(folder, tmp_path, "--method.step-weight=0", "--method.prediction.horizon=0")
    batch = list(method.step(0).trajectories)
    scale = {t.id: [1.0 + 0.5 * (i % 2)] * len(t.turns) for i, t in enumerate(batch)}

    def advantages(**given):
        part = action_part(batch, method.settings, method.engine, anchors=anchors_of(batch, method.settings), **given)
        return {e.row.id: e.advantages for e in part.examples}

    assert advantages() == advantages(factors=scale), "the step term, which they scale, has the weight 0"
    assert advantages() != advantages(factors=scale, episode_factors=scale)


@pytest.mark.parametrize("retrieval", ["model", "similarity"])
def test_like_failures_are_selected_one_a_task(folder, tmp_path, retrieval):
    method = make(folder, tmp_path)
    onlooker: AgentInWorld = dataclasses.replace(
        method.onlooker, settings=FailureConfig(writer="choose", retrieval=retrieval, max_response=12)
    )
    earlier = [failure(1, "lost"), failure(1, "lost"), failure(2, "burnt")]
    found = onlooker.select("burnt", [failure(2, "burnt", step=3)], earlier, 1)
    if retrieval == "similarity":
        assert [f.task for f in found] == ["t2"]
    else:
        assert found == [], "a random model writes no list that can be read"


def test_numbers_beyond_the_list_are_not_selected():
    from gongfu.methods.role_agent.agent_in_world import _selected

    earlier = [failure(1), failure(2)]
    assert _selected("<selected_tasks>\n2: alike\n7: no\n</selected_tasks>", earlier) == [earlier[1]]


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["--suite.object=toy:ToySuite"], "failure_modes"),
        (["--method.advantage=grpo"], "not made for"),
        (["--method.step-weight=0"], "raise step_weight"),
        (["--rollout.list-actions=true"], "bare observations"),
        (["--method.prediction.horizon=0", "--method.failures.share=0"], "nothing of Role-Agent"),
        (["--method.prediction.horizon=0", "--method.prediction.weight=2"], "nothing is predicted"),
        (["--method.failures.share=0", "--method.failures.writer=measured"], "failures are not read"),
    ],
)
def test_bad_settings_are_refused(folder, tmp_path, overrides, word):
    with pytest.raises(ConfigError, match=word):
        make(folder, tmp_path, *overrides)
