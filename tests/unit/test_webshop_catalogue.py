"""Official files: products, prices, human and synthetic goals, and what is said of damaged ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gongfu.core import rng_for
from gongfu.core.errors import TaskError
from gongfu.envs.webshop.catalogue import Catalogue, read_json, read_products
from gongfu.envs.webshop.goals import NO_CAP, human_goals, price_cap, shuffled, synthetic_goals, with_cap
from webshop_records import ATTRIBUTES, CATALOGUE, HOODIE, INSTRUCTIONS, ITEMS, LAMP, SHIRT, TEA, item, product

DATA = Path(os.environ.get("GONGFU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "webshop"


def test_products_as_the_original_reads_them():
    hoodie = product(HOODIE)
    assert (hoodie.name, hoodie.query, hoodie.price_tag) == ("Norvane Hoodie Men Pullover", "men's hoodies", "$24.99")
    assert hoodie.options == {"color": ("red", "dark navy | black"), "size": ("small", "large")}
    assert hoodie.attributes == ("long sleeve", "slim fit")
    assert product(SHIRT).prices == (10.0, 20.0) and product(SHIRT).price_tag == "$10.00 to $20.00"
    assert product(LAMP).prices == (1010.5,) and product(LAMP).attributes == ()
    tea = product(TEA)
    assert (tea.prices, tea.price_tag, tea.bullets, tea.description) == ((100.0,), "$100.00", (), "")


def test_repeated_and_unusable_ids_are_left_out():
    again = [*ITEMS, ITEMS[0] | {"name": "another"}, ITEMS[0] | {"asin": "nan"}, ITEMS[0] | {"asin": "B0000000001"}]
    assert read_products(again, ATTRIBUTES, where="x") == CATALOGUE.products
    single = read_products([item("A", "N", "q", "p", "$1", small_description="One string.")], {}, where="x")
    assert single[0].bullets == ("One string.",)


def test_a_price_range_is_drawn_once_by_seed():
    drawn = CATALOGUE.prices[SHIRT]
    assert 10 <= drawn <= 20 and Catalogue(CATALOGUE.products).prices == CATALOGUE.prices
    assert Catalogue(CATALOGUE.products, seed=1).prices[SHIRT] != drawn
    assert CATALOGUE.prices[HOODIE] == 24.99 and CATALOGUE.prices[TEA] == 100.0


def test_price_caps():
    drawn = {price_cap(24.99, rng_for(seed, purpose="cap")) for seed in range(100)}
    assert drawn == {40.0, 50.0, 60.0}  # the larger of two among 30, 40, 50, 60
    assert 30.0 not in {price_cap(30.0, rng_for(seed, purpose="cap")) for seed in range(100)}  # 40, 50, 60, 70
    assert price_cap(975.0, rng_for(0, purpose="cap")) == 990.0  # 980 and 990 are left
    assert price_cap(980.0, rng_for(0, purpose="cap")) == NO_CAP == price_cap(5000.0, rng_for(0, purpose="cap"))
    assert with_cap("a lamp", NO_CAP) == "a lamp"


def test_human_goals():
    goals = human_goals(CATALOGUE, INSTRUCTIONS, where="x")
    assert [goal.product.asin for goal in goals] == [HOODIE, LAMP]  # one had no attributes, one no product
    hoodie, lamp = goals
    assert hoodie.instruction == with_cap("i need a red hoodie with long sleeve", hoodie.price_cap)
    assert hoodie.price_cap in (40.0, 50.0, 60.0)
    assert (hoodie.attributes, hoodie.options) == (("long sleeve",), ("red",))
    assert (lamp.instruction, lamp.price_cap, lamp.options) == ("a lamp of glass", NO_CAP, ())


def test_synthetic_goals_are_all_combinations_of_options():
    goals = synthetic_goals(CATALOGUE, ATTRIBUTES, where="x")
    assert [goal.options for goal in goals] == [
        *[("red", "small"), ("red", "large"), ("dark navy | black", "small"), ("dark navy | black", "large")],
        (),
    ]
    said = "Find me long sleeve men's hoodies with color: red, and size: small, and price lower than"
    assert goals[0].instruction.startswith(said)
    assert goals[4].instruction.startswith("Find me teas, and price lower than") and goals[4].product.asin == TEA


def test_the_order_of_official_goals_is_that_of_the_original():
    import random

    goals = [*range(20)]
    random.seed(233)
    random.shuffle(goals)
    assert shuffled(range(20)) == goals  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"asin": "A"}], r"my items, item 1 lacks the key 'name'|my items, item 1 lacks the key"),
        (["text"], "my items, item 1 does not fit"),
        ([ITEMS[1] | {"pricing": "$x"}], "my items, item 1 does not fit"),
        ([ITEMS[0], ITEMS[1] | {"customization_options": {"color": [{"image": "x"}]}}], "item 2 lacks the key 'value'"),
        ([ITEMS[1] | {"query": None}], "item 1 does not fit"),
        ([], "my items holds no products"),
    ],
)
def test_damaged_items(items, message):
    with pytest.raises(TaskError, match=message):
        read_products(items, ATTRIBUTES, where="my items")


def test_damaged_goals():
    with pytest.raises(TaskError, match=r"f, product B000000001, instruction 1 lacks or misstates 'instruction_attributes'"):
        human_goals(CATALOGUE, {HOODIE: [{"instruction": "x"}]}, where="f")
    with pytest.raises(TaskError, match="holds a dict, expected a list"):
        human_goals(CATALOGUE, {HOODIE: {}}, where="f")
    with pytest.raises(TaskError, match="without instruction_attributes"):
        synthetic_goals(CATALOGUE, {TEA: {"instruction": "x"}}, where="f")


def test_damaged_files(tmp_path):
    with pytest.raises(TaskError, match=r"WebShop's items cannot be read: .*none\.json.*keys items, attributes"):
        read_json(tmp_path / "none.json", list, "items")
    (tmp_path / "torn.json").write_text('[{"asin": ')
    with pytest.raises(TaskError, match=r"torn\.json is no JSON"):
        read_json(tmp_path / "torn.json", list, "items")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(TaskError, match=r"other\.json holds a dict, expected a list"):
        read_json(tmp_path / "other.json", list, "items")


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no WebShop data at {DATA}; set GONGFU_DATA")
def test_real_attributes_give_real_goals():
    """The real attributes with a stand-in catalogue of the same ids: 415 products have a template instruction."""
    attributes = json.loads((DATA / "items_ins_v2_1000.json").read_text(encoding="utf-8"))
    items = [item(asin, f"Product {asin}", "any", "A › B", "$10.00") for asin in attributes]
    catalogue = Catalogue(read_products(items, attributes, where="stand-ins"))
    goals = synthetic_goals(catalogue, attributes, where="items_ins_v2_1000.json")
    assert len(catalogue.products) == 1000 and len(goals) == 415
    assert all(goal.instruction.startswith("Find me ") and goal.attributes for goal in goals)
    kept = sum(set(goal.attributes) <= set(goal.product.attributes) for goal in goals)
    assert kept == len(goals)
