"""What a customer wants: the instruction, and the attributes, options and price limit that the reward counts."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gongfu.core.errors import TaskError
from gongfu.core.records import Task
from gongfu.core.seeds import rng_for
from gongfu.envs.fields import field, texts, wanted
from gongfu.envs.webshop.catalogue import Catalogue, Product

__all__ = ["NO_CAP", "Goal", "goal_of", "human_goals", "payload_of", "price_cap", "shuffled", "synthetic_goals"]

NO_CAP = 1_000_000.0
"""Price limit of a goal that states none, dollars."""

T = TypeVar("T", list, dict)

_ELSEWHERE = "of products that items does not hold"
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


def human_goals(
    catalogue: Catalogue, instructions: Mapping[str, Any], *, where: str, left_out: Counter[str] | None = None
) -> list[Goal]:
    """A goal for every written instruction of the products (`items_human_ins.json`).

    Those without attributes are left out, as in the original, and counted in `left_out` beside those of other products. Raises
    TaskError naming the product (from `where`) whose record does not fit.
    """
    goals = []
    left_out = Counter() if left_out is None else left_out
    for product in catalogue.products:
        for number, said in enumerate(_of(instructions, product.asin, list, where)):
            try:
                text, attributes, options = _said(said)
            except ValueError as e:
                raise TaskError(f"{where}, product {product.asin}, instruction {number + 1}: {e}") from e
            if attributes:
                goals.append(_goal(catalogue, product, text.strip("."), attributes, options, number))
            else:
                left_out["without attributes"] += 1
    if others := sum(len(_of(instructions, asin, list, where)) for asin in instructions.keys() - catalogue.by_asin.keys()):
        left_out[_ELSEWHERE] = others
    return goals


def _said(record: Any) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Text, attributes and option values of a human instruction; its options are a list or, by their names, an object."""
    record = wanted(record, dict, "it")
    options = record.get("instruction_options")
    options = [*options.values()] if isinstance(options, dict) else field(record, "instruction_options", list)
    attributes = texts(field(record, "instruction_attributes", list), "its attributes")
    return field(record, "instruction", str), attributes, texts(options, "its options")


def synthetic_goals(
    catalogue: Catalogue, attributes: Mapping[str, Any], *, where: str, left_out: Counter[str] | None = None
) -> list[Goal]:
    """A goal for every combination of options of each product that has a template instruction (`items_ins_v2*.json`).

    The instructions of other products are counted in `left_out`. Raises TaskError naming the product (from `where`) whose
    record does not fit.
    """
    goals = []
    left_out = Counter() if left_out is None else left_out
    for product in catalogue.products:
        record = _of(attributes, product.asin, dict, where)
        if not record.get("instruction"):
            continue
        try:
            text = field(record, "instruction", str)
            asked = texts(record.get("instruction_attributes") or [], 'its "instruction_attributes"')
        except ValueError as e:
            raise TaskError(f"{where}, product {product.asin}: {e}") from e
        if not asked:
            raise TaskError(f"{where}, product {product.asin} has an instruction without instruction_attributes")
        names = sorted(product.options)
        for number, values in enumerate(itertools.product(*(product.options[name] for name in names))):
            said = ", and ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
            goals.append(_goal(catalogue, product, f"{text} with {said}" if said else text, asked, values, number))
    others = attributes.keys() - catalogue.by_asin.keys()
    if count := sum(bool(_of(attributes, asin, dict, where).get("instruction")) for asin in others):
        left_out[_ELSEWHERE] = count
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


def _of(records: Mapping[str, Any], asin: str, kind: type[T], where: str) -> T:
    try:
        return wanted(records.get(asin, kind()), kind, f"the record of product {asin}")
    except ValueError as e:
        raise TaskError(f"{where}: {e}") from e


def _goal(
    catalogue: Catalogue, product: Product, text: str, attributes: tuple[str, ...], options: tuple[str, ...], number: int
) -> Goal:
    rng = rng_for(catalogue.seed, purpose="webshop price cap", task=product.asin, rollout=number)
    cap = price_cap(catalogue.prices[product.asin], rng)
    return Goal(product, with_cap(text, cap), attributes, options, cap)
