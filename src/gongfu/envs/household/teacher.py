"""A scripted teacher: what somebody who saw a home might write down about it, well or badly.

For cold starts (an agent must have met good and bad advice before it can learn which to trust) and for experiments where the
quality of a skill must be known.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from gongfu.core.errors import TaskError
from gongfu.envs.household.homes import Family, habit_sentence, places_for
from gongfu.envs.protocol import Advice

QUALITIES = ("good", "wrong", "vague", "instance", "irrelevant")
"""good: where the family keeps the object. wrong: a place where it could be but usually is not. vague: no help, no harm.
instance: a place of one home by its number. irrelevant: true, about another object."""

_TAKE = re.compile(r"take (\w+) \d+ from (\w+) \d+")
_VAGUE = (
    "Look at one place after the other and do not give up.",
    "Think about where things are usually kept.",
    "Search the home before you act.",
)


def advise(family: Family, target: str, quality: str, rng: random.Random, *, seen: Sequence[str] = ()) -> Advice:
    """Advice of a quality about where the family's homes keep `target` (a type of object).

    `seen`: the actions of a successful episode; the teacher then knows only where the target was found there.
    Raises TaskError for an unknown quality, and for a target that the family's homes do not have.
    """
    if target not in family.habits:
        raise TaskError(f"a {family.name} has no {target}; it has {', '.join(sorted(family.habits))}")
    usual = found(seen, target) or family.habits[target]
    match quality:
        case "good":
            return _habit(family, target, usual, quality)
        case "wrong":
            others = [place for place in places_for(target, family.furniture) if place != usual]
            return _habit(family, target, rng.choice(others), quality) if others else advise(family, target, "vague", rng)
        case "vague":
            return Advice(rng.choice(_VAGUE), quality)
        case "instance":
            return Advice(f"The {target} 1 is at {usual} {rng.randint(1, 2)}.", quality, {target: usual})
        case "irrelevant":
            other = rng.choice(sorted(kind for kind in family.habits if kind != target))
            return _habit(family, other, family.habits[other], quality)
    raise TaskError(f"advice of quality {quality!r} is unknown; use one of {', '.join(QUALITIES)}")


def lessons(family: Family, target: str) -> list[str]:
    """All habits of the family's homes that could be true of `target`: one sentence for every place where it fits."""
    return [habit_sentence(family, target, place) for place in places_for(target, family.furniture)]


def found(actions: Sequence[str], target: str) -> str:
    """Type of receptacle that the target was first taken from; "" if it never was."""
    for action in actions:
        if (match := _TAKE.fullmatch(action)) and match[1] == target:
            return match[2]
    return ""


def _habit(family: Family, target: str, place: str, quality: str) -> Advice:
    belief: Mapping[str, str] = {target: place}
    return Advice(habit_sentence(family, target, place), quality, belief)
