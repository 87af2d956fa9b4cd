"""A scripted buyer: it has understood the instruction, and reads the pages for the rest.

It searches by the listed queries, looks through the results for a title and a price that fit, opens what fits, chooses the
wanted options and buys; what turns out not to fit it leaves for the next. Where titles do not tell (official products), it is
told the product that the instruction was written for.
"""

from __future__ import annotations

import random
import re

from gongfu.core.errors import TaskError
from gongfu.envs.protocol import Observation
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.queries import candidates
from gongfu.envs.webshop.reward import option_matches

__all__ = ["WebShopExpert"]

_PAGES_A_QUERY = 3
_QUERIES = 4
_PAGER = re.compile(r"page (\d+) \(total results: (\d+)\)")
_PRICE = re.compile(r"\$(\d+\.\d\d)")
_BACK, _NEXT, _PREVIOUS, _BUY = "click[back to search]", "click[next >]", "click[< prev]", "click[buy now]"


class WebShopExpert:
    """Plays one episode. Implements `gongfu.envs.protocol.Expert`.

    `told`: buy the product of the goal and no other. `noise`: the chance, at each step, of a random action instead: one that is
    or was admissible in this episode.
    """

    def __init__(self, goal: Goal, rng: random.Random, *, told: bool = False, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a probability, got {noise}")
        self._goal, self._rng, self._told, self._noise = goal, rng, told, noise
        self._queries = [*candidates(goal.instruction, _QUERIES), *([goal.product.name] if told else [])]
        self._turn = 0
        """Number of the query to try next."""
        self._known: set[str] = set()
        self._seen: dict[str, bool] = {}
        """Product -> whether its title and price fit."""
        self._refused: set[str] = set()
        self._item = ""
        self._chosen: set[str] = set()
        self.explored = False
        """Whether the last action was noise: not a thing to imitate."""

    def act(self, observation: Observation) -> str:
        """The next action. Raises TaskError without admissible actions."""
        actions = observation.actions
        if not actions:
            raise TaskError("the WebShop expert needs the admissible actions")
        self._known |= {*actions}
        self.explored = self._rng.random() < self._noise
        action = self._rng.choice(sorted(self._known)) if self.explored else self._decide(observation.text, actions)
        self._remember(action, actions)
        return action

    def _remember(self, action: str, actions: tuple[str, ...]) -> None:
        """What the action will have changed."""
        product = action[len("click[") : -1].upper()
        if action in actions and product in self._seen:
            self._item, self._chosen = product, set()
        elif self.explored:
            self._chosen = set()  # it may have taken back a choice
        elif _BUY in actions:
            self._chosen.add(action)

    def _decide(self, text: str, actions: tuple[str, ...]) -> str:
        if _NEXT in actions:
            return self._pick(text, actions)
        if _BUY in actions:
            return self._choose(actions)
        if _BACK in actions:
            return _PREVIOUS
        query = self._queries[self._turn % len(self._queries)]
        self._turn += 1
        return f"search[{query}]"

    def _pick(self, text: str, actions: tuple[str, ...]) -> str:
        """On results: the first product that fits, else the next page, else another query."""
        buttons = (_BACK, _NEXT, _PREVIOUS)
        text = text.lower()
        shown = sorted((text.find(id), id.upper()) for a in actions if a not in buttons and (id := a[len("click[") : -1]))
        ends = [*(start for start, _ in shown[1:]), len(text)]
        for (start, product), end in zip(shown, ends, strict=False):
            self._seen[product] = self._fits(product, text[start:end])
        for _, product in shown:
            if self._seen[product] and product not in self._refused:
                return f"click[{product.lower()}]"
        page = _PAGER.search(text)
        if page and shown and int(page[1]) < _PAGES_A_QUERY:
            return _NEXT
        return _BACK

    def _fits(self, asin: str, text: str) -> bool:
        if self._told:
            return asin == self._goal.product.asin
        price = _PRICE.search(text)
        wanted = (self._goal.product.query, *self._goal.attributes)
        return price is not None and float(price[1]) <= self._goal.price_cap and all(w in text for w in wanted)

    def _choose(self, actions: tuple[str, ...]) -> str:
        """On a product: the options one by one, then buy; back to the results if it does not fit."""
        if not self._seen.get(self._item, False):
            return self._leave()
        for wanted in self._goal.options:
            able = [action for action in actions if option_matches([action[len("click[") : -1]], [wanted])]
            exact = f"click[{wanted}]"
            action = exact if exact in able else able[0] if able else ""
            if not action and not self._told:
                return self._leave()
            if action and action not in self._chosen:
                return action
        return _BUY

    def _leave(self) -> str:
        self._refused.add(self._item)
        return _PREVIOUS
