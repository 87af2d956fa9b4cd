"""One episode on the site: searching, clicking, choosing, buying."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from gongfu.envs.protocol import Observation, Step
from gongfu.envs.webshop import pages
from gongfu.envs.webshop.catalogue import Catalogue, Product
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.pages import Form, Page
from gongfu.envs.webshop.queries import candidates
from gongfu.envs.webshop.reward import judge
from gongfu.envs.webshop.search import SearchIndex

__all__ = ["OPEN_QUERY", "Settings", "Shop", "WebShopEnv", "parse"]

HITS = 50
"""Most results of a search."""

OPEN_QUERY = "search[<your query>]"
"""Stands among the admissible actions for a search with any words."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a shop shows itself; see `gongfu.config.schema.WebShopConfig`."""

    form: Form = "text"
    score: Literal["reward", "success"] = "reward"
    queries: int = 4
    results_per_page: int = 10
    show_attributes: bool = False
    show_chosen: bool = False
    max_steps: int = 15


@dataclass
class Shop:
    """The catalogue and its search, shared by all episodes."""

    catalogue: Catalogue
    _found: dict[str, tuple[Product, ...]] = field(default_factory=dict, repr=False)

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex([product.searched for product in self.catalogue.products])

    def search(self, query: str) -> tuple[Product, ...]:
        """At most 50 products, best first."""
        if query not in self._found:
            if len(self._found) >= 4096:
                self._found.clear()
            self._found[query] = tuple(self.catalogue.products[number] for number in self.index.search(query, HITS))
        return self._found[query]


def parse(action: str) -> tuple[str, str]:
    """The verb and the argument of "verb[argument]", as the original's pattern (.+)\\[(.+)\\] finds them, else ("", "").

    >>> parse("click[Buy Now]"), parse("buy it")
    (('click', 'Buy Now'), ('', ''))
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return (line[:start], line[start + 1 : end]) if start > 0 else ("", "")


class WebShopEnv:
    """Implements `gongfu.envs.protocol.Env`.

    Actions are "search[words]" on the start page and "click[value]" for what can be clicked; any other changes nothing. Buying
    ends the episode with the official reward, which is a success at 1. After `max_steps` it is truncated.
    """

    def __init__(self, shop: Shop, goal: Goal, settings: Settings) -> None:
        self._shop, self._goal, self._settings = shop, goal, settings
        self._page: Page = pages.start_page(goal.instruction)
        self._query, self._number = "", 1
        self._product: Product | None = None
        self._on_subpage = False
        self._chosen: dict[str, str] = {}
        self._visited: frozenset[str] = frozenset()
        self._steps = 0
        self._over = False

    def reset(self) -> Observation:
        return self._observation(opening=True)

    def step(self, action: str) -> Step:
        """Raises RuntimeError after the end."""
        if self._over:
            raise RuntimeError("the episode is over: it was bought, or the steps are used up")
        self._steps += 1
        verb, argument = parse(action)
        argument = argument.lower()
        if verb == "search" and self._page.has_search_bar:
            self._query = argument
            self._show_results(1)
        elif verb == "click" and argument in self._page.clickables:
            if argument == pages.BUY.lower() and self._product and not self._on_subpage:
                return self._buy(self._product)
            self._click(argument)
        self._over = self._steps >= self._settings.max_steps
        if self._over:
            return Step(self._observation(), truncated=True, outcome="failure", score=0.0)
        return Step(self._observation())

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------ where the customer is

    @property
    def product(self) -> Product | None:
        """The product that is looked at."""
        return self._product

    @property
    def chosen(self) -> dict[str, str]:
        """Option -> chosen value, of the product that is looked at."""
        return dict(self._chosen)

    @property
    def place(self) -> tuple[object, ...]:
        """Equal before and after what changes nothing on the site, whatever the pages show of it."""
        return (self._query, self._number, self._page, self._on_subpage, tuple(sorted(self._chosen.items())))

    @property
    def listed(self) -> tuple[Product, ...]:
        """The products on a page of results."""
        on_results = self._product is None and not self._page.has_search_bar
        return self._shown() if on_results else ()

    # ------------------------------------------------------------------ the pages

    def _click(self, value: str) -> None:
        """Follow a link of the page, or choose an option. The button of the search bar does nothing without words."""
        if value == pages.SEARCH.lower():
            return
        if value == pages.BACK.lower():
            self._product, self._on_subpage = None, False
            self._page = pages.start_page(self._goal.instruction)
        elif self._product is None:
            self._from_results(value)
        elif value == pages.PREVIOUS.lower():
            self._show_item(self._product) if self._on_subpage else self._show_results(self._number)
        else:
            self._on_item(self._product, value)

    def _from_results(self, value: str) -> None:
        if value == pages.NEXT.lower():
            self._show_results(self._number + 1)
        elif value == pages.PREVIOUS.lower():
            self._show_results(self._number - 1)
        else:
            product = next(product for product in self._shown() if product.asin.lower() == value)
            self._visited |= {product.asin}
            self._show_item(product)

    def _on_item(self, product: Product, value: str) -> None:
        names = {name.lower(): name for name in pages.SUBPAGES}
        if value in names:
            self._on_subpage = True
            self._page = pages.sub_page(self._goal.instruction, product, names[value])
            return
        option = next(name for name in [*product.options][::-1] if value in product.options[name])
        self._chosen[option] = value
        self._show_item(product)

    def _shown(self) -> tuple[Product, ...]:
        size = self._settings.results_per_page
        return self._shop.search(self._query)[(self._number - 1) * size : self._number * size]

    def _show_results(self, number: int) -> None:
        """Results show no choice: coming here clears what was chosen."""
        self._number, self._product, self._chosen = number, None, {}
        total = len(self._shop.search(self._query))
        self._page = pages.results_page(self._goal.instruction, self._shown(), number, total, self._visited)

    def _show_item(self, product: Product) -> None:
        self._product, self._on_subpage = product, False
        attributes = self._settings.show_attributes
        self._page = pages.item_page(self._goal.instruction, product, self._chosen, attributes=attributes)

    def _buy(self, product: Product) -> Step:
        self._over = True
        reward = judge(product, self._shop.catalogue.prices[product.asin], self._chosen.values(), self._goal).reward
        self._page = pages.done_page(reward)
        success = reward == 1.0
        return Step(
            self._observation(),
            reward=reward,
            terminated=True,
            outcome="success" if success else "failure",
            score=reward if self._settings.score == "reward" else float(success),
        )

    # ------------------------------------------------------------------ what the agent sees

    def _observation(self, *, opening: bool = False) -> Observation:
        text = pages.write(self._page, self._settings.form, opening=opening)
        if self._settings.show_chosen and self._product and not self._over:
            text += f"{self._gap}Chosen: {', '.join(f'{n}: {v}' for n, v in sorted(self._chosen.items())) or 'nothing'}"
        return Observation(text, self._actions())

    @property
    def _gap(self) -> str:
        return " [SEP] " if self._settings.form == "text" else "\n"

    def _actions(self) -> tuple[str, ...] | None:
        """Sorted. On the start page searches only: its button does nothing by itself."""
        if self._page.has_search_bar:
            listed = candidates(self._goal.instruction, self._settings.queries)
            return tuple(sorted({f"search[{query}]" for query in listed})) or (OPEN_QUERY,)
        return tuple(sorted(f"click[{value}]" for value in self._page.clickables)) or None
