"""A scripted expert that knows no more than an agent: the intro, the goal sentence, the observations, the admissible actions.

It searches the receptacles one by one (in an order drawn from its generator, or by known habits first), remembers what it saw
on the way, treats the object if the goal asks for it, and delivers. Everything it knows comes from reading text, also the
effect of actions that it did not choose, so it recovers from noise and can take over an episode of somebody else.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from gongfu.core.errors import TaskError
from gongfu.envs.protocol import Observation

__all__ = ["HouseholdExpert", "SpokenGoal", "read_goal"]

_GOALS = (
    re.compile(r"put (?:a|some) (?P<state>clean|hot|cool) (?P<object>\w+) (?:in|on) (?P<place>\w+)"),
    re.compile(r"(?P<state>clean|heat|cool) some (?P<object>\w+) and put it (?:in|on) (?P<place>\w+)"),
    re.compile(r"(?P<two>put two) (?P<object>\w+) (?:in|on) (?P<place>\w+)"),
    re.compile(r"(?P<two>find two) (?P<object>\w+) and put them (?:in|on) (?P<place>\w+)"),
    re.compile(r"put (?:a|some) (?P<object>\w+) (?:in|on) (?P<place>\w+)"),
    re.compile(r"look at (?:the )?(?P<object>\w+) under the (?P<lamp>\w+)"),
    re.compile(r"examine the (?P<object>\w+) with the (?P<lamp>\w+)"),
)
_VERBS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool"}
_APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_UNDOES = {"heat": "cool", "cool": "heat"}

_TASK = re.compile(r"Your task is to: (.+)\.")
_ROOM = re.compile(r"Looking quickly around you, you see (.+?)\.")
_ARRIVE = re.compile(r"You arrive at (.+?)\.")
_CONTENTS = re.compile(r"(?:On the (?P<on>[^.,]+?)|The (?P<open>[^.,]+?) is open\. In it), you see (?P<list>[^.]+)\.")
_CLOSED = re.compile(r"(?:The (.+?) is closed|You close the (.+?))\.")
_PICK = re.compile(r"You pick up the (.+?) from the (.+?)\.")
_MOVE = re.compile(r"You move the (.+?) to the (.+?)\.")
_TREAT = re.compile(r"You (clean|heat|cool) the (.+?) using the")
_NAME = re.compile(r"\ba (\w+ \d+)")


@dataclass(frozen=True, slots=True)
class SpokenGoal:
    """A goal sentence, understood."""

    object: str
    place: str = ""
    lamp: str = ""
    verb: str = ""
    """"clean", "heat" or "cool" when the object must be treated first."""
    count: int = 1


def read_goal(sentence: str) -> SpokenGoal:
    """Understand one of ALFWorld's goal sentences. Raises TaskError for any other."""
    for pattern in _GOALS:
        if match := pattern.fullmatch(sentence.strip()):
            parts = match.groupdict()
            return SpokenGoal(
                object=parts["object"],
                place=parts.get("place") or "",
                lamp=parts.get("lamp") or "",
                verb=_VERBS.get(parts.get("state") or "", ""),
                count=2 if "two" in parts else 1,
            )
    raise TaskError(f"the household expert does not understand the goal {sentence!r}")


def _type(name: str) -> str:
    return name.partition(" ")[0]


class HouseholdExpert:
    """Plays one episode. Implements `gongfu.envs.protocol.Expert`.

    `habits` (type of object -> type of receptacle) puts the places where an object is usually kept first in the search.
    `noise` is the probability, at each step, of a random action instead: one that is or was admissible in this episode, so
    that refused actions, and the way out of them, are shown too.
    """

    def __init__(self, rng: random.Random, *, habits: Mapping[str, str] | None = None, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a probability, got {noise}")
        self._rng = rng
        self._habits = habits or {}
        self._noise = noise
        self._known: set[str] = set()
        self.explored = False
        """Whether the last action was noise: not a thing to imitate."""
        self._goal: SpokenGoal | None = None
        self._order: list[str] = []
        self._seen: dict[str, list[str]] = {}
        """Receptacle -> objects it holds, for those whose inside is known."""
        self._holding = ""
        self._origin = ""
        self._refused: set[str] = set()
        self._treated: defaultdict[str, set[str]] = defaultdict(set)

    def act(self, observation: Observation) -> str:
        """The next action, one of `observation.actions`. Raises TaskError if no goal was ever shown."""
        self._read(observation.text)
        actions = frozenset(observation.actions or ())
        if not actions:
            raise TaskError("the household expert needs the admissible actions")
        self.explored = self._rng.random() < self._noise
        self._known |= actions
        if self.explored:
            return self._rng.choice(sorted(self._known))
        return self._decide(actions)

    # ------------------------------------------------------------------ reading

    def _read(self, text: str) -> None:
        if task := _TASK.search(text):
            self._goal = read_goal(task[1])
        if room := _ROOM.search(text):
            self._order = self._order or _NAME.findall(room[1])
            self._rng.shuffle(self._order)
        if contents := _CONTENTS.search(text):
            self._seen[contents["on"] or contents["open"]] = _NAME.findall(contents["list"])
        if pick := _PICK.search(text):
            self._holding, self._origin = pick[1], pick[2]
            self._refused.clear()
            if pick[1] in self._seen.get(pick[2], ()):
                self._seen[pick[2]].remove(pick[1])
        if move := _MOVE.search(text):
            self._holding = ""
            self._seen.setdefault(move[2], []).append(move[1])
        if treat := _TREAT.search(text):
            verb, name = treat.groups()
            self._treated[name].add(verb)
            self._treated[name].discard(_UNDOES.get(verb, ""))

    # ------------------------------------------------------------------ deciding

    def _decide(self, actions: frozenset[str]) -> str:
        goal = self._goal
        if goal is None:
            raise TaskError("the household expert must see the intro with the goal first")
        if not self._holding:
            return self._fetch(goal, actions)
        if _type(self._holding) != goal.object:
            return self._put_away(actions)
        if goal.lamp:
            return self._switch_on(goal.lamp, actions)
        if goal.verb and goal.verb not in self._treated[self._holding]:
            return self._treat(goal.verb, actions)
        return self._deliver(self._goal_place(goal), actions)

    def _fetch(self, goal: SpokenGoal, actions: frozenset[str]) -> str:
        done = self._goal_place(goal) if goal.count > 1 else ""
        for r, objects in self._seen.items():
            for o in objects:
                if _type(o) == goal.object and r != done:
                    return self._do_at(r, f"take {o} from {r}", actions)
        return self._search(goal.object, actions)

    def _switch_on(self, lamp_type: str, actions: frozenset[str]) -> str:
        for r, objects in self._seen.items():
            for o in objects:
                if _type(o) == lamp_type:
                    return self._do_at(r, f"use {o}", actions)
        return self._search(lamp_type, actions)

    def _treat(self, verb: str, actions: frozenset[str]) -> str:
        ready = [f"{verb} {self._holding} with {r}" for r in self._order if _type(r) == _APPLIANCES[verb]]
        for action in ready:
            if action in actions:
                return action
        return next(f"go to {r}" for r in self._order if _type(r) == _APPLIANCES[verb] and f"go to {r}" in actions)

    def _goal_place(self, goal: SpokenGoal) -> str:
        """The receptacle to fill: the one that already has the most of what is asked for."""
        places = sorted(r for r in self._order if _type(r) == goal.place)
        return max(places, key=lambda r: sum(_type(o) == goal.object for o in self._seen.get(r, ())))

    def _deliver(self, r: str, actions: frozenset[str]) -> str:
        return self._do_at(r, f"move {self._holding} to {r}", actions)

    def _put_away(self, actions: frozenset[str]) -> str:
        """Get rid of an object that the goal does not need (a noisy step picked it up)."""
        for action in sorted(actions):
            if action.startswith(f"move {self._holding} to "):
                return action
        for r in [self._origin, *self._order]:
            if r in self._refused:
                continue
            for action in (f"go to {r}", f"open {r}"):
                if action in actions:
                    return action
            self._refused.add(r)
        self._refused.clear()
        return "look"

    def _do_at(self, r: str, action: str, actions: frozenset[str]) -> str:
        """`action` if it can be done now, else the step towards it: go there, open, or look again."""
        for step in (action, f"go to {r}", f"open {r}"):
            if step in actions:
                return step
        self._seen.pop(r, None)  # what was remembered of it is not true
        return f"examine {r}"

    def _search(self, object_type: str, actions: frozenset[str]) -> str:
        usual = self._habits.get(object_type)
        unseen = [r for r in self._order if r not in self._seen]
        if not unseen:
            self._seen.clear()
            unseen = self._order
        r = next((r for r in unseen if _type(r) == usual), unseen[0])
        for step in (f"go to {r}", f"open {r}"):
            if step in actions:
                return step
        return f"examine {r}"
