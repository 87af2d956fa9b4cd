"""The page about files says what the suites really read: its examples are played."""

from __future__ import annotations

import re
from pathlib import Path

from gongfu.envs.searchqa import SearchQASuite
from gongfu.envs.searchqa.corpus import Passage, read_corpus
from gongfu.envs.searchqa.readers import read_questions
from gongfu.envs.webshop import WebShopSuite

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_of_webshop_are_a_shop(tmp_path: Path) -> None:
    files = {}
    for name, example in zip(("items", "attributes", "instructions"), EXAMPLES[:3], strict=True):
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(example, encoding="utf-8")
    (task,) = WebShopSuite(**files).tasks("test")
    assert task.goal.startswith("i need a red hoodie with long sleeve, and price lower than")
    synthetic = WebShopSuite(files["items"], files["attributes"]).tasks("test")
    assert sorted(task.payload["options"] for task in synthetic) == [["navy"], ["red"]]


def test_the_examples_of_search_qa_are_questions_and_passages(tmp_path: Path) -> None:
    questions, corpus = tmp_path / "train.jsonl", tmp_path / "corpus" / "wiki.jsonl"
    corpus.parent.mkdir()
    for path, example in zip((questions, corpus), EXAMPLES[3:], strict=True):
        path.write_text(example, encoding="utf-8")
    first, second = read_questions(questions)
    assert (first.id, first.answers, first.kind) == ("q1", ("Ada Berg", "A. Berg"), "question")
    assert (second.kind, second.support, len(second.passages)) == ("bridge", ("Red Hill", "Ada Berg"), 2)
    assert Passage("Ada Berg", "Ada Berg was born in Alun.") in read_corpus(corpus)
    assert len(SearchQASuite(tmp_path, corpus).tasks("train")) == 2
