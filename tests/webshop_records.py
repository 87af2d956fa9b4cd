"""A shop of four products in the schema of WebShop's official files, small enough to work its rewards out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gongfu.envs.webshop.catalogue import Catalogue, Product, read_products
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.shop import Settings, Shop, WebShopEnv

HOODIE, SHIRT, LAMP, TEA = "B000000001", "B000000002", "B000000003", "B000000004"


def item(asin: str, name: str, query: str, path: str, price: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": name,
        "query": query,
        "category": "any",
        "product_category": path,
        "small_description": ["First point.", "Second point."],
        "full_description": "A description.",
        "pricing": price,
        "customization_options": {},
        "images": ["picture.jpg"],
        "seller_name": "Somebody",
        **changes,
    }


ITEMS = [
    item(
        HOODIE,
        "Norvane Hoodie Men Pullover",
        "Men's Hoodies ",
        "Clothing › Men › Hoodies",
        "$24.99",
        small_description=["Made of cotton.", "Machine wash cold."],
        customization_options={
            "Color": [{"value": "Red", "image": "r.jpg"}, {"value": " Dark Navy/Black "}],
            "Size": [{"value": "small"}, {"value": "large"}],
            "Fit": None,
        },
    ),
    item(SHIRT, "Norvane Shirt Men", "men's shirts", "Clothing › Men › Shirts", "$10 to $20"),
    item(
        LAMP, "Glass Lamp Bedroom Reading Night Nursery Desk Table Corner Shelf Norvane", "lamps", "Home › Lamps", "$1,010.50"
    ),
    item(TEA, "Ginger Tea", "teas", "Grocery › Teas", None, small_description=[], full_description=None),
]
ATTRIBUTES = {
    HOODIE: {
        "attributes": ["long sleeve", "slim fit"],
        "instruction": "Find me long sleeve men's hoodies",
        "instruction_attributes": ["long sleeve"],
    },
    SHIRT: {"attributes": ["short sleeve"]},
    TEA: {"attributes": ["caffeine free"], "instruction": "Find me teas", "instruction_attributes": ["caffeine free"]},
}
INSTRUCTIONS = {
    HOODIE: [
        {
            "instruction": "i need a red hoodie with long sleeve.",
            "instruction_attributes": ["long sleeve"],
            "instruction_options": ["red"],
        },
        {"instruction": "i need a hoodie", "instruction_attributes": [], "instruction_options": []},
    ],
    LAMP: [{"instruction": "a lamp of glass", "instruction_attributes": ["glass"], "instruction_options": {}}],
    "B999999999": [{"instruction": "gone", "instruction_attributes": ["x"], "instruction_options": []}],
}

CATALOGUE = Catalogue(read_products(ITEMS, ATTRIBUTES, where="the test's items"))


def product(asin: str) -> Product:
    return CATALOGUE.by_asin[asin]


def goal(asin: str = HOODIE, *, attributes=("long sleeve",), options=("red",), cap: float = 40.0) -> Goal:
    text = f"i need a red hoodie with long sleeve, and price lower than {cap:.2f} dollars"
    return Goal(product(asin), text, tuple(attributes), tuple(options), cap)


def visit(wish: Goal | None = None, **settings: Any) -> WebShopEnv:
    return WebShopEnv(Shop(CATALOGUE), wish or goal(), Settings(**settings))


def write_files(folder: Path) -> dict[str, str]:
    """The official files in a folder; returns their paths as the suite takes them."""
    contents = {"items": ITEMS, "attributes": ATTRIBUTES, "instructions": INSTRUCTIONS}
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return {name: str(folder / f"{name}.json") for name in contents}
