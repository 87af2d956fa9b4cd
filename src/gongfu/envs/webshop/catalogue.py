"""Products: the records of the official files, or of our generator in the same schema, and what they are read into."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gongfu.core.errors import TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.fields import field as field_of
from gongfu.envs.fields import shown, texts, wanted

__all__ = ["Catalogue", "Product", "read_json", "read_products", "reasons"]

NO_PRICE = 100.0
"""Dollars that a product costs whose price is missing."""

T = TypeVar("T", str, list, dict)

_LONGEST_ID = 10
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
        expected = "a list" if kind is list else "an object"
        raise TaskError(f"WebShop's {what}: {path} should hold {expected}, but holds {shown(content)}")
    return content


def read_products(
    items: Sequence[Any], attributes: Mapping[str, Any], *, where: str, left_out: Counter[str] | None = None
) -> tuple[Product, ...]:
    """Products of official records (`items_shuffle*.json`, `items_ins_v2*.json`), in their order.

    As the original does, leaves out repeated ids and those that are "nan" or longer than 10 characters, and counts them in
    `left_out` by their reason. Raises TaskError naming the item (from `where`) that does not fit, or when none is left.
    """
    products: dict[str, Product] = {}
    left_out = Counter() if left_out is None else left_out
    for number, item in enumerate(items, 1):
        try:
            asin = field_of(wanted(item, dict, "it"), "asin", str)
            if asin == "nan" or len(asin) > _LONGEST_ID:
                left_out[f"whose asin is nan or longer than {_LONGEST_ID} characters"] += 1
            elif asin in products:
                left_out["whose asin an earlier one has"] += 1
            else:
                products[asin] = _product(asin, item, attributes)
        except ValueError as e:
            raise TaskError(f"{where}, item {number}: {e}") from e
    if not products:
        raise TaskError(f"{where} holds no products" + (f" but {reasons(left_out)}" if left_out else ""))
    return tuple(products.values())


def reasons(counts: Mapping[str, int]) -> str:
    """Counts in words.

    >>> reasons({"without attributes": 2, "of another shop": 1})
    '2 without attributes, 1 of another shop'
    """
    return ", ".join(f"{count} {reason}" for reason, count in counts.items())


def _product(asin: str, item: dict[str, Any], attributes: Mapping[str, Any]) -> Product:
    return Product(
        asin=asin,
        name=field_of(item, "name", str),
        query=field_of(item, "query", str).lower().strip(),
        product_category=field_of(item, "product_category", str),
        description=_or_empty(item, "full_description", str),
        bullets=_bullets(item),
        prices=_prices(item.get("pricing")),
        options=_options(item),
        attributes=_attributes(attributes.get(asin, {})),
    )


def _or_empty(item: dict[str, Any], key: str, kind: type[T]) -> T:
    """The value of a key, which must be there; as in the original, null and the like stand for an empty one."""
    return field_of(item, key, kind) if item.get(key, True) else kind()


def _bullets(item: dict[str, Any]) -> tuple[str, ...]:
    """The original takes a single text for a list of one."""
    bullets = item.get("small_description")
    if bullets and isinstance(bullets, str):
        return (bullets,)
    return texts(_or_empty(item, "small_description", list), 'its "small_description"')


def _options(item: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Null stands for no options at all, and for an option without values."""
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in _or_empty(item, "customization_options", dict).items():
        what = f'each value of its option "{name}"'
        listed = wanted(contents or [], list, f'its option "{name}"')
        if values := [field_of(wanted(content, dict, what), "value", str) for content in listed]:
            options[name.lower()] = tuple(dict.fromkeys(value.strip().replace("/", " | ").lower() for value in values))
    return options


def _attributes(record: Any) -> tuple[str, ...]:
    return texts(wanted(record, dict, "its record in the file of attributes").get("attributes", []), "its attributes")


def _prices(tag: Any) -> tuple[float, ...]:
    """The dollars of "$12.99" or "$1,010.00 to $1,020.00"; more than two are cut. Null or nothing is `NO_PRICE`."""
    if tag is None or tag == "":
        return (NO_PRICE,)
    try:
        found = tuple(float(_NO_MONEY.sub("", part)) for part in wanted(tag, str, 'its "pricing"').split("$")[1:])
    except ValueError:
        found = ()
    if not found:
        raise ValueError(f'its "pricing" should be "$12.99", "$10.00 to $20.00" or null, but is {shown(tag)}')
    return found[:2]
