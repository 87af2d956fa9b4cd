"""Similarity of texts: difflib's measure without its traps, and clusters that no order changes."""

from __future__ import annotations

import itertools
import random
from difflib import SequenceMatcher

import pytest

from gongfu.credit import similarity as module
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


def edited(text, rng, share):
    """A text with a share of its characters dropped, doubled or changed."""
    kept = []
    for sign in text:
        kept += rng.choice([[], [sign, sign], [rng.choice("abc é🙂")]]) if rng.random() < share else [sign]
    return "".join(kept)


def chains(texts, threshold):
    """The clusters by comparing every pair."""
    numbers = list(range(len(texts)))
    for i, a in enumerate(texts):
        for j, b in enumerate(texts[:i]):
            if similarity(a, b) >= threshold:
                numbers = [numbers[j] if n == numbers[i] else n for n in numbers]
    return [numbers.index(n) for n in numbers]


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.8, 0.9, 0.95])
def test_the_cheap_bounds_never_change_the_answer(threshold):
    rng = random.Random(7)
    texts = ["".join(rng.choices("abc ", k=rng.randint(0, 12))) for _ in range(25)]
    texts += [edited(prose[:150], rng, share) for prose in PROSE for share in (0.01, 0.05, 0.08, 0.1, 0.2, 0.4)]
    texts += [text[::-1] for text in texts[-12:]]  # the same characters in another order
    numbers = clusters(texts, threshold)
    first = [numbers.index(n) for n in numbers]
    assert first == chains(texts, threshold) and 1 < len(set(first)) < len(texts)


def test_few_pairs_are_compared_in_full(monkeypatch):
    rng = random.Random(3)
    calls = {"_alike": 0, "similarity": 0}

    def counted(name, function):
        def call(*given):
            calls[name] += 1
            return function(*given)

        return call

    for name in calls:
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 8))) for _ in range(400)]
    pages = [" ".join(rng.choices(words, k=60)) for _ in range(40)]
    halves = [a[:150] + b[150:] for a, b in itertools.pairwise(pages)]
    numbers = clusters([*pages, *(edited(page, rng, 0.02) for page in pages), *halves], 0.9)
    assert numbers[:40] == numbers[40:80] and len(set(numbers)) == 79
    assert calls["_alike"] < 200  # of 7021 pairs; by their characters most could be as alike
    assert calls["similarity"] == 40
