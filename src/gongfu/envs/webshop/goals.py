"""What a customer wants: the instruction, and the attributes, options and price limit that the reward counts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gongfu.core.errors import TaskError
from gongfu.core.records import Task
from gongfu.core.seeds import rng_for
from gongfu.envs.webshop.catalogue import Catalogue, Product

__all__ = ["NO_CAP", "Goal", "goal_of", "human_goals", "payload_of", "price_cap", "shuffled", "synthetic_goals"]

NO_CAP = 1_000_000.0
"""Price limit of a goal that states none, dollars."""

_CAPS = tuple(10.0 * n for n in range(1, 100))
_SHUFFLE = 233
"""Seed that orders the official goals, so that their numbers mean the same goals everywhere."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One wish. `product` is the one it was written for; others may satisfy it too."""

    product: Product
    instruction: str
    """What the customer says, with the price limit."""
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Values of options, in any order."""
    price_cap: float


def price_cap(price: float, rng: random.Random) -> float:
    """The larger of two draws from the next four multiples of 10 above the price; `NO_CAP` with fewer than two below 1000."""
    above = [cap for cap in _CAPS if cap > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_CAP


def with_cap(instruction: str, cap: float) -> str:
    """The instruction with its price limit said.

    >>> with_cap("i need a hoodie", 40.0)
    'i need a hoodie, and price lower than 40.00 dollars'
    """
    return instruction if cap == NO_CAP else f"{instruction}, and price lower than {cap:.2f} dollars"


def human_goals(catalogue: Catalogue, instructions: Mapping[str, Any], *, where: str) -> list[Goal]:
    """A goal for every written instruction of the products (`items_human_ins.json`), those without attributes left out.

    Raises TaskError naming the product (from `where`) whose record does not fit.
    """
    goals = []
    for product in catalogue.products:
        for number, said in enumerate(_of(instructions, product.asin, list, where)):
            try:
                attributes, options = said["instruction_attributes"], said["instruction_options"]
                text = said["instruction"].strip(".")
            except (KeyError, TypeError, AttributeError) as e:
                raise TaskError(f"{where}, product {product.asin}, instruction {number + 1} lacks or misstates {e}") from e
            if attributes:
                values = options.values() if isinstance(options, Mapping) else options
                goals.append(_goal(catalogue, product, text, attributes, values, number))
    return goals


def synthetic_goals(catalogue: Catalogue, attributes: Mapping[str, Any], *, where: str) -> list[Goal]:
    """A goal for every combination of options of each product that has a template instruction (`items_ins_v2*.json`).

    Raises TaskError naming the product (from `where`) whose record does not fit.
    """
    goals = []
    for product in catalogue.products:
        record = _of(attributes, product.asin, dict, where)
        text, wanted = record.get("instruction"), record.get("instruction_attributes")
        if not text:
            continue
        if not wanted:
            raise TaskError(f"{where}, product {product.asin} has an instruction without instruction_attributes")
        names = sorted(product.options)
        for number, values in enumerate(itertools.product(*(product.options[name] for name in names))):
            said = ", and ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
            goals.append(_goal(catalogue, product, f"{text} with {said}" if said else text, wanted, values, number))
    return goals


def shuffled(goals: Sequence[Goal]) -> list[Goal]:
    """The goals in the order by which official splits are counted."""
    goals = list(goals)
    random.Random(_SHUFFLE).shuffle(goals)
    return goals


def payload_of(goal: Goal) -> dict[str, Any]:
    """What a task keeps of its goal, JSON values only."""
    wanted = {"attributes": [*goal.attributes], "options": [*goal.options]}
    return {"asin": goal.product.asin, **wanted, "price_cap": goal.price_cap}


def goal_of(task: Task, catalogue: Catalogue) -> Goal:
    """The goal of a task. Raises TaskError if it is none of this catalogue."""
    payload = task.payload
    try:
        product = catalogue.by_asin.get(payload["asin"])
        attributes, options, cap = tuple(payload["attributes"]), tuple(payload["options"]), float(payload["price_cap"])
    except (KeyError, TypeError, ValueError) as e:
        raise TaskError(f"task {task.id} does not describe a WebShop goal: its payload lacks or misstates {e}") from e
    if product is None:
        raise TaskError(f"task {task.id}: product {payload['asin']!r} is not in this catalogue of {len(catalogue.products)}")
    return Goal(product, task.goal, attributes, options, cap)


def _of(records: Mapping[str, Any], asin: str, kind: type, where: str) -> Any:
    record = records.get(asin, kind())
    if not isinstance(record, kind):
        raise TaskError(f"{where}, product {asin} holds a {type(record).__name__}, expected a {kind.__name__}")
    return record


def _goal(catalogue: Catalogue, product: Product, text: str, attributes: Any, options: Any, number: int) -> Goal:
    rng = rng_for(catalogue.seed, purpose="webshop price cap", task=product.asin, rollout=number)
    cap = price_cap(catalogue.prices[product.asin], rng)
    return Goal(product, with_cap(text, cap), tuple(attributes), tuple(options), cap)
