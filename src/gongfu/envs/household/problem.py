"""ALFWorld's PDDL problems, read once into an immutable layout.

A problem lists objects, facts that hold at the start, and a goal of one of six shapes (ALFRED's task kinds). Names follow
ALFWorld's demangling: the lower-case type before the first `_bar_` and a number, handed out downwards in the order of
the ids, so the first id of five drawers is "drawer 5".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gongfu.core.errors import TaskError

__all__ = ["FACT_NAMES", "KINDS", "SHORT_KINDS", "Goal", "Layout", "parse_problem"]

KINDS: tuple[str, ...] = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SHORT_KINDS: dict[str, str] = dict(zip(KINDS, ("simple", "light", "clean", "heat", "cool", "two"), strict=True))

_ATOM = re.compile(r"\((\w+)((?:\s+[?\w]+)*)\s*\)")
_GOAL_STATES = {"isclean": (KINDS[2], "cleanable"), "ishot": (KINDS[3], "heatable"), "iscool": (KINDS[4], "coolable")}
_GOAL_WORDS = {
    *("objecttype", "receptacletype", "inreceptacle", "istoggled", "toggleable", "receptacleatlocation", "atlocation", "holds"),
    *("isclean", "ishot", "iscool", "cleanable", "heatable", "coolable"),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """What must hold in the end. Types are lower case without the suffix "type"."""

    kind: str
    object_type: str
    receptacle_type: str = ""
    """Where `count` objects must lie, in one receptacle; empty for look_at_obj_in_light."""
    lamp_type: str = ""
    """What must be switched on where the agent stands, holding the object; empty for the other kinds."""
    state: str = ""
    """"isclean", "ishot" or "iscool", when the kind asks for it."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about one problem that an episode reads and never changes. Ids are lower case."""

    goal: Goal
    names: Mapping[str, str]
    types: Mapping[str, str]
    """Type of each object and receptacle, lower case without the suffix "type"."""
    receptacles: tuple[str, ...]
    """Sorted by id, the order in which the intro lists them."""
    location_of: Mapping[str, str]
    receptacles_at: Mapping[str, tuple[str, ...]]
    can_contain: frozenset[tuple[str, str]]
    """(receptacle type, object type)"""
    abilities: Mapping[str, frozenset[str]]
    """pickupable, cleanable, heatable, coolable, toggleable, sliceable, isreceptacleobject -> objects; openable ->
    receptacles"""
    goal_receptacles: tuple[str, ...]
    goal_objects: frozenset[str]
    nested: Mapping[str, tuple[str, ...]]
    """What lies in an object that can hold others (a spoon in a cup); no action changes it."""
    contents: Mapping[str, tuple[str, ...]]
    """Objects in each receptacle at the start, sorted by id. An object may lie in two receptacles at once (a mug on a shelf
    of a desk)."""
    object_locations: frozenset[tuple[str, str]]
    """(object, location) at the start; need not be the location of the object's receptacle."""
    states: Mapping[str, frozenset[str]]
    """opened, isclean, ishot, iscool, issliced, istoggled -> who has it at the start"""
    start: str
    go_to: Mapping[str, str]
    """Command -> receptacle."""
    go_to_from: Mapping[str, tuple[str, ...]]
    """Location -> the sorted `go to` commands that leave it."""


FACT_NAMES: dict[str, str] = {
    "opened": "opened",
    "isclean": "isClean",
    "ishot": "isHot",
    "iscool": "isCool",
    "issliced": "isSliced",
    "istoggled": "isToggled",
}
"""States that actions change, and how facts spell them."""
_ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isreceptacleobject", "openable")


@lru_cache(maxsize=256)
def parse_problem(problem: str) -> Layout:
    """Read a PDDL problem of the `alfred` domain.

    Raises TaskError when a section is missing or the goal is not one of the six kinds.
    """
    text = problem.lower()
    init, goal_at = text.find("(:init"), text.find("(:goal")
    if not 0 <= init < goal_at:
        raise TaskError("a household problem needs (:objects ...), (:init ...) and (:goal ...), in this order")
    facts: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
    ids: set[str] = set()
    for predicate, arguments in _ATOM.findall(text[init:goal_at]):
        names = tuple(arguments.split())
        facts[predicate].append(names)
        ids.update(names)
    goal = _parse_goal(text[goal_at:])
    return _layout(goal, facts, _demangle(ids))


def _parse_goal(text: str) -> Goal:
    atoms = [(name, arguments.split()) for name, arguments in _ATOM.findall(text)]
    words = {name for name, _ in atoms}
    if not words <= _GOAL_WORDS:
        raise TaskError(f"the goal uses {sorted(words - _GOAL_WORDS)}: not one of the six ALFRED task kinds")
    objects = {arguments[0]: arguments[1].removesuffix("type") for name, arguments in atoms if name == "objecttype"}
    receptacles = {arguments[1].removesuffix("type") for name, arguments in atoms if name == "receptacletype"}
    lamps = {arguments[0] for name, arguments in atoms if name == "istoggled"}
    if lamps:
        held = objects.keys() - lamps
        if receptacles or len(held) != 1 or len(objects) != 2:
            raise TaskError("a goal with a lamp needs one type of lamp and one type of object, and no receptacle")
        return Goal(KINDS[1], object_type=objects[held.pop()], lamp_type=objects[lamps.pop()])
    object_types = set(objects.values())
    if len(object_types) != 1 or len(receptacles) != 1 or len(objects) > 2:
        raise TaskError(
            f"the goal needs one type of object and of receptacle, not {sorted(object_types)}, {sorted(receptacles)}"
        )
    states = [state for state in _GOAL_STATES if state in words]
    kind = KINDS[0] if len(objects) == 1 else KINDS[5]
    if states:
        kind = _GOAL_STATES[states[0]][0]
    return Goal(kind, object_types.pop(), receptacles.pop(), state=states[0] if states else "", count=len(objects))


def _demangle(ids: Iterable[str]) -> dict[str, str]:
    """ALFWorld's names: ids in order take the highest free number of their base name."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    names = {}
    for entity in sorted(ids):
        base, bar, _ = entity.partition("_bar_")
        if bar:
            groups[base + "basin" if "basin" in entity else base].append(entity)
        else:
            names[entity] = f"{entity} "  # the official engine leaves the space of the missing number
    for base, members in groups.items():
        for i, entity in enumerate(members):
            names[entity] = f"{base} {len(members) - i}"
    return names


def _group(pairs: Iterable[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """(member, owner) pairs as owner -> sorted members."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for member, owner in pairs:
        groups[owner].append(member)
    return {owner: tuple(sorted(members)) for owner, members in groups.items()}


def _layout(goal: Goal, facts: Mapping[str, list[tuple[str, ...]]], names: dict[str, str]) -> Layout:
    def of_one(predicate: str) -> frozenset[str]:
        return frozenset(arguments[0] for arguments in facts.get(predicate, ()))

    def of_two(predicate: str) -> list[tuple[str, str]]:
        return [(a, b) for a, b in facts.get(predicate, ())]

    types = {entity: kind.removesuffix("type") for entity, kind in of_two("objecttype") + of_two("receptacletype")}
    location_of = dict(sorted(of_two("receptacleatlocation")))
    if not location_of or "atlocation" not in facts:
        raise TaskError("a household problem needs receptacleAtLocation facts and the agent's atLocation")
    abilities = {ability: of_one(ability) for ability in _ABILITIES}
    receptacles = tuple(location_of)
    able = abilities[_GOAL_STATES[goal.state][1]] if goal.state else None
    go_to = {f"go to {names[r]}": r for r in receptacles}
    start = facts["atlocation"][0][1]
    return Layout(
        goal=goal,
        names=names,
        types=types,
        receptacles=receptacles,
        location_of=location_of,
        receptacles_at=_group(location_of.items()),
        can_contain=frozenset((a.removesuffix("type"), b.removesuffix("type")) for a, b in of_two("cancontain")),
        abilities=abilities,
        goal_receptacles=tuple(r for r in receptacles if types.get(r) == goal.receptacle_type),
        goal_objects=frozenset(o for o, t in types.items() if t == goal.object_type and (able is None or o in able)),
        nested=_group((inner, outer) for inner, outer in of_two("inreceptacleobject") if inner != outer),
        contents=_group(set(of_two("inreceptacle"))),
        object_locations=frozenset(of_two("objectatlocation")),
        states={state: of_one(state) for state in FACT_NAMES},
        start=start,
        go_to=go_to,
        go_to_from={
            here: tuple(sorted(command for command, r in go_to.items() if location_of[r] != here))
            for here in {start, *location_of.values()}
        },
    )
