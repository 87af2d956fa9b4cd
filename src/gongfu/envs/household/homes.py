"""Seeded homes and tasks in ALFWorld's own language: PDDL problems that both engines accept.

Homes come in families. A family is a room with its own furniture (which types of receptacles stand there, so the list in
the intro gives it away) and its own habits: for each type of object, the type of receptacle where it is usually kept. With
probability `habit_strength` an object lies in its habitual place, else anywhere it fits. Habits differ from family to
family, so an agent must learn them; each fits in one sentence (`habit_sentence`), so it can write them down.

What rooms hold and what fits where is in `catalogue`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gongfu.core.errors import TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.household.catalogue import (
    ALWAYS_ONE,
    ANY_NUMBER,
    FURNITURE,
    INSIDE,
    KIND_RULES,
    LAMP,
    LAMP_PLACES,
    LAMP_ROOMS,
    OBJECTS,
    OPENABLE,
    ROOMS,
)
from gongfu.envs.household.problem import KINDS

__all__ = ["Family", "Home", "HomeSpec", "habit_sentence", "make_family", "make_home", "rooms_for"]

_STATE_CONDITION = {
    KINDS[2]: "(cleanable ?o) (isClean ?o)",
    KINDS[3]: "(heatable ?o) (isHot ?o)",
    KINDS[4]: "(coolable ?o) (isCool ?o)",
}


@dataclass(frozen=True, slots=True)
class Family:
    """Homes with the same furniture types and the same habits."""

    room: str
    number: int
    furniture: tuple[str, ...]
    """Types of receptacles in every home of the family, sorted; no other family of the room has the same."""
    habits: Mapping[str, str]
    """Type of object -> type of receptacle where it is usually kept. Lists every type found in the family's homes."""

    @property
    def name(self) -> str:
        return f"{self.room} {self.number}"

    @property
    def landmarks(self) -> tuple[str, ...]:
        """The furniture that not every home of this room has."""
        common = FURNITURE[self.room][0].split()
        return tuple(kind for kind in self.furniture if kind not in common)


@dataclass(frozen=True, slots=True)
class HomeSpec:
    """All that decides a home and its task, beside the seed. Small enough to travel in `Task.payload`."""

    kind: str
    room: str
    family: int
    home: int
    split: str
    habit_strength: float
    receptacles: tuple[int, int]
    """Fewest and most receptacles in a home."""
    distractors: tuple[int, int]
    """Fewest and most objects that the task is not about."""


@dataclass(frozen=True, slots=True)
class Home:
    """One generated home with its task."""

    problem: str
    """PDDL of ALFWorld's `alfred` domain."""
    goal: str
    """The goal sentence, e.g. "heat some egg and put it in countertop"."""
    target: str
    """Type of the object that the task is about."""
    goal_place: str
    """Type of the receptacle where it must go; empty for look_at_obj_in_light."""
    places: Mapping[str, str]
    """Object id -> receptacle id at the start."""


def rooms_for(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Rooms where at least one of these kinds of task exists."""
    return tuple(room for room in ROOMS if any(room in KIND_RULES[kind][0] for kind in kinds))


def kinds_for(room: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Those of these kinds that exist in a room."""
    return tuple(kind for kind in kinds if room in KIND_RULES[kind][0])


def places_for(object_type: str, furniture: tuple[str, ...]) -> list[str]:
    """Types of furniture, among these, in or on which an object can lie."""
    fits = LAMP_PLACES if object_type == LAMP else OBJECTS[object_type][0].split()
    return [kind for kind in furniture if kind in fits]


@lru_cache(maxsize=4096)
def make_family(seed: int, room: str, number: int, smallest_home: int = 8) -> Family:
    """The family of this number: furniture and habits drawn from the seed, unlike those of the numbers before it.

    `smallest_home` bounds the number of furniture types. Raises TaskError if it leaves no room for choice, or if so many
    families are asked for that they cannot all differ.
    """
    common, optional = (kinds.split() for kinds in FURNITURE[room])
    choices = min(smallest_home - len(common), len(optional) - 2)
    if choices < 2:
        raise TaskError(
            f"a {room} has {', '.join(common)} and needs at least {len(common) + 2} receptacles, not {smallest_home}"
        )
    earlier = [set(make_family(seed, room, i, smallest_home).furniture) for i in range(number)]
    rng = rng_for(seed, purpose="household family", task=f"{room}/{number}")
    for min_difference in (2, 1):
        for _ in range(200):
            extra = rng.sample(optional, rng.randint(2, choices))
            furniture = {*common, *extra}
            if furniture.isdisjoint(ANY_NUMBER):
                continue
            if all(len(furniture ^ other) >= min_difference for other in earlier):
                return _with_habits(room, number, tuple(sorted(furniture)), rng)
    raise TaskError(f"no furniture left for {room} family {number}: ask for fewer families or larger homes")


def _with_habits(room: str, number: int, furniture: tuple[str, ...], rng: random.Random) -> Family:
    found_here = [kind for kind, (_, _, rooms) in OBJECTS.items() if room in rooms.split()]
    found_here += [LAMP] if room in LAMP_ROOMS else []
    places = {kind: places_for(kind, furniture) for kind in found_here}
    return Family(room, number, furniture, {kind: rng.choice(fits) for kind, fits in places.items() if fits})


def habit_sentence(family: Family, object_type: str, place: str = "") -> str:
    """One habit in words, e.g. "In a kitchen with a shelf and a toaster, the apple is usually in the fridge."

    `place`: claim this type of receptacle instead of the true one. Raises TaskError for a type of object that the family's
    homes do not have.
    """
    if object_type not in family.habits:
        raise TaskError(f"a {family.name} has no {object_type}; it has {', '.join(sorted(family.habits))}")
    marks = [f"a {kind}" for kind in family.landmarks]
    listed = marks[0] if len(marks) == 1 else ", ".join(marks[:-1]) + " and " + marks[-1]
    where = _in_or_on(family, place or family.habits[object_type])
    return f"In a {family.room} with {listed}, the {object_type} is usually {where}."


def _in_or_on(family: Family, place: str) -> str:
    article = "a" if place in ANY_NUMBER or _most(place, family.room) > 1 else "the"
    return f"{'in' if place in INSIDE else 'on'} {article} {place}"


@lru_cache(maxsize=1024)
def make_home(seed: int, spec: HomeSpec) -> Home:
    """The home and the task that seed and spec stand for. The task is solvable and never solved at the start."""
    family = make_family(seed, spec.room, spec.family, spec.receptacles[0])
    rng = rng_for(seed, purpose="household home", task=f"{spec.split}/{spec.kind}/{family.name}", rollout=spec.home)
    receptacles = _furnish(family, spec, rng)
    target, goal_place = _choose_task(family, spec.kind, rng)
    counts = _choose_objects(family, spec, target, rng)
    places = {}
    for object_type, count in counts.items():
        banned = goal_place if object_type == target else ""
        for i in range(1, count + 1):
            places[f"{object_type}_bar_{i:02d}"] = _place(object_type, family, spec.habit_strength, receptacles, banned, rng)
    words = KIND_RULES[spec.kind][3]
    goal = rng.choice(words).format(o=target, r=goal_place)
    problem = _write_problem(family, receptacles, places, _write_goal(spec.kind, target, goal_place))
    return Home(problem, goal, target, goal_place, places)


def _furnish(family: Family, spec: HomeSpec, rng: random.Random) -> dict[str, str]:
    """Receptacle id -> type."""
    low, high = spec.receptacles
    counts = dict.fromkeys(family.furniture, 1)
    for _ in range(rng.randint(low, high) - len(counts)):
        more = [kind for kind, count in counts.items() if kind in ANY_NUMBER or count < _most(kind, family.room)]
        counts[rng.choice(more)] += 1
    return {_receptacle_id(kind, i): kind for kind, count in counts.items() for i in range(1, count + 1)}


def _most(kind: str, room: str) -> int:
    return 1 if kind in ALWAYS_ONE or (kind, room) == ("sinkbasin", "kitchen") else 2


def _receptacle_id(kind: str, i: int) -> str:
    # the demangler names a basin by what stands before the first _bar_ plus "basin"
    return f"{kind.removesuffix('basin')}_bar_{i:02d}" + (f"_bar_{kind}" if kind.endswith("basin") else "")


def _choose_task(family: Family, kind: str, rng: random.Random) -> tuple[str, str]:
    """Target type and goal receptacle type: one where the target is not usually kept anyway."""
    _, ability, odd, _ = KIND_RULES[kind]
    options = []
    for object_type, habit in family.habits.items():
        if object_type == LAMP or (ability and ability not in OBJECTS[object_type][1].split()):
            continue
        places = [place for place in places_for(object_type, family.furniture) if place not in (habit, odd)]
        if kind == KINDS[1]:
            options.append((object_type, [""]))
        elif places:
            options.append((object_type, places))
    target, places = rng.choice(options)
    return target, rng.choice(places)


def _choose_objects(family: Family, spec: HomeSpec, target: str, rng: random.Random) -> dict[str, int]:
    """Type of object -> how many the home has."""
    counts = {target: (2 if spec.kind == KINDS[5] else 1) + (rng.random() < 0.25)}
    others = [kind for kind in family.habits if kind not in (target, LAMP)]
    for kind in rng.choices(others, k=rng.randint(*spec.distractors)):
        counts[kind] = counts.get(kind, 0) + 1
    return counts | ({LAMP: 1} if LAMP in family.habits else {})


def _place(
    object_type: str, family: Family, habit_strength: float, receptacles: Mapping[str, str], banned: str, rng: random.Random
) -> str:
    fits = [kind for kind in places_for(object_type, family.furniture) if kind != banned]
    if rng.random() < habit_strength:
        fits = [family.habits[object_type]]
    return rng.choice([r for r, kind in receptacles.items() if kind in fits])


def _write_goal(kind: str, target: str, place: str) -> str:
    """The goal of `alfworld.gen.goal_library` for the kind."""
    if kind == KINDS[1]:
        return (
            "(exists (?t - object ?r - receptacle ?a - agent ?l - location) (and"
            f" (objectType ?t {LAMP}Type) (toggleable ?t) (isToggled ?t)"
            " (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?t ?r)))"
            f" (exists (?o - object ?a - agent) (and (objectType ?o {target}Type) (holds ?a ?o)))"
        )

    def lies(variable: str) -> str:
        return f"(objectType {variable} {target}Type) (receptacleType ?r {place}Type) (inReceptacle {variable} ?r)"

    if kind == KINDS[5]:
        second = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {lies('?o2')}))"
        return f"(exists (?r - receptacle) (exists (?o1 - object) (and {lies('?o1')} {second})))"
    condition = f"{_STATE_CONDITION.get(kind, '')} {lies('?o')}".strip()
    return f"(exists (?r - receptacle) (exists (?o - object) (and {condition})))"


def _write_problem(family: Family, receptacles: Mapping[str, str], places: Mapping[str, str], goal: str) -> str:
    locations = {r: f"loc_bar_{i}" for i, r in enumerate(receptacles, 1)}
    # the domain names the last four types in its actions, so they must exist in every problem
    receptacle_types = sorted({*family.furniture, "fridge", "microwave", "sinkbasin"})
    object_types = sorted({*family.habits, "knife", "butterknife"})
    objects = ["agent1 - agent", "loc_bar_0 - location", *(f"{location} - location" for location in locations.values())]
    objects += [f"{kind}Type - otype" for kind in object_types] + [f"{kind}Type - rtype" for kind in receptacle_types]
    objects += [f"{o} - object" for o in places] + [f"{r} - receptacle" for r in receptacles]
    facts = ["(atLocation agent1 loc_bar_0)"]
    for r, kind in receptacles.items():
        facts += [f"(receptacleType {r} {kind}Type)", f"(receptacleAtLocation {r} {locations[r]})"]
        facts += [f"(openable {r})"] if kind in OPENABLE else []
    for o, r in places.items():
        kind = o.partition("_bar_")[0]
        facts += [f"(objectType {o} {kind}Type)", f"(inReceptacle {o} {r})", f"(objectAtLocation {o} {locations[r]})"]
        facts += [f"({ability} {o})" for ability in _abilities(kind)]
    facts += [
        f"(canContain {place}Type {kind}Type)"
        for kind in family.habits
        if kind != LAMP
        for place in places_for(kind, family.furniture)
    ]
    lines = "\n  "
    return (
        f"(define (problem home)\n(:domain alfred)\n(:objects\n  {lines.join(objects)}\n)\n"
        f"(:init\n  {lines.join(facts)}\n)\n(:goal (and {goal}))\n)\n"
    )


def _abilities(object_type: str) -> list[str]:
    if object_type == LAMP:
        return ["toggleable"]
    named = OBJECTS[object_type][1].split()
    return ["pickupable", *("isReceptacleObject" if ability == "receptacle" else ability for ability in named)]
