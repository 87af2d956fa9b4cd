"""Products: the records of the official files, or of our generator in the same schema, and what they are read into."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gongfu.core.errors import TaskError
from gongfu.core.seeds import rng_for

__all__ = ["Catalogue", "Product", "read_json", "read_products"]

NO_PRICE = 100.0
"""Dollars that a product costs whose price is missing."""

_NO_MONEY = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True)
class Product:
    """One product, as its page and the reward need it."""

    asin: str
    name: str
    """The title."""
    query: str
    """Lower-case name of the kind of product."""
    product_category: str
    """A path: "Clothing › Women › Hoodies"."""
    description: str
    bullets: tuple[str, ...]
    prices: tuple[float, ...]
    """One price, or the ends of a range."""
    options: Mapping[str, tuple[str, ...]]
    """Name of an option ("color") -> its values, lower-case."""
    attributes: tuple[str, ...]

    @property
    def price_tag(self) -> str:
        """The price as pages show it."""
        return " to ".join(f"${price:.2f}" for price in self.prices)

    @property
    def searched(self) -> str:
        """The text that a search looks in: title, description, first bullet and options."""
        options = [f"{name}: {', '.join(values)}" for name, values in self.options.items()]
        return ". ".join([self.name, self.description, *self.bullets[:1], *options])


@dataclass
class Catalogue:
    """All products of a shop, with the price of each: for a range one draw, keyed by (seed, asin)."""

    products: tuple[Product, ...]
    seed: int = 0
    by_asin: dict[str, Product] = field(init=False, repr=False)
    prices: dict[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.by_asin = {product.asin: product for product in self.products}
        self.prices = {product.asin: self._price(product) for product in self.products}

    def _price(self, product: Product) -> float:
        low, high = product.prices[0], product.prices[-1]
        return low if low == high else rng_for(self.seed, purpose="webshop price", task=product.asin).uniform(low, high)


def read_json(path: str | Path, kind: type[list] | type[dict], what: str) -> Any:
    """The content of a JSON file that must be a list or an object. Raises TaskError."""
    path = Path(path).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise TaskError(f"WebShop's {what} cannot be read: {e}; see the suite's keys items, attributes, instructions") from e
    except ValueError as e:
        raise TaskError(f"WebShop's {what}: {path} is no JSON: {e}") from e
    if not isinstance(content, kind):
        raise TaskError(f"WebShop's {what}: {path} holds a {type(content).__name__}, expected a {kind.__name__}")
    return content


def read_products(items: Sequence[Mapping[str, Any]], attributes: Mapping[str, Any], *, where: str) -> tuple[Product, ...]:
    """Products of official records (`items_shuffle*.json`, `items_ins_v2*.json`), in their order.

    As the original does, leaves out repeated ids and those that are "nan" or longer than 10 characters. Raises TaskError naming
    the item (from `where`) that does not fit, or when none is left.
    """
    products: dict[str, Product] = {}
    for number, item in enumerate(items, 1):
        try:
            asin = str(item["asin"])
            if asin != "nan" and len(asin) <= 10 and asin not in products:
                products[asin] = _product(asin, item, attributes)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            problem = f"lacks the key {e}" if isinstance(e, KeyError) else f"does not fit: {e}"
            raise TaskError(f"{where}, item {number} {problem}") from e
    if not products:
        raise TaskError(f"{where} holds no products")
    return tuple(products.values())


def _product(asin: str, item: Mapping[str, Any], attributes: Mapping[str, Any]) -> Product:
    bullets = item["small_description"] or ()
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in (item["customization_options"] or {}).items():
        if values := [content["value"].strip().replace("/", " | ").lower() for content in contents or ()]:
            options[name.lower()] = tuple(dict.fromkeys(values))
    return Product(
        asin=asin,
        name=item["name"],
        query=item["query"].lower().strip(),
        product_category=item["product_category"],
        description=item["full_description"] or "",
        bullets=(bullets,) if isinstance(bullets, str) else tuple(bullets),
        prices=_prices(item.get("pricing")),
        options=options,
        attributes=tuple(attributes.get(asin, {}).get("attributes", ())),
    )


def _prices(tag: str | None) -> tuple[float, ...]:
    """The dollars of "$12.99" or "$1,010.00 to $1,020.00"; more than two are cut."""
    found = [float(_NO_MONEY.sub("", part)) for part in (tag or "").split("$")[1:]]
    return tuple(found[:2]) or (NO_PRICE,)
