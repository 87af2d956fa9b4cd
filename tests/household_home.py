"""A small home written by hand, with the oddities of real games, for the tests of the household suite."""

from __future__ import annotations

import re

# Two drawers stand at one place; the mug lies in two receptacles at once; a spoon lies in the mug.
FACTS = """
(atLocation agent1 loc_bar_0)
(receptacleType Drawer_bar_a DrawerType) (receptacleAtLocation Drawer_bar_a loc_bar_1) (openable Drawer_bar_a)
(receptacleType Drawer_bar_b DrawerType) (receptacleAtLocation Drawer_bar_b loc_bar_1)
(receptacleType Fridge_bar_a FridgeType) (receptacleAtLocation Fridge_bar_a loc_bar_2) (openable Fridge_bar_a)
(receptacleType Microwave_bar_a MicrowaveType) (receptacleAtLocation Microwave_bar_a loc_bar_3) (openable Microwave_bar_a)
(receptacleType Sink_bar_a_bar_SinkBasin SinkBasinType) (receptacleAtLocation Sink_bar_a_bar_SinkBasin loc_bar_4)
(receptacleType Desk_bar_a DeskType) (receptacleAtLocation Desk_bar_a loc_bar_5)
(receptacleType Shelf_bar_a ShelfType) (receptacleAtLocation Shelf_bar_a loc_bar_6)
(objectType Apple_bar_a AppleType) (pickupable Apple_bar_a) (sliceable Apple_bar_a)
(cleanable Apple_bar_a) (heatable Apple_bar_a) (coolable Apple_bar_a)
(inReceptacle Apple_bar_a Drawer_bar_b) (objectAtLocation Apple_bar_a loc_bar_1)
(objectType Apple_bar_b AppleType) (pickupable Apple_bar_b) (sliceable Apple_bar_b)
(cleanable Apple_bar_b) (heatable Apple_bar_b) (coolable Apple_bar_b)
(inReceptacle Apple_bar_b Fridge_bar_a) (objectAtLocation Apple_bar_b loc_bar_2) (isCool Apple_bar_b)
(objectType Mug_bar_a MugType) (pickupable Mug_bar_a) (isReceptacleObject Mug_bar_a)
(inReceptacle Mug_bar_a Desk_bar_a) (inReceptacle Mug_bar_a Shelf_bar_a) (objectAtLocation Mug_bar_a loc_bar_6)
(objectType Spoon_bar_a SpoonType) (inReceptacleObject Spoon_bar_a Mug_bar_a) (inReceptacleObject Mug_bar_a Mug_bar_a)
(objectType Knife_bar_a KnifeType) (pickupable Knife_bar_a)
(inReceptacle Knife_bar_a Desk_bar_a) (objectAtLocation Knife_bar_a loc_bar_5)
(objectType DeskLamp_bar_a DeskLampType) (toggleable DeskLamp_bar_a)
(inReceptacle DeskLamp_bar_a Desk_bar_a) (objectAtLocation DeskLamp_bar_a loc_bar_5)
(canContain DrawerType AppleType) (canContain FridgeType AppleType) (canContain DeskType AppleType)
(canContain DrawerType KnifeType) (canContain DeskType KnifeType) (canContain DeskType MugType)
"""
_FIRST = {"objectType": "object", "receptacleType": "receptacle", "canContain": "rtype"}
_SECOND = {"objectType": "otype", "receptacleType": "rtype", "receptacleAtLocation": "location", "canContain": "otype"}
GOALS = {
    "simple": "(exists (?r - receptacle) (exists (?o - object) (and (inReceptacle ?o ?r) (objectType ?o AppleType)"
    " (receptacleType ?r DeskType))))",
    "two": "(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 AppleType) (receptacleType ?r DeskType)"
    " (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 AppleType)"
    " (receptacleType ?r DeskType) (inReceptacle ?o2 ?r))))))",
    "light": "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType)"
    " (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
    " (exists (?o - object ?a - agent) (and (objectType ?o AppleType) (holds ?a ?o)))",
} | {
    name: f"(exists (?r - receptacle) (exists (?o - object) (and ({ability} ?o) (objectType ?o AppleType)"
    f" (receptacleType ?r DeskType) ({state} ?o) (inReceptacle ?o ?r))))"
    for name, ability, state in (
        ("clean", "cleanable", "isClean"),
        ("heat", "heatable", "isHot"),
        ("cool", "coolable", "isCool"),
    )
}


def problem(goal: str = "two", facts: str = FACTS) -> str:
    """The PDDL problem with one of `GOALS`, or with a goal of your own."""
    typed = {"agent1": "agent", "loc_bar_0": "location", "SinkBasinType": "rtype", "ButterKnifeType": "otype"}
    for predicate, first, second in re.findall(r"\((\w+) (\w+) (\w+)\)", facts):
        if predicate in _SECOND:
            typed[second] = _SECOND[predicate]
        if predicate in _FIRST:
            typed[first] = _FIRST[predicate]
    objects = "\n".join(f"{name} - {kind}" for name, kind in typed.items())
    return (
        f"(define (problem p)\n(:domain alfred)\n(:objects\n{objects}\n)\n(:init {facts})\n"
        f"(:goal (and {GOALS.get(goal, goal)}))\n)"
    )
