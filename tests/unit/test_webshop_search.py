"""Search terms, BM25 by hand, and the queries that are made from instructions."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from gongfu.envs.webshop.queries import candidates, wish_of
from gongfu.envs.webshop.search import SearchIndex
from gongfu.envs.webshop.words import content_words, terms
from webshop_records import CATALOGUE, HOODIE, LAMP, SHIRT, TEA, product

DATA = Path(os.environ.get("GONGFU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "webshop"
real = pytest.mark.skipif(not DATA.is_dir(), reason=f"no WebShop data at {DATA}; set GONGFU_DATA")


def test_terms_are_lower_case_stems_without_stop_words():
    assert terms("Running Shoes for the Men's Gym, 12.5oz") == ["run", "shoe", "men", "gym", "12", "5oz"]


def test_scores_by_hand():
    # 3 texts of 2, 1 and 3 terms, 2 on average; "red" is in two of them, "hat" in one
    index = SearchIndex(["red shoe", "red", "hat hat blue"])
    red, hat = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    k, b = 0.9, 0.4

    def frequency(f, length):
        return f / (f + k * (1 - b + b * length / 2))

    expected = [red * frequency(1, 2), red * frequency(1, 1), 2 * hat * frequency(2, 3)]
    assert index.scores("RED hats, hat").tolist() == pytest.approx(expected)
    assert expected == pytest.approx([0.2474, 0.2733, 1.2738], abs=1e-4)
    assert index.search("RED hats, hat", 5) == [2, 1, 0] and index.search("RED hats, hat", 2) == [2, 1]
    assert index.search("red", 1) == [1]
    assert index.search("the green", 5) == [] == index.search("", 5)
    assert SearchIndex([]).search("red", 5) == []


def test_equal_texts_keep_their_order():
    assert SearchIndex(["a hat", "hats", "shoe", "hat"]).search("hat", 9) == [0, 1, 3]


def test_what_is_searched():
    assert product(HOODIE).searched == (
        "Norvane Hoodie Men Pullover. A description.. Made of cotton.. color: red, dark navy | black. size: small, large"
    )
    index = SearchIndex([p.searched for p in CATALOGUE.products])

    def found(query):
        return [CATALOGUE.products[number].asin for number in index.search(query, 50)]

    assert found("cotton") == [HOODIE] and found("navy") == [HOODIE]
    assert found("machine wash cold") == []  # the second bullet
    assert found("long sleeve") == []  # an attribute
    assert found("lamps") == [LAMP] and found("ginger") == [TEA] and set(found("norvane men")) == {HOODIE, SHIRT, LAMP}


def test_queries_of_an_instruction():
    said = (
        "i'm looking for a pair of black hoodies in size x-large that are machine washable, and price lower than 40.00 dollars"
    )
    assert wish_of(said) == "i'm looking for a pair of black hoodies in size x-large that are machine washable"
    assert content_words(wish_of(said)) == ["pair", "black", "hoodies", "x-large", "machine", "washable"]
    assert candidates(said, 9) == (
        "pair black hoodies x-large machine washable",
        "pair black hoodies",
        "x-large hoodies",
        "machine washable hoodies",
    )
    assert candidates(said, 2) == candidates(said, 9)[:2] and candidates(said, 0) == ()
    assert candidates("I want it.", 3) == ("i want it.",)
    assert candidates("", 3) == ("anything",)


@real
def test_queries_of_real_instructions():
    """Every real instruction gets a query, and people's own queries share most of their words with ours."""
    said = json.loads((DATA / "human_goals.json").read_text(encoding="utf-8"))
    assert len(said) == 12087 and all(1 <= len(candidates(text, 4)) <= 4 for text in said)
    asked = json.loads((DATA / "goal_query_map.json").read_text(encoding="utf-8"))
    shares = []
    for text, queries in asked.items():
        ours = {*terms(candidates(text, 1)[0])}
        shares += [len(ours & {*terms(query)}) / len({*terms(query)}) for query in queries if terms(query)]
    assert len(shares) > 1500 and sum(shares) / len(shares) > 0.75


@real
def test_real_price_limits_are_read():
    tasks = [row["task"].split(" \n")[0] for row in json.loads((DATA / "webshop_fixed100.json").read_text(encoding="utf-8"))]
    capped = [text for text in tasks if "price lower than" in text]
    assert len(tasks) == 100 and len(capped) > 90
    assert all("dollars" not in wish_of(text) and text.startswith(wish_of(text)) for text in capped)
