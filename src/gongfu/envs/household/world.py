"""The household text game of ALFWorld, as a small Python engine: one episode, step for step what the official engine says.

The sentences are those of ALFWorld's grammar (Shridhar et al., "ALFWorld: Aligning Text and Embodied Environments for
Interactive Learning", ICLR 2021; MIT licence, Copyright (c) Microsoft Corporation), the rules those of its PDDL domain.
`benchmarks/household_parity.py` plays both engines side by side.

Ways of the official engine that are kept on purpose: only the intro lists the receptacles (a `look` from the middle of the
room sees nothing); an object may lie in two receptacles at once, and taking it from one leaves it in the other; a `look` at a
receptacle names objects that were taken from it and put down at the same location; doors matter for taking and putting,
not for cleaning, heating and cooling; `use` always switches on.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from typing import Any

from gongfu.core.errors import EnvError
from gongfu.envs.household.problem import FACT_NAMES, Layout
from gongfu.envs.protocol import Observation, Step

__all__ = ["HELP", "NOTHING_HAPPENS", "HouseholdEnv"]

NOTHING_HAPPENS = "Nothing happens."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object"""

_TREATMENTS = (("clean", "sinkbasin", "cleanable"), ("heat", "microwave", "heatable"), ("cool", "fridge", "coolable"))
_SHARP = ("knife", "butterknife")


def _join(names: Sequence[str]) -> str:
    """'drawer 1', 'drawer 2, and drawer 1', 'a, b, and c': the grammar puts a comma before every "and"."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + ", and " + names[-1]


class HouseholdEnv:
    """One episode in one home. Implements `gongfu.envs.protocol.Env`.

    `goal` is the sentence of the intro. `facts=True` adds to each observation the predicates that truly hold (the whole
    state, also what the agent has not seen): atLocation(agent, fridge 1), holds(agent, apple 1),
    inReceptacle(apple 1, fridge 1), opened, isClean, isHot, isCool, isSliced, isToggled; sorted.

    Reward 1.0 and outcome "success" on the step that reaches the goal; truncated after `max_steps` steps. Raises EnvError
    on a second reset and on a step before the reset, after the end or after `close`.
    """

    def __init__(self, layout: Layout, goal: str, *, max_steps: int = 50, facts: bool = False) -> None:
        self._layout = layout
        self._goal_text = goal
        self._max_steps = max_steps
        self._want_facts = facts
        self._phase = "new"
        self._steps = 0
        self._location = layout.start
        self._holding: str | None = None
        self._contents = {r: list(layout.contents.get(r, ())) for r in layout.receptacles}
        self._object_locations = set(layout.object_locations)
        self._states = {state: set(layout.states[state]) for state in FACT_NAMES}
        self._opened = self._states["opened"]
        self._taken_from: set[tuple[str, str]] = set()
        self._local: dict[str, tuple[Callable[..., str], tuple[Any, ...]]] = {}
        self._actions: tuple[str, ...] = ()
        self._won = False

    # ------------------------------------------------------------------ protocol

    def reset(self) -> Observation:
        if self._phase != "new":
            raise EnvError(f"a household environment plays one episode; this one is {self._phase}: make a new one")
        self._phase = "running"
        self._won = self._goal_holds()
        self._list_actions()
        intro = "-= Welcome to TextWorld, ALFRED! =-\n\n"
        return self._observe(f"{intro}{self._look(intro=True)}\n\nYour task is to: {self._goal_text}.")

    def step(self, action: str) -> Step:
        if self._phase != "running":
            raise EnvError(f"cannot step a household environment that is {self._phase}")
        command = action.strip()
        layout = self._layout
        receptacle = layout.go_to.get(command)
        if receptacle is not None and layout.location_of[receptacle] != self._location:
            text = self._go_to(receptacle)
        elif (rule := self._local.get(command)) is not None:
            text = rule[0](self, *rule[1])
        else:
            text = NOTHING_HAPPENS
        self._steps += 1
        if self._won:
            self._phase = "over"
            return Step(self._observe(text), reward=1.0, terminated=True, outcome="success")
        if self._steps >= self._max_steps:
            self._phase = "over"
            return Step(self._observe(text), truncated=True, outcome="failure")
        return Step(self._observe(text))

    def close(self) -> None:
        self._phase = "closed"

    def _observe(self, text: str) -> Observation:
        return Observation(text, self._actions, self._facts() if self._want_facts else None)

    # ------------------------------------------------------------------ what can be done here

    def _changed(self) -> None:
        """After every action that changed the world."""
        self._won = self._goal_holds()
        self._list_actions()

    def _list_actions(self) -> None:
        cls, names, held = type(self), self._layout.names, self._holding
        local: dict[str, tuple[Callable[..., str], tuple[Any, ...]]] = {
            "help": (cls._help, ()),
            "inventory": (cls._inventory, ()),
            "look": (cls._look, ()),
        }
        for r in self._layout.receptacles_at.get(self._location, ()):
            place = names[r]
            local[f"examine {place}"] = (cls._describe_receptacle, (r,))
            if r in self._layout.abilities["openable"]:
                if r in self._opened:
                    local[f"close {place}"] = (cls._close, (r,))
                else:
                    local[f"open {place}"] = (cls._open, (r,))
            self._list_contents(r, local)
            if held is not None:
                self._list_uses_of_held(held, r, local)
        if held is not None:
            local[f"examine {names[held]}"] = (cls._describe_object, (held,))
            if self._layout.types.get(held) in _SHARP:
                for o in self._layout.abilities["sliceable"]:
                    if (o, self._location) in self._object_locations:
                        local[f"slice {names[o]} with {names[held]}"] = (cls._slice, (o, held))
        self._local = local
        self._actions = tuple(sorted((*self._layout.go_to_from[self._location], *local)))

    def _list_contents(self, r: str, local: dict[str, tuple[Callable[..., str], tuple[Any, ...]]]) -> None:
        names, abilities = self._layout.names, self._layout.abilities
        takeable = self._holding is None and self._accessible(r)
        for o in self._contents[r]:
            if takeable and o in abilities["pickupable"]:
                local[f"take {names[o]} from {names[r]}"] = (HouseholdEnv._take, (o, r))
            if o in abilities["toggleable"]:
                local[f"use {names[o]}"] = (HouseholdEnv._use, (o,))

    def _list_uses_of_held(self, held: str, r: str, local: dict[str, tuple[Callable[..., str], tuple[Any, ...]]]) -> None:
        layout = self._layout
        held_name, place, kind = layout.names[held], layout.names[r], layout.types.get(r, "")
        if self._accessible(r) and (kind, layout.types.get(held, "")) in layout.can_contain:
            local[f"move {held_name} to {place}"] = (HouseholdEnv._move, (held, r))
        for verb, where, ability in _TREATMENTS:
            if kind == where and held in layout.abilities[ability]:
                local[f"{verb} {held_name} with {place}"] = (HouseholdEnv._treat, (verb, held, r))

    def _accessible(self, r: str) -> bool:
        return r in self._opened or r not in self._layout.abilities["openable"]

    # ------------------------------------------------------------------ actions

    def _go_to(self, r: str) -> str:
        self._location = self._layout.location_of[r]
        self._changed()
        return f"You arrive at {self._layout.names[r]}. {self._describe_receptacle(r)}"

    def _open(self, r: str) -> str:
        self._opened.add(r)
        self._changed()
        return f"You open the {self._layout.names[r]}. {self._describe_receptacle(r)}"

    def _close(self, r: str) -> str:
        self._opened.discard(r)
        self._changed()
        return f"You close the {self._layout.names[r]}."

    def _take(self, o: str, r: str) -> str:
        self._contents[r].remove(o)
        self._taken_from.add((o, r))
        self._object_locations.discard((o, self._location))
        self._holding = o
        self._changed()
        return f"You pick up the {self._layout.names[o]} from the {self._layout.names[r]}."

    def _move(self, o: str, r: str) -> str:
        if o not in self._contents[r]:
            insort(self._contents[r], o)
        self._taken_from.discard((o, r))
        self._object_locations.add((o, self._location))
        self._holding = None
        self._changed()
        return f"You move the {self._layout.names[o]} to the {self._layout.names[r]}."

    def _use(self, o: str) -> str:
        self._states["istoggled"].add(o)
        self._changed()
        return f"You turn on the {self._layout.names[o]}."

    def _treat(self, verb: str, o: str, r: str) -> str:
        states = self._states
        if verb == "clean":
            states["isclean"].add(o)
        else:
            gains, loses = ("ishot", "iscool") if verb == "heat" else ("iscool", "ishot")
            states[gains].add(o)
            states[loses].discard(o)
        self._changed()
        return f"You {verb} the {self._layout.names[o]} using the {self._layout.names[r]}."

    def _slice(self, o: str, knife: str) -> str:
        self._states["issliced"].add(o)
        self._changed()
        return f"You sliced the {self._layout.names[o]} with the {self._layout.names[knife]}."

    # ------------------------------------------------------------------ descriptions

    def _help(self) -> str:
        return HELP

    def _inventory(self) -> str:
        return (
            f"You are carrying: a {self._layout.names[self._holding]}." if self._holding else "You are not carrying anything."
        )

    def _look(self, intro: bool = False) -> str:
        names, here = self._layout.names, self._layout.receptacles_at.get(self._location, ())
        if not here:
            seen = self._list(self._layout.receptacles if intro else ())
            return f"You are in the middle of a room. Looking quickly around you, you see {seen}."
        beside = sorted(o for o, r in self._taken_from if r in here and (o, self._location) in self._object_locations)
        return f"You are facing the {_join([names[r] for r in here])}. Next to it, you see {self._list(beside)}."

    def _list(self, ids: Sequence[str]) -> str:
        return _join([f"a {self._layout.names[i]}" for i in ids]) if ids else "nothing"

    def _describe_receptacle(self, r: str) -> str:
        name = self._layout.names[r]
        if r not in self._layout.abilities["openable"]:
            return f"On the {name}, you see {self._list(self._contents[r])}."
        if r in self._opened:
            return f"The {name} is open. In it, you see {self._list(self._contents[r])}."
        return f"The {name} is closed."

    def _describe_object(self, o: str) -> str:
        name = self._layout.names[o]
        clean, hot, cool, is_sliced, on = (
            o in self._states[state] for state in ("isclean", "ishot", "iscool", "issliced", "istoggled")
        )
        if o in self._layout.abilities["isreceptacleobject"]:
            return f"This is a normal {name}. In it, you see {self._list(self._layout.nested.get(o, ()))}."
        heat = "hot" if hot else "cool" if cool else ""
        if clean and heat:
            return f"This is a {heat} and clean {'sliced ' if is_sliced else ''}{name}."
        if (clean or heat) and is_sliced:
            return f"This is a {heat or 'clean'} sliced {name}."
        if clean or heat:
            return f"This is a {'cold' if heat == 'cool' else heat or 'clean'} {name}."
        if on and o in self._layout.abilities["toggleable"]:
            return f"This {name} is on."
        if is_sliced:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    # ------------------------------------------------------------------ truth

    def _goal_holds(self) -> bool:
        layout, goal = self._layout, self._layout.goal
        if goal.lamp_type:
            return self._holding in layout.goal_objects and any(
                o in self._states["istoggled"] and o in layout.abilities["toggleable"] and layout.types.get(o) == goal.lamp_type
                for r in layout.receptacles_at.get(self._location, ())
                for o in self._contents[r]
            )
        ready = layout.goal_objects & self._states[goal.state] if goal.state else layout.goal_objects
        return any(sum(o in ready for o in self._contents[r]) >= goal.count for r in layout.goal_receptacles)

    def _facts(self) -> tuple[str, ...]:
        names = self._layout.names
        facts = [f"atLocation(agent, {names[r]})" for r in self._layout.receptacles_at.get(self._location, ())]
        facts += [f"inReceptacle({names[o]}, {names[r]})" for r, objects in self._contents.items() for o in objects]
        facts += [f"{FACT_NAMES[state]}({names[o]})" for state, members in self._states.items() for o in members]
        if self._holding:
            facts.append(f"holds(agent, {names[self._holding]})")
        return tuple(sorted(facts))
