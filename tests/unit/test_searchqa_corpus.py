"""Corpus files, the index, and the search server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import numpy as np
import pytest

from gongfu.core.errors import EnvError, TaskError
from gongfu.envs.searchqa.corpus import Passage, check_corpus, read_corpus
from gongfu.envs.searchqa.index import BM25, Dense, words
from gongfu.envs.searchqa.remote import SearchServer

HILL = Passage("Red Hill", "Red Hill is a film by Ada Berg.")
BERG = Passage("Ada Berg", "Ada Berg was born in Alûn in 1931.")
LAKE = Passage("Blue Lake", "Blue Lake is a novel by Ada Berg.")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.json", json.dumps([{"title": "Red Hill", "text": HILL.text}, {"title": "Ada Berg", "text": BERG.text + "\n"}])),
        ("dict.json", json.dumps({"Red Hill": ["Red Hill is a film", " by Ada Berg."], "Ada Berg": BERG.text})),
        ("rows.jsonl", "\n\n".join(json.dumps({"id": 1, "title": p.title, "text": p.text}) for p in (HILL, BERG, HILL))),
        ("wiki.jsonl", "\n".join(json.dumps({"contents": '"' + p.title + '"\n' + p.text}) for p in (HILL, BERG))),
    ],
)
def test_corpus_files(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_corpus(tmp_path / name) == (HILL, BERG)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("no.jsonl", None, "no corpus at"),
        ("torn.jsonl", '{"title": "a", "text": "b"}\n{"title"', r"torn\.jsonl, line 2: not JSON"),
        (
            "keys.json",
            '[{"title": "a", "body": "b"}]',
            r'keys\.json, item 1: not a passage: it lacks the key "text" \(it is an obj',
        ),
        (
            "untitled.jsonl",
            '{"text": "b"}',
            r'line 1: not a passage: it lacks the key "title" .*; expected "title" and "text", or',
        ),
        ("empty.jsonl", "\n", "holds no passages"),
        ("nothing.jsonl", "", "holds no passages"),
        ("nothing.json", "", r"nothing\.json: not JSON"),
        ("number.json", "7", "should hold a JSON list or object, but holds the number 7"),
        ("wiki.txt", "a b c", r"wiki\.txt is no \.json or \.jsonl file"),
        ("binary.jsonl", b'{"title": "a", "text": "b"}\n\x1f\x8b', r"binary\.jsonl, line 2: not text in UTF-8"),
        ("text.jsonl", '"contents"', 'line 1: not a passage: it should be an object, but is the text "contents"'),
        ("number.jsonl", "7", "line 1: not a passage: it should be an object, but is the number 7"),
        ("null.jsonl", '{"contents": null}', 'its "contents" should be a text, but is null'),
        ("title.jsonl", '{"title": null, "text": "b"}', "its title should be a text, but is null"),
        (
            "object.jsonl",
            '{"title": "a", "text": {"b": 1}}',
            "its text should be a text or a list of sentences, but is an object",
        ),
        ("sentences.jsonl", '{"title": "a", "text": ["b", 1]}', "each of its sentences should be a text, but is the number 1"),
        ("triple.json", '[["a", "b", "c"]]', "item 1: not a passage: it should be a title and a text, but is a list of 3"),
    ],
)
def test_unusable_corpora(tmp_path: Path, name: str, content: str | bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for read in (read_corpus, check_corpus):
        with pytest.raises(TaskError, match=message):
            read(tmp_path / name)


def test_a_check_reads_the_beginning_of_json_lines_only(tmp_path: Path) -> None:
    corpus = tmp_path / "wiki.jsonl"
    corpus.write_text('{"title": "a", "text": "b"}\n' * 1000 + "torn\n")
    check_corpus(corpus)
    with pytest.raises(TaskError, match=r"wiki\.jsonl, line 1001: not JSON"):
        read_corpus(corpus)
    corpus.write_text('{"title": "a", "text": "b"}\n' * 999 + "torn\n")
    with pytest.raises(TaskError, match=r"wiki\.jsonl, line 1000: not JSON"):
        check_corpus(corpus)


def test_a_passage_may_be_called_data(tmp_path: Path) -> None:
    (tmp_path / "dict.json").write_text(json.dumps({"Red Hill": HILL.text, "Data": ["Data are ", "facts."]}))
    assert read_corpus(tmp_path / "dict.json") == (HILL, Passage("Data", "Data are facts."))


def test_a_passage_is_shown_with_its_title_once() -> None:
    assert str(HILL) == HILL.text
    assert str(Passage("Home", "Ada lives here.")) == "Home: Ada lives here."


def test_words_have_no_case_and_no_accents() -> None:
    assert words("Alûn's 3rd HOUSE_1") == ["alun", "s", "3rd", "house_1"]


def test_bm25_is_the_formula() -> None:
    """One query word, worked by hand: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), tf / (tf + k1 (1 - b + b length / mean))."""
    index = BM25([HILL, BERG, LAKE])
    lengths = [10, 10, 10]
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    by_hand = idf * 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * lengths[0] / (sum(lengths) / 3)))
    scores = index._index.get_scores_from_ids([index._ids["hill"]])
    assert scores.tolist() == pytest.approx([by_hand, 0, 0])


def test_bm25_finds_by_shared_words_only() -> None:
    index = BM25([HILL, BERG, LAKE])
    assert index.search("Who directed the film Red Hill?", 1) == (HILL,)
    assert index.search("ALUN", 3) == (BERG,)
    assert index.search("quite unknown words", 3) == index.search("", 3) == index.search("🙂", 3) == ()


def test_equal_scores_keep_the_order_of_the_corpus() -> None:
    passages = [Passage(f"T{i}", ("same words", "words alone", "same same")[i % 3]) for i in range(999)]
    best = [p for p in passages if p.text == "same same"]
    assert BM25(passages).search("same", 7) == tuple(best[:7])
    assert BM25(passages[::-1]).search("same", 300) == tuple(best[::-1][:300])


def test_a_corpus_without_words_is_refused() -> None:
    with pytest.raises(TaskError, match="holds a word"):
        BM25([Passage("", "...")])


class Letters:
    """Embeds a text by how often it has the letters b and l; counts what it was asked."""

    asked: list[bool]

    def __init__(self) -> None:
        self.asked = []

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        self.asked += [query] * len(texts)
        rows = np.array([[1.0 + t.lower().count("b"), 1.0 + t.lower().count("l")] for t in texts], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_dense_search_embeds_the_corpus_once_and_not_before_it_is_searched() -> None:
    embedder = Letters()
    index = Dense([HILL, BERG, LAKE], lambda: embedder)
    assert embedder.asked == []
    assert index.search("bbbb", 1) == (BERG,)
    assert index.search("llll", 1) == (HILL,)
    assert embedder.asked == [False, False, False, True, True]


def server(answer: Callable[[httpx.Request], httpx.Response]) -> SearchServer:
    return SearchServer("http://search.test/retrieve", transport=httpx.MockTransport(answer))


def test_the_search_server_is_spoken_to_as_search_r1_does() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content) == {"queries": ["red hill"], "topk": 2, "return_scores": True}
        hits = [{"document": {"id": "7", "contents": f'"{p.title}"\n{p.text}'}, "score": 0.5} for p in (HILL, LAKE, BERG)]
        return httpx.Response(200, json={"result": [hits]})

    assert server(answer).search("red hill", 2) == (HILL, LAKE)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(500), "failed: HTTPStatusError"),
        (httpx.Response(200, text="<html>"), "answered in another form"),
        (httpx.Response(200, json={"result": []}), "answered in another form"),
        (httpx.Response(200, json={"result": [["x"]]}), "answered in another form"),
    ],
)
def test_a_failing_search_server_is_an_error_of_the_episode(response: httpx.Response, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        server(lambda request: response).search("x", 1)
