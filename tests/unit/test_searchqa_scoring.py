"""Exact match and F1, worked by hand."""

from __future__ import annotations

import pytest

from gongfu.envs.searchqa.scoring import exact_match, f1_score, normalize


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("The Beatles", "beatles"),
        ("an  Apple\ta Day.", "apple day"),
        ("Theatre of the Absurd", "theatre of absurd"),  # "the" goes as a word only
        ("AC/DC's L.P.", "acdcs lp"),  # punctuation leaves no space behind
        ("a-b", "ab"),  # punctuation goes before articles: this "a" is part of a word
        ("3 November 1929", "3 november 1929"),
        ("Alû", "alû"),  # accents stay
        ("“quoted”", "“quoted”"),  # only ASCII punctuation goes
        ("The", ""),
    ],
)
def test_normalize(answer: str, plain: str) -> None:
    assert normalize(answer) == plain


def test_exact_match_takes_any_gold_answer() -> None:
    assert exact_match("the salzburg, austria!", ["Austria", "Salzburg, Austria"])
    assert not exact_match("Salzburg", ["Austria", "Salzburg, Austria"])
    assert not exact_match("anything", [])


@pytest.mark.parametrize(
    ("answer", "golds", "f1"),
    [
        ("The Berg", ["Ada Berg"], 2 / 3),  # one word of one, one of two
        ("Ada Maria Berg", ["Ada Berg"], 4 / 5),
        ("Berg Berg Ada", ["Berg Ada Ada"], 4 / 6),  # repeated words count as often as both have them
        ("Ada", ["Berg", "Ada Berg Holm", "Ada Berg"], 2 / 3),  # the best gold answer
        ("Norwick", ["Selby"], 0.0),
        ("yes", ["Yes."], 1.0),
        ("yes it is", ["yes"], 0.0),  # HotpotQA: a verdict is all or nothing
        ("no", ["no one knows"], 0.0),
        ("noanswer", ["noanswer found"], 0.0),
        ("", ["Selby"], 0.0),
        ("the", ["A"], 1.0),  # both are without words
        ("x", [], 0.0),
    ],
)
def test_f1(answer: str, golds: list[str], f1: float) -> None:
    assert f1_score(answer, golds) == pytest.approx(f1)
