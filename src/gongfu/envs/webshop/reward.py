"""What a purchase is worth: WebShop's reward (arXiv 2207.01206) with its type, attribute, option and price parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gongfu.envs.webshop.catalogue import Product
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.words import alike, nouns, same_color

__all__ = ["Purchase", "attribute_matches", "judge", "option_matches", "title_score", "type_factor"]


@dataclass(frozen=True, slots=True)
class Purchase:
    """The parts of a reward."""

    type_factor: float
    """0, 0.1, 0.5 or 1: how far the bought product is of the wanted kind."""
    attributes: int
    """Wanted attributes that it has."""
    options: int
    """Wanted option values that were chosen."""
    affordable: bool
    wanted: int
    """Attributes, options and the price limit, counted."""

    @property
    def reward(self) -> float:
        """0 to 1."""
        return self.type_factor * (self.attributes + self.options + self.affordable) / self.wanted


def judge(bought: Product, price: float, chosen: Iterable[str], goal: Goal) -> Purchase:
    """What buying a product for `price` with the `chosen` values of its options is worth."""
    return Purchase(
        type_factor=type_factor(bought, goal.product),
        attributes=attribute_matches(bought, goal.attributes),
        options=option_matches(chosen, goal.options),
        affordable=price <= goal.price_cap,
        wanted=len(goal.attributes) + len(goal.options) + 1,
    )


def title_score(bought: str, wanted: str) -> float:
    """Share of the nouns of the wanted title that the bought one has; 0.2 when the wanted one has none."""
    asked = nouns(wanted)
    return len({*asked} & {*nouns(bought)}) / len(asked) if asked else 0.2


def type_factor(bought: Product, wanted: Product) -> float:
    """1 for the same query, two common categories or titles that share more than a fifth; else 0.5.

    Titles with hardly a common noun override both: below a tenth 0.1, with none 0.
    """
    score = title_score(bought.name, wanted.name)
    if score == 0:
        return 0.0
    if score < 0.1:
        return 0.1
    common = _categories(bought) & _categories(wanted)
    return 1.0 if bought.query == wanted.query or len(common) >= 2 or score > 0.2 else 0.5


def attribute_matches(bought: Product, wanted: Iterable[str]) -> int:
    """How many wanted attributes the product lists, or says in its title, bullets or description."""
    texts = (bought.name.lower(), " ".join(bought.bullets).lower(), bought.description.lower())
    return sum(any(alike(has, asked) for has in bought.attributes) or any(asked in text for text in texts) for asked in wanted)


def option_matches(chosen: Iterable[str], wanted: Iterable[str]) -> int:
    """How many wanted values are alike to a chosen one, shades of a colour being the same."""
    chosen = [same_color(value) for value in chosen]
    return sum(any(alike(value, same_color(asked)) for value in chosen) for asked in wanted)


def _categories(product: Product) -> set[str]:
    return {part.strip() for part in product.product_category.split("›")}
