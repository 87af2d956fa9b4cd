"""WebShop's reward, each part worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gongfu.envs.webshop.reward import attribute_matches, judge, option_matches, title_score, type_factor
from gongfu.envs.webshop.words import alike, nouns, same_color
from webshop_records import HOODIE, LAMP, SHIRT, TEA, goal, product

NINE = "alpha beta gamma delta zeta theta kappa lambda omega"


def named(name: str, query: str = "other", path: str = "A › B"):
    return replace(product(HOODIE), name=name, query=query, product_category=path)


@pytest.mark.parametrize(
    ("bought", "chosen", "wish", "parts", "reward"),
    [
        # type 1: (1 attribute + 1 option + 1 price) of (1 + 1 + 1)
        (HOODIE, ["red", "large"], goal(), (1.0, 1, 1, True), 1.0),
        (HOODIE, [], goal(), (1.0, 1, 0, True), 2 / 3),
        (HOODIE, ["dark navy | black"], goal(), (1.0, 1, 0, True), 2 / 3),
        (HOODIE, ["red"], goal(cap=20.0), (1.0, 1, 1, False), 2 / 3),
        (HOODIE, ["red"], goal(attributes=("long sleeve", "water proof")), (1.0, 1, 1, True), 3 / 4),
        (HOODIE, ["red"], goal(attributes=("water proof",), options=("blue", "small"), cap=20.0), (1.0, 0, 0, False), 0.0),
        (HOODIE, [], goal(options=()), (1.0, 1, 0, True), 1.0),
        # "Norvane" and "Men" of four nouns: 0.5, and two common categories; sleeves of another length do not count
        (SHIRT, [], goal(), (1.0, 0, 0, True), 1 / 3),
        # no noun in common
        (TEA, [], goal(cap=200.0), (0.0, 0, 0, True), 0.0),
    ],
)
def test_purchases(bought, chosen, wish, parts, reward):
    price = {HOODIE: 24.99, SHIRT: 15.0, TEA: 100.0}[bought]
    found = judge(product(bought), price, chosen, wish)
    assert (found.type_factor, found.attributes, found.options, found.affordable) == parts
    assert found.reward == pytest.approx(reward)


def test_a_price_equal_to_the_cap_is_affordable():
    assert judge(product(HOODIE), 40.0, ["red"], goal()).affordable
    assert not judge(product(HOODIE), 40.01, ["red"], goal()).affordable


def test_title_scores():
    assert nouns("Slim Fit Hoodie for Women, 2 Pack of the USB-C") == ["hoodie", "women", "pack", "usb"]
    assert title_score("Hoodie Men", "Norvane Hoodie Men Pullover") == 0.5
    assert title_score("Hoodie", "Hoodie Men Hoodie") == pytest.approx(1 / 3)  # counted as often as they stand there
    assert title_score("Tea", "Hoodie") == 0.0
    assert title_score("Tea", "Soft and Slim") == 0.2


@pytest.mark.parametrize(
    ("bought", "wanted", "factor"),
    [
        (named("alpha"), named("alpha beta gamma delta", "hat", "Y › Z"), 1.0),  # 1 of 4 = 0.25
        (named("alpha"), named("alpha beta gamma delta zeta", "hat", "Y › Z"), 0.5),  # 1 of 5 = 0.2 is not above it
        (named("alpha", "hat"), named("alpha beta gamma delta zeta", "hat", "Y › Z"), 1.0),
        (named("alpha", path="A › B › C"), named("alpha beta gamma delta zeta", "hat", "C › D › B"), 1.0),
        (named("alpha", path="A › B › C"), named("alpha beta gamma delta zeta", "hat", "C › D › E"), 0.5),
        # hardly a common noun overrides query and categories
        (named("alpha", "hat", "A › B"), named(f"{NINE} mu nu", "hat", "A › B"), 0.1),  # 1 of 11
        (named("alpha", "hat", "A › B"), named(f"{NINE} mu", "hat", "A › B"), 1.0),  # 1 of 10 is not below a tenth
        (named("nothing", "hat", "A › B"), named(NINE, "hat", "A › B"), 0.0),
        (named("Tea"), named("Soft and Slim", "hat", "Y › Z"), 0.5),  # a title without nouns scores 0.2
    ],
)
def test_type_factors(bought, wanted, factor):
    assert type_factor(bought, wanted) == factor


def test_attributes_are_listed_or_said():
    hoodie = product(HOODIE)
    assert attribute_matches(hoodie, ["long sleeve"]) == 1
    assert attribute_matches(hoodie, ["sleeve long", "slim fits"]) == 2  # token sets; "slim fits": 16 of 17 letters
    assert attribute_matches(hoodie, ["short sleeve", "machine washable"]) == 0
    assert attribute_matches(hoodie, ["machine wash"]) == 1  # a bullet
    assert attribute_matches(hoodie, ["pullover"]) == 1  # the title
    assert attribute_matches(hoodie, ["description"]) == 1
    assert attribute_matches(product(LAMP), ["norvane"]) == 1
    assert attribute_matches(product(TEA), ["caffeine free", "tea"]) == 2


def test_options_are_compared_by_colour_or_by_words():
    assert same_color("dark navy | black") == "black"  # the first in the alphabet, not in the value
    assert same_color("purplehousing") == "purple"
    assert same_color("x-large") == "x-large"
    assert option_matches(["dark navy | black"], ["black"]) == 1
    assert option_matches(["light red"], ["deep red"]) == 1
    assert option_matches(["red"], ["blue"]) == 0
    assert option_matches(["4 ounce (pack of 2)"], ["4 ounce pack of 2"]) == 1
    assert option_matches(["x-large"], ["large"]) == 1  # a subset of words counts in full, as in the original
    assert option_matches(["small"], ["large"]) == 0
    assert option_matches(["red", "small"], ["small", "red", "wide"]) == 2
    assert option_matches([], ["red"]) == 0


def test_alikeness_is_above_85():
    assert alike("ounce 4", "ounce 8")  # 12 of 14 letters: 85.7, rounded to 86
    assert not alike("a" * 23 + "bbbb", "a" * 23 + "cccc")  # 46 of 54: 85.2, rounded to 85
    assert alike("a" * 24 + "bbbb", "a" * 24 + "cccc")  # 48 of 56: 85.7
    assert not alike("", "")
