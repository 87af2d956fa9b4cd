"""Official files: products, prices, human and synthetic goals, and what is said of damaged ones."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from gongfu.core import rng_for
from gongfu.core.errors import TaskError
from gongfu.envs.webshop.catalogue import Catalogue, read_json, read_products, reasons
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
    left_out = Counter()
    assert read_products(again, ATTRIBUTES, where="x", left_out=left_out) == CATALOGUE.products
    assert reasons(left_out) == "1 whose asin an earlier one has, 2 whose asin is nan or longer than 10 characters"
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
    left_out = Counter()
    goals = human_goals(CATALOGUE, INSTRUCTIONS, where="x", left_out=left_out)
    assert left_out == {"without attributes": 1, "of products that items does not hold": 1}
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
    left_out = Counter()
    assert synthetic_goals(CATALOGUE, ATTRIBUTES | {"B9": ATTRIBUTES[TEA]}, where="x", left_out=left_out) == goals
    assert left_out == {"of products that items does not hold": 1}
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
        ([{"asin": "A"}], r'my items, item 1: it lacks the key "name" \(it is an object with the keys asin\)'),
        (["abc"], 'my items, item 1: it should be an object, but is the text "abc"'),
        ([ITEMS[1] | {"asin": 7}], 'its "asin" should be a text, but is the number 7'),
        ([ITEMS[1] | {"pricing": "$x"}], r'item 1: its "pricing" should be .* or null, but is the text "\$x"'),
        ([ITEMS[1] | {"pricing": "12.99"}], 'its "pricing" should be .* but is the text "12.99"'),
        ([ITEMS[1] | {"pricing": 12.99}], 'its "pricing" should be .* but is the number 12.99'),
        ([ITEMS[0], ITEMS[1] | {"customization_options": {"size": [{"image": "x"}]}}], 'item 2: it lacks the key "value"'),
        (
            [ITEMS[1] | {"customization_options": {"size": ["s"]}}],
            'value of its option "size" should be an object, but is the te',
        ),
        ([ITEMS[1] | {"customization_options": {"size": "s"}}], 'its option "size" should be a list, but is the text "s"'),
        ([ITEMS[1] | {"customization_options": ["s"]}], 'its "customization_options" should be an object, but is a list of 1'),
        ([ITEMS[1] | {"query": None}], 'its "query" should be a text, but is null'),
        ([ITEMS[1] | {"small_description": [3]}], 'each of its "small_description" should be a text, but is the number 3'),
        (
            [ITEMS[1] | {"small_description": {"a": 1}}],
            'its "small_description" should be a list, but is an object with the key',
        ),
        ([ITEMS[1] | {"full_description": ["x"]}], 'its "full_description" should be a text, but is a list of 1'),
        ([], "my items holds no products$"),
        ([ITEMS[1] | {"asin": "nan"}], "my items holds no products but 1 whose asin is nan"),
    ],
)
def test_damaged_items(items, message):
    with pytest.raises(TaskError, match=message):
        read_products(items, ATTRIBUTES, where="my items")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("slim fit", "its record in the file of attributes should be an object, but is the text"),
        ({"attributes": "slim fit"}, 'item 2: its attributes should be a list, but is the text "slim fit"'),
        ({"attributes": ["slim fit", None]}, "each of its attributes should be a text, but is null"),
    ],
)
def test_damaged_attributes(record, message):
    with pytest.raises(TaskError, match=message):
        read_products(ITEMS, {SHIRT: record}, where="my items")


SAID = {"instruction": "x", "instruction_attributes": ["a"], "instruction_options": []}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([{"instruction": "x", "instruction_options": []}], '1, instruction 1: it lacks the key "instruction_attributes"'),
        ([SAID, SAID | {"instruction": 3}], 'instruction 2: its "instruction" should be a text, but is the number 3'),
        ([SAID | {"instruction_attributes": "red"}], 'its "instruction_attributes" should be a list, but is the text "red"'),
        ([SAID | {"instruction_options": "red"}], 'its "instruction_options" should be a list, but is the text "red"'),
        ([SAID | {"instruction_options": {"color": 1}}], "each of its options should be a text, but is the number 1"),
        (["x"], 'it should be an object, but is the text "x"'),
        ({}, "f: the record of product B000000001 should be a list, but is an empty object"),
    ],
)
def test_damaged_instructions(record, message):
    with pytest.raises(TaskError, match=message):
        human_goals(CATALOGUE, {HOODIE: record}, where="f")


def test_damaged_templates():
    with pytest.raises(TaskError, match=r'f, product B000000004: its "instruction_attributes" should be a list'):
        synthetic_goals(CATALOGUE, {TEA: {"instruction": "x", "instruction_attributes": "caffeine free"}}, where="f")
    with pytest.raises(TaskError, match=r'f, product B000000004: its "instruction" should be a text, but is the number 3'):
        synthetic_goals(CATALOGUE, {TEA: {"instruction": 3}}, where="f")
    with pytest.raises(TaskError, match="without instruction_attributes"):
        synthetic_goals(CATALOGUE, {TEA: {"instruction": "x"}}, where="f")


def test_damaged_files(tmp_path):
    with pytest.raises(TaskError, match=r"WebShop's items cannot be read: .*none\.json.*keys items, attributes"):
        read_json(tmp_path / "none.json", list, "items")
    (tmp_path / "torn.json").write_text('[{"asin": ')
    with pytest.raises(TaskError, match=r"torn\.json is no JSON"):
        read_json(tmp_path / "torn.json", list, "items")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(TaskError, match=r"other\.json should hold a list, but holds an empty object"):
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
