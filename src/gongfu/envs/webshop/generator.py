"""A seeded shop in the schema of the official files: items, attributes and instructions in the real style.

Titles say everything that an instruction may ask of a product, prices and options aside, so a reader of a result page can judge
which products to look at; which options they have, their pages tell. Many products of a kind share attributes, so the first
hit is often the wrong one.
"""

from __future__ import annotations

import random
from typing import Any

from gongfu.core.errors import TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.webshop.catalogue import Catalogue, Product
from gongfu.envs.webshop.goals import Goal, price_cap, with_cap
from gongfu.envs.webshop.wares import BRANDS, UNSEEN, WARES, Ware

__all__ = ["GENERATED_SPLITS", "make_goals", "make_records"]

GENERATED_SPLITS = ("train", "seen", "unseen")
"""Training wishes; wishes for other products of the same kinds; wishes for products of kinds that training never asks for."""

_ALL = (*WARES, *UNSEEN)
_DIGITS = "0123456789"
_SEEN_EVERY = 4  # of the products of a training kind, every fourth is for the split "seen"
_TRIES = 50

_OPENINGS = (
    "i am looking for",
    "i'm looking for",
    "i need",
    "i want",
    "i would like to buy",
    "find me",
    "can you help me find",
    "looking for",
    "please get me",
)


def make_records(count: int, seed: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """`count` items and the attributes of each, as the official files hold them. Kinds take turns.

    Raises TaskError if they are too few for every split to have products of each kind.
    """
    if count < (least := len(_ALL) * _SEEN_EVERY):
        raise TaskError(f"a generated WebShop needs at least {least} products ({_SEEN_EVERY} of each kind), got {count}")
    asins: set[str] = set()
    items, attributes = [], {}
    for number in range(count):
        ware = _ALL[number % len(_ALL)]
        rng = rng_for(seed, purpose="webshop product", step=number)
        while (asin := "B0" + "".join(rng.choices(_DIGITS, k=8))) in asins:
            pass
        asins.add(asin)
        has = rng.sample(ware.attributes, 3)
        items.append(_item(asin, ware, has, rng))
        attributes[asin] = {"attributes": has}
    return items, attributes


def make_goals(catalogue: Catalogue, split: str, count: int) -> list[Goal]:
    """`count` different wishes of a split; a longer list begins with the shorter one.

    Raises TaskError when the catalogue has no more.
    """
    products = [p for number, p in enumerate(catalogue.products) if _split_of(number, split)]
    rng_for(catalogue.seed, purpose=f"webshop order {split}").shuffle(products)
    goals: dict[tuple[str, frozenset[str], frozenset[str]], Goal] = {}
    turn = since = 0
    while len(goals) < count:
        if since == len(products):
            raise TaskError(
                f"a generated WebShop of {len(catalogue.products)} products has only {len(goals)} different wishes for split "
                f"{split!r}, not {count}: ask for fewer tasks or more products"
            )
        product = products[turn % len(products)]
        rng = rng_for(catalogue.seed, purpose=f"webshop goal {split}", step=turn)
        turn, since = turn + 1, since + 1
        for _ in range(_TRIES):
            goal = _goal(product, catalogue.prices[product.asin], rng)
            if goals.setdefault((product.asin, frozenset(goal.attributes), frozenset(goal.options)), goal) is goal:
                since = 0
                break
    return list(goals.values())


def _split_of(number: int, split: str) -> bool:
    """Whether the product with this number in the catalogue is wished for in a split."""
    turn, kind = divmod(number, len(_ALL))
    if split == "unseen":
        return kind >= len(WARES)
    return kind < len(WARES) and (turn % _SEEN_EVERY == _SEEN_EVERY - 1) == (split == "seen")


def _item(asin: str, ware: Ware, has: list[str], rng: random.Random) -> dict[str, Any]:
    brand, use = rng.choice(BRANDS), rng.choice(ware.uses)
    title = f"{brand} {has[0]} {ware.name} for {use}, {has[1]}, {has[2]}".title()
    options = {}
    for name, values in ware.options.items():
        offered = set(rng.sample(values, max(2, len(values) // 2)))
        options[name] = [{"value": value} for value in values if value in offered]
    return {
        "asin": asin,
        "name": title,
        "query": ware.name,
        "category": ware.category,
        "product_category": ware.path,
        "small_description": [f"Made for {use}.", *(f"{attribute.capitalize()} {ware.name}." for attribute in has)],
        "full_description": f"{ware.name.capitalize()} by {brand}.",
        "pricing": f"${rng.randint(*ware.price)}.{rng.choice((49, 95, 99))}",
        "customization_options": options,
    }


def _goal(product: Product, price: float, rng: random.Random) -> Goal:
    ware = next(ware for ware in _ALL if ware.name == product.query)
    attributes = rng.sample(product.attributes, rng.choice((1, 2, 2)))
    names = rng.sample([*product.options], rng.randint(1, len(product.options)))
    options = {name: rng.choice(product.options[name]) for name in names}
    cap = price_cap(price, rng)
    return Goal(product, with_cap(_say(ware, attributes, options, rng), cap), tuple(attributes), tuple(options.values()), cap)


def _say(ware: Ware, attributes: list[str], options: dict[str, str], rng: random.Random) -> str:
    """An instruction: opening, what it is, its attributes, its options."""
    before = [options["color"]] if "color" in options and rng.random() < 0.5 else []
    is_so = [attribute for attribute in attributes if attribute in ware.said]
    has = [attribute for attribute in attributes if attribute not in is_so]
    if is_so and rng.random() < 0.5:
        before.insert(rng.randint(0, len(before)), is_so.pop(0))
    after = [f"that is {' and '.join(is_so)}"] if is_so else []
    after += [f"with {' and '.join(has)}"] if has else []
    rest = {name: value for name, value in options.items() if value not in before}
    after += [f"in the {name} {value}" if rng.random() < 0.5 else f"{name} {value}" for name, value in rest.items()]
    thing = " ".join([*before, ware.name])
    article = "" if thing.endswith("s") else "an " if thing[0] in "aeiou" else "a "
    joint = rng.choice((", ", " "))
    return f"{rng.choice(_OPENINGS)} {article}{thing} {joint.join(after)}".strip().replace(" ,", ",")
