"""Similarity of texts: difflib's measure without its traps, and clusters that no order changes."""

from __future__ import annotations

import random
from difflib import SequenceMatcher

import pytest

from gongfu.credit.similarity import LIMIT, clusters, similarity

PROSE = [
    "The kitchen has a long table by the window, two chairs and a shelf that holds cups in many colours. " * 4,
    "A brown dog runs through the wet grass after its ball while children watch from behind the low fence. " * 4,
]


def test_no_character_is_dropped_from_long_texts():
    long = similarity(PROSE[0], PROSE[1])
    assert long > 2 * SequenceMatcher(None, PROSE[0], PROSE[1]).ratio()  # what autojunk makes of it


def test_symmetric():
    parts = [PROSE[0][:120], PROSE[1][:120], "zebra " * 20]
    a, b = "".join(parts), "".join(reversed(parts))
    assert similarity(a, b) == similarity(b, a)
    assert similarity("", "") == 1.0 == similarity("x", "x") and similarity("x", "y") == 0.0


def test_only_the_first_characters_count():
    assert similarity("a" * LIMIT + "b" * 50, "a" * LIMIT + "c" * 50) == 1.0


def test_a_chain_makes_one_cluster_in_any_order():
    texts = ["aaaa", "aaab", "aabb", "abbb", "cccc", "aaaa"]
    expected = {frozenset({"aaaa", "aaab", "aabb", "abbb"}), frozenset({"cccc"})}
    for seed in range(10):
        order = random.Random(seed).sample(texts, len(texts))
        numbers = clusters(order, 0.75)
        found = {frozenset(t for t, n in zip(order, numbers, strict=True) if n == k) for k in set(numbers)}
        assert found == expected and numbers[0] == 0


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8, 0.95])
def test_the_cheap_bounds_never_change_the_answer(threshold):
    rng = random.Random(7)
    texts = ["".join(rng.choices("abc ", k=rng.randint(1, 12))) for _ in range(25)]
    numbers = clusters(texts, threshold)
    for i, a in enumerate(texts):
        for j, b in enumerate(texts):
            if similarity(a, b) >= threshold:
                assert numbers[i] == numbers[j]
