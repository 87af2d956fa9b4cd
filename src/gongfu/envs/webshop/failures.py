"""Why a shopping episode failed, measured from what was done: the failure modes of Role-Agent's WebShop table.

The clicks are made again on the site. A purchase is judged by the first part of the reward that it lacks; a visit without
one by what the steps were spent on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gongfu.core.records import Trajectory
from gongfu.envs.webshop.catalogue import Catalogue, Product
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.reward import judge
from gongfu.envs.webshop.shop import WebShopEnv, parse

__all__ = ["FAILURE_MODES", "diagnose"]

FAILURE_MODES = (
    "irrelevant_query",
    "wrong_product_selection",
    "wrong_attribute_selection",
    "missing_attribute_selection",
    "premature_purchase",
    "excessive_browsing",
    "repeated_query",
    "navigation_error",
    "price_constraint_violation",
    "action_format_error",
    "premature_termination",
)


@dataclass
class _Visit:
    """What happened on the site."""

    queries: list[str]
    opened: list[Product]
    offered: list[Product]
    """What pages of results listed."""
    idle: int
    """Steps that changed nothing."""
    bought: Product | None
    chosen: tuple[str, ...]


def diagnose(trajectory: Trajectory, env: WebShopEnv, goal: Goal, catalogue: Catalogue) -> str:
    """The failure mode of a failed episode, one of FAILURE_MODES. `env` is a new environment of its task."""
    turns = trajectory.turns
    if sum(not turn.validity.format for turn in turns) * 2 >= len(turns):
        return "action_format_error"
    visit = _visit(trajectory, env)

    def fits(product: Product) -> bool:
        """Whether it could earn the full reward, with the right options."""
        found = judge(product, catalogue.prices[product.asin], goal.options, goal)
        return found.type_factor == 1 and found.attributes == len(goal.attributes) and found.affordable

    found = any(map(fits, visit.offered))
    if visit.bought is not None:
        return _of_purchase(visit, visit.bought, goal, catalogue, found=found)
    return _of_browsing(visit, trajectory, fits, found=found)


def _visit(trajectory: Trajectory, env: WebShopEnv) -> _Visit:
    env.reset()
    visit = _Visit([], [], [], 0, None, ())
    for turn in trajectory.turns:
        if not turn.validity.format:
            visit.idle += 1
            continue
        verb, argument = parse(turn.action)
        looked_at, chosen, before = env.product, env.chosen, env.place
        step = env.step(turn.action)
        if verb == "search":
            visit.queries.append(argument.lower())
        if step.terminated:
            visit.bought, visit.chosen = looked_at, tuple(chosen.values())
        visit.idle += env.place == before
        if env.product is not None and env.product is not looked_at:
            visit.opened.append(env.product)
        visit.offered += env.listed
    return visit


def _of_purchase(visit: _Visit, bought: Product, goal: Goal, catalogue: Catalogue, *, found: bool) -> str:
    """Something was bought that is not worth the full reward."""
    price = catalogue.prices[bought.asin]
    purchase = judge(bought, price, visit.chosen, goal)
    if purchase.type_factor < 1 or purchase.attributes < len(goal.attributes):
        return "wrong_product_selection" if found else "irrelevant_query"
    if not purchase.affordable:
        return "price_constraint_violation"
    if not visit.chosen:
        return "premature_purchase"
    return "missing_attribute_selection" if len(visit.chosen) < len(goal.options) else "wrong_attribute_selection"


def _of_browsing(visit: _Visit, trajectory: Trajectory, fits: Callable[[Product], bool], *, found: bool) -> str:
    """Nothing was bought."""
    if trajectory.stop not in ("terminated", "truncated"):
        return "premature_termination"
    if not visit.queries or visit.idle * 2 >= len(trajectory.turns):
        return "navigation_error"
    if len(visit.queries) - len(set(visit.queries)) >= max(2, len(visit.queries) / 2):
        return "repeated_query"
    if not found:
        return "irrelevant_query"
    return "excessive_browsing" if any(map(fits, visit.opened)) else "wrong_product_selection"
