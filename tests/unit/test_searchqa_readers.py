"""The usual question files, each in a few rows as its set writes them, and the real ones where they are."""

from __future__ import annotations

import json
import os
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gongfu.config.load import load, to_toml
from gongfu.config.schema import Recipe
from gongfu.core.errors import EnvError, TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.check import check
from gongfu.envs.protocol import Observation
from gongfu.envs.searchqa import SearchQASuite
from gongfu.envs.searchqa.corpus import Passage
from gongfu.envs.searchqa.readers import Question, read_questions
from gongfu.envs.workers import WorkerRunner
from gongfu.run.build_suite import build_suite, load_suite
from gongfu.run.evaluate import evaluate_runs
from gongfu.run.sft import sft_run
from gongfu.run.train import train_run

QA = Path(os.environ.get("GONGFU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "qa"
real = pytest.mark.skipif(not QA.is_dir(), reason=f"no question files at {QA}; set GONGFU_DATA")

HOTPOT = {
    "_id": "5a77",
    "question": "If Gallu is a demon  Lilu is what?",
    "answer": "a spirit",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Alû", 3], ["Lilu", 0], ["Alû", 1]],
    "context": [["Alû", ["Alû is a demon.", " Gallu too."]], ["Lilu", ["Lilu is a spirit."]]],
}
EVIDENCE = (Passage("Alû", "Alû is a demon. Gallu too."), Passage("Lilu", "Lilu is a spirit."))
COLUMNS = {
    "id": "5a77",
    "question": "If Gallu is a demon Lilu is what?",
    "answer": "a spirit",
    "type": "bridge",
    "supporting_facts": {"title": ["Alû", "Lilu"], "sent_id": [3, 0]},
    "context": {"title": ["Alû", "Lilu"], "sentences": [["Alû is a demon.", " Gallu too."], ["Lilu is a spirit."]]},
}
MUSIQUE = {
    "id": "3hop1__1_2_3",
    "question": "Who?",
    "answer": "G. Stanley Hall",
    "answer_aliases": ["Stanley Hall", "G. Stanley Hall"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "A", "paragraph_text": "About a.", "is_supporting": False},
        {"idx": 1, "title": "B", "paragraph_text": "About b.", "is_supporting": True},
    ],
    "question_decomposition": [],
}
LILU = Question("5a77", "If Gallu is a demon Lilu is what?", ("a spirit",), "bridge", EVIDENCE, ("Alû", "Lilu"))
FORMATS: dict[str, tuple[Any, Question]] = {
    "nq_open.jsonl": (
        {"question": "where is it", "answer": ["Salzburg, Austria", "Austria"]},
        Question("0", "where is it", ("Salzburg, Austria", "Austria"), "question"),
    ),
    "triviaqa.json": (
        {
            "Data": [
                {
                    "Question": "Which one?",
                    "QuestionId": "tc_1",
                    "Answer": {"Value": "Ada", "Aliases": ["Ada B", "Ada"], "NormalizedAliases": ["ada b"], "Type": "Text"},
                }
            ]
        },
        Question("tc_1", "Which one?", ("Ada", "Ada B"), "question"),
    ),
    "triviaqa_hub.jsonl": (
        {"question": "Which one?", "question_id": "tc_1", "answer": {"value": "Ada", "aliases": ["Ada B"]}},
        Question("tc_1", "Which one?", ("Ada", "Ada B"), "question"),
    ),
    "popqa.jsonl": (
        {"id": 4222, "question": "What is his job?", "possible_answers": '["politician", "pol"]', "prop": "occupation"},
        Question("4222", "What is his job?", ("politician", "pol"), "question"),
    ),
    "hotpotqa.json": ([HOTPOT], LILU),
    "hotpotqa_hub.jsonl": (COLUMNS, LILU),
    "2wiki.json": (
        [HOTPOT | {"type": "bridge_comparison", "evidences": [["a", "b", "c"]]}],
        Question("5a77", LILU.text, LILU.answers, "bridge_comparison", EVIDENCE, ("Alû", "Lilu")),
    ),
    "musique.jsonl": (
        MUSIQUE,
        Question(
            "3hop1__1_2_3",
            "Who?",
            ("G. Stanley Hall", "Stanley Hall"),
            "three_hop",
            (Passage("A", "About a."), Passage("B", "About b.")),
            ("B",),
        ),
    ),
    "bamboogle.jsonl": (
        {"Question": "In what year?", "Answer": 1999},
        Question("0", "In what year?", ("1999",), "question"),
    ),
    "flashrag.jsonl": (
        {"id": "test_0", "question": "who?", "golden_answers": ["A", "B"], "metadata": {"type": "comparison"}},
        Question("test_0", "who?", ("A", "B"), "comparison"),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(tmp_path: Path, name: str) -> None:
    content, expected = FORMATS[name]
    (tmp_path / name).write_text(json.dumps(content))
    assert read_questions(tmp_path / name) == [expected]


def test_unanswerable_questions_are_left_out(tmp_path: Path) -> None:
    """MuSiQue has each of them twice, with and without an answer, under one id."""
    rows = [MUSIQUE, MUSIQUE | {"answerable": False, "question": "Nothing?"}]
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert [q.text for q in read_questions(tmp_path / "m.jsonl")] == ["Who?"]


@pytest.mark.parametrize("ids", [["7", "b", 7], [None, "b", "0"]])
def test_two_questions_of_one_id_are_an_error(tmp_path: Path, ids: list[Any]) -> None:
    rows = [{"question": f"{i}?", "answer": "a"} | ({} if id is None else {"id": id}) for i, id in enumerate(ids)]
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(TaskError, match=rf'q\.jsonl, line 3: its id "{ids[2]}" is that of .*q\.jsonl, line 1 too'):
        read_questions(tmp_path / "q.jsonl")


def test_joined_sets_that_count_alike_are_told_apart_by_their_source(tmp_path: Path) -> None:
    rows = [{"id": "train_0", "question": "Who?", "golden_answers": ["a"], "data_source": name} for name in ("nq", "hotpotqa")]
    (tmp_path / "q.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert [q.id for q in read_questions(tmp_path / "q.jsonl")] == ["nq/train_0", "hotpotqa/train_0"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"query": "who?", "answer": "a"},
            r"line 1: not a question: it has none of the keys question, Question \(it is an obj",
        ),
        ({"question": "who?"}, "golden_answers, answer, .* \\(it is an object with the keys question\\)"),
        ({"question": 3, "answer": "a"}, "its question should be a text, but is the number 3"),
        ({"question": "who?", "answer": None}, "an answer should be a text, a number, a list or an object, but is null"),
        ({"question": "who?", "answer": '["a'}, "begin as a list in a text, but are no JSON"),
        (HOTPOT | {"context": "x"}, 'its "context" should be a list, but is the text "x"'),
        (HOTPOT | {"context": ["x"]}, 'it should be an object, but is the text "x"'),
        (HOTPOT | {"supporting_facts": ["x"]}, "should be a list of title and sentence, but one is the text"),
        (COLUMNS | {"context": {"title": ["a"], "sentences": []}}, "has 1 titles, but 0 lists of sentences"),
        (COLUMNS | {"supporting_facts": {"sent_id": []}}, 'it lacks the key "title"'),
        (MUSIQUE | {"paragraphs": ["x"]}, 'each of its paragraphs should be an object, but is the text "x"'),
        ({"question": "who?", "answer": []}, "it has no answer"),
        ({"question": "who?", "answer": {"text": "a"}}, "none of the keys Value"),
        ({"question": " ", "answer": "a"}, "its question is empty"),
        (["who?", "a"], "it should be an object, but is a list of 2"),
        ("question", 'it should be an object, but is the text "question"'),
    ],
)
def test_rows_that_are_no_questions(tmp_path: Path, row: Any, message: str) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskError, match=message):
        read_questions(tmp_path / "q.jsonl")


# ------------------------------------------------------------------ suites over files


def questions(path: Path, count: int) -> None:
    rows = []
    for i in range(count):
        name = f"Lilu{i}"
        context = [[name, [f"{name} is a spirit of Alu{i}."]], [f"Alu{i}", [f"Alu{i} was found in {1900 + i}."]]]
        facts = [[name, 0], [f"Alu{i}", 0]]
        kind = ("bridge", "comparison")[i % 2]
        row = {"_id": f"q{i}", "question": f"When was the home of {name} found?", "answer": str(1900 + i), "type": kind}
        rows.append(row | {"context": context, "supporting_facts": facts})
    path.write_text(json.dumps(rows))


def test_a_folder_has_a_split_a_file_and_conforms(tmp_path: Path) -> None:
    questions(tmp_path / "train.json", 12)
    questions(tmp_path / "bamboogle.json", 3)
    suite = SearchQASuite(tmp_path)
    assert suite.splits == ("bamboogle", "train")
    assert [task.id for task in suite.tasks("bamboogle")] == [
        "searchqa/bamboogle/bridge/q0",
        "searchqa/bamboogle/comparison/q1",
        "searchqa/bamboogle/bridge/q2",
    ]
    report = check(suite, expert=lambda task: suite.expert(task, rng_for(0, purpose="expert", task=task.id)))
    assert report.ok and report.ended
    only = SearchQASuite(tmp_path, kinds=["comparison"])
    assert {task.kind for task in only.tasks("train")} == {"comparison"}


def test_a_single_file_is_divided_by_ids(tmp_path: Path) -> None:
    questions(tmp_path / "all.json", 200)
    suite = SearchQASuite(tmp_path / "all.json")
    train, seen = ({task.payload["question"] for task in suite.tasks(split)} for split in ("train", "seen"))
    assert len(train) + len(seen) == 200 and not train & seen and 8 <= len(seen) <= 35


def test_a_split_may_go_empty_by_the_hash_of_ids(tmp_path: Path) -> None:
    questions(tmp_path / "all.json", 4)
    with pytest.raises(
        TaskError, match=r"split 'seen' has no questions: by their ids all of .*all\.json are in the other split"
    ):
        SearchQASuite(tmp_path / "all.json").tasks("seen")


LATE = '{"title": "a", "text": "b"}\n' * 1000 + '{"title": "a"}\n'


def test_a_corpus_is_read_to_its_end_before_the_first_episode(tmp_path: Path) -> None:
    """A check sees its beginning; a run, its evaluation and the workers read it before anything is played."""
    questions(tmp_path / "all.json", 4)
    corpus = tmp_path / "wiki.jsonl"
    words = ["--suite.name=searchqa", f"--suite.source={tmp_path / 'all.json'}", f"--suite.corpus={corpus}"]
    recipe = load(Recipe, overrides=words).config
    corpus.write_text("torn")
    with pytest.raises(TaskError, match=r"wiki\.jsonl, line 1: not JSON"):
        build_suite(recipe.suite)
    corpus.write_text(LATE)
    suite = build_suite(recipe.suite)
    with pytest.raises(TaskError, match=r'wiki\.jsonl, line 1001: not a passage: it lacks the key "text"'):
        load_suite(recipe)
    with pytest.raises(EnvError, match=r"cannot be prepared in a worker: .*wiki\.jsonl, line 1001"):
        WorkerRunner(suite, workers=1)
    corpus.write_text(LATE.removesuffix('{"title": "a"}\n'))
    assert load_suite(load(Recipe, overrides=[*words, "--rollout.workers.count=2"]).config)._retriever is None  # theirs to load
    ready = load_suite(recipe)
    corpus.unlink()  # what it says is in the memory now
    env = ready.make(ready.tasks("train")[0])
    env.reset()
    assert env.step("search[a]").observation.text == "a: b"


def evaluate_start(recipe: Recipe) -> None:
    run = Path(recipe.run.folder) / "run"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(to_toml(recipe))
    evaluate_runs([f"{run}@start"], split=None, tasks=None, rollouts=1, temperature=None)


@pytest.mark.parametrize("run", [train_run, sft_run, evaluate_start])
def test_runs_do_not_begin_with_a_broken_corpus(tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    questions(tmp_path / "all.json", 40)
    (tmp_path / "wiki.jsonl").write_text(LATE)
    words = [f"--suite.source={tmp_path / 'all.json'}", f"--suite.corpus={tmp_path / 'wiki.jsonl'}", "--suite.name=searchqa"]
    words += [f"--run.folder={tmp_path / 'runs'}", "--eval.tasks=1", "--engine.model=nano", "--eval.split=seen"]

    def engine(*_: Any, **__: Any) -> None:
        pytest.fail("the engine was built first")

    for module in ("train", "sft", "evaluate"):
        monkeypatch.setattr(f"gongfu.run.{module}.build_engine", engine)
    with pytest.raises(TaskError, match="line 1001: not a passage"):
        run(load(Recipe, overrides=words).config)


def test_the_informed_searcher_reads_before_it_answers(tmp_path: Path) -> None:
    questions(tmp_path / "all.json", 20)
    suite = SearchQASuite(tmp_path / "all.json")
    task = suite.tasks("train")[0]
    number = task.payload["question"].split("Lilu")[1].split()[0]
    env, expert = suite.make(task), suite.expert(task, rng_for(0, purpose="x"))
    observation, said = env.reset(), []
    for _ in range(3):
        said.append(expert.act(observation))
        step = env.step(said[-1])
        observation = step.observation
    assert said == [f"search[Lilu{number}]", f"search[Alu{number}]", f"answer[{1900 + int(number)}]"]
    assert step.terminated and step.outcome == "success"


def test_the_informed_searcher_does_not_say_what_it_did_not_find(tmp_path: Path) -> None:
    questions(tmp_path / "all.json", 20)
    (tmp_path / "other.jsonl").write_text(json.dumps({"title": "Other", "text": "Nothing about spirits."}))
    suite = SearchQASuite(tmp_path / "all.json", tmp_path / "other.jsonl")
    task = suite.tasks("train")[0]
    env, expert = suite.make(task), suite.expert(task, rng_for(0, purpose="x"))
    observation, step = env.reset(), None
    while step is None or step.outcome is None:
        step = env.step(action := expert.act(observation))
        observation = step.observation
    assert action == "answer[unknown]" and step.outcome == "failure" and step.score == 0


def test_unusable_sources(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no questions at"):
        SearchQASuite(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"question": "who?", "answer": "a"}\n')
    with pytest.raises(TaskError, match=r"bring no passages: set suite\.corpus"):
        SearchQASuite(tmp_path).tasks("train")
    with pytest.raises(TaskError, match="no corpus at"):
        SearchQASuite(tmp_path, tmp_path / "wiki.jsonl")
    (tmp_path / "wiki.jsonl").write_text('{"title": "a", "text": "b"}')
    with pytest.raises(TaskError, match="no kind 'bridge'; did you mean 'question'"):
        SearchQASuite(tmp_path / "train.jsonl", tmp_path / "wiki.jsonl", kinds=["bridge"]).tasks("train")
    (tmp_path / "train.json").write_text("[]")
    with pytest.raises(TaskError, match="two files of one split"):
        SearchQASuite(tmp_path)


class Answering(BaseHTTPRequestHandler):
    """A search server that knows one passage."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = f"asked for {asked['queries'][0]}, at most {asked['topk']}"
        body = json.dumps({"result": [[{"document": {"contents": f'"Echo"\n{text}'}, "score": 1.0}]]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_search_server_instead_of_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "who wrote it?", "answer": "Ada"}\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        suite = SearchQASuite(tmp_path, retriever="server", url=f"http://127.0.0.1:{server.server_port}/retrieve", top_k=2)
        env = suite.make(suite.tasks("train")[0])
        env.reset()
        assert env.step("search[the author]").observation.text == "Echo: asked for the author, at most 2"
        env.close()
        pickle.dumps(suite)  # a used client does not keep it from worker processes
        server.shutdown()


# ------------------------------------------------------------------ the real files


@real
@pytest.mark.parametrize(
    ("name", "count", "kinds"),
    [
        ("nq_open_dev.jsonl", 3610, {"question"}),
        ("hotpot_dev_v1_simplified.json", 7405, {"bridge", "comparison"}),
        ("hipporag_hotpotqa_train.json", 100, {"bridge", "comparison"}),
        ("hipporag_musique_train.json", 100, {"two_hop", "three_hop", "four_hop"}),
        ("r1searcher_2wiki_500.jsonl", 500, {"question"}),
        ("r1searcher_bamboogle.jsonl", 125, {"question"}),
    ],
)
def test_real_files(name: str, count: int, kinds: set[str]) -> None:
    read = read_questions(QA / name)
    assert len(read) == count == len({q.id for q in read})
    assert {q.kind for q in read} <= kinds


def test_the_informed_searcher_answers_in_its_last_turn_whatever_noise_took(tmp_path: Path) -> None:
    questions(tmp_path / "all.json", 20)
    suite = SearchQASuite(tmp_path / "all.json", max_steps=3)
    for task in suite.tasks("train"):
        env, expert = suite.make(task), suite.expert(task, rng_for(0, purpose="x", task=task.id), noise=0.5)
        observation, step = env.reset(), None
        while step is None or step.outcome is None:
            step = env.step(expert.act(observation))
            observation = step.observation
        assert step.terminated or expert.explored  # unless noise took the last turn itself


@real
@pytest.mark.parametrize(
    ("name", "corpus"),
    [
        ("hipporag_hotpotqa_train.json", ""),
        ("hipporag_hotpotqa_train.json", "hipporag_hotpotqa_train_corpus.json"),
        ("hipporag_musique_train.json", "hipporag_musique_train_corpus.json"),
    ],
)
def test_the_informed_searcher_solves_real_questions_whose_answer_it_found(name: str, corpus: str) -> None:
    suite = SearchQASuite(QA / name, QA / corpus if corpus else "", candidates=False)
    solved = found = 0
    tasks = suite.tasks("train")[:40]
    for task in tasks:
        env, expert = suite.make(task), suite.expert(task, rng_for(0, purpose="expert"))
        observation: Observation = env.reset()
        while True:
            action = expert.act(observation)
            step = env.step(action)
            observation = step.observation
            if step.terminated or step.truncated:
                break
        found += action != "answer[unknown]"
        solved += step.outcome == "success"
    assert solved == found >= 0.8 * len(tasks)
