"""A shelf says of a text what comparing it with each one says."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gongfu.methods.uniskill.shelf import Shelf, same, similarity

WORDS = ["the mug", "The Mug,", "a  mug", "in", "on", "fridge", "shelf", "é", "", "go"]
texts = st.lists(st.sampled_from(WORDS), min_size=0, max_size=6).map(" ".join)


def plain_similarity(a, b):
    def grams(text):
        plain = " ".join(re.findall(r"\w+", text.casefold()))
        return {plain[i : i + 3] for i in range(max(1, len(plain) - 2))}

    return len(grams(a) & grams(b)) / len(grams(a) | grams(b))


def repeats(text, other, near):
    return plain_similarity(text, other) >= near if near else same(text) == same(other)


@given(texts, texts)
def test_similarity_is_the_jaccard_index(a, b):
    assert similarity(a, b) == plain_similarity(a, b)


@given(st.lists(texts, max_size=12), st.lists(st.tuples(st.integers(0, 15), texts), max_size=3), texts, st.integers(-1, 15))
@pytest.mark.parametrize("near", [0.0, 0.5, 0.8, 0.95, 1.0])
def test_a_shelf_finds_what_comparing_with_each_finds(near, first, later, text, left_out):
    there = {str(i): other for i, other in enumerate(first)}
    shelf = Shelf(there, near)
    for i, other in later:
        there[str(i)] = other
        shelf.put(str(i), other)
    expected = {id for id, other in there.items() if id != str(left_out) and repeats(text, other, near)}
    found = shelf.repeated_by(text, other_than=str(left_out))
    assert found in expected or (found == "" and not expected)
    if not later:
        assert found == min(expected, key=int, default="")


def test_a_large_shelf_is_asked_fast():
    import time

    shelf = Shelf({str(i): f"In home {i} the mug number {i * 7919} is usually in the fridge." for i in range(10_000)}, 0.95)
    started = time.process_time()
    for i in range(64):
        assert not shelf.repeated_by(f"In office {i} the cup number {i * 104729} lies on some shelf or other.")
    assert time.process_time() - started < 2.0  # comparing with each takes over ten seconds
