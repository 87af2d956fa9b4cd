"""Plays one walk on the fast and on the official engine and says where they first differ.

Compared at every state: text, admissible actions in order, facts, reward, terminated, truncated, outcome.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gongfu.envs.household.expert import HouseholdExpert
from gongfu.envs.household.official import OfficialHouseholdEnv
from gongfu.envs.household.problem import parse_problem
from gongfu.envs.household.world import NOTHING_HAPPENS, HouseholdEnv
from gongfu.envs.protocol import Observation, Step

__all__ = ["WALKS", "Comparison", "compare_engines"]

WALKS = ("random", "expert", "adversarial")
"""Admissible actions at random; the expert with noise; nonsense and inadmissible commands, slicing, treating,
undoing, shuffling among receptacles of one place."""

_ACTIVE = ("take", "move", "heat", "cool", "clean", "use", "slice", "open", "close")
_NONSENSE = (
    "",
    "  ",
    "fly",
    "go to",
    "go to fridge 99",
    "open",
    "take from",
    "look around",
    "LOOK",
    "xyzzy \N{SNOWMAN}",
    "{r}",
)
_SHARP = ("knife", "butterknife")
_FOOD = ("apple", "bread", "egg", "lettuce", "potato", "tomato")
_TELLING = ("bowl", "box", "cup", "mug", "pan", "plate", "pot", "winebottle", *_FOOD)
_OPPOSITES = (
    (re.compile(r"take (.+) from (.+)"), r"move \1 to \2"),
    (re.compile(r"move (.+) to (.+)"), r"take \1 from \2"),
    (re.compile(r"open (.+)"), r"close \1"),
    (re.compile(r"close (.+)"), r"open \1"),
    (re.compile(r"heat (.+) with microwave"), r"cool \1 with fridge"),
    (re.compile(r"cool (.+) with fridge"), r"heat \1 with microwave"),
)
_LIES = re.compile(r"inReceptacle\((.+), (.+)\)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one walk showed."""

    states: int
    """States compared, the first one included."""
    verbs: Counter[str]
    """First words of the commands that were answered; "(refused)" counts "Nothing happens.", "(beside)" the answers to `look`
    that list objects."""
    difference: str
    """Where and how the engines differ; empty when they agree."""


def compare_engines(problem: str, goal: str, walk: str, rng: random.Random, *, steps: int = 25) -> Comparison:
    """Walk `steps` steps, or until the task is done, on both engines. Raises MissingExtra without the extra "alfworld"."""
    fast = HouseholdEnv(parse_problem(problem), goal, max_steps=steps, facts=True)
    official = OfficialHouseholdEnv(problem, goal, max_steps=steps, facts=True)
    choose = {"random": _random_walk, "expert": _expert_walk, "adversarial": _adversarial_walk}[walk](rng)
    verbs: Counter[str] = Counter()
    history: list[str] = []
    ours, theirs = Step(fast.reset()), Step(official.reset())
    try:
        while True:
            if ours != theirs:
                return Comparison(len(history) + 1, verbs, f"after {history}: {_explain(ours, theirs)}")
            if ours.terminated or ours.truncated:
                return Comparison(len(history) + 1, verbs, "")
            command = choose(ours.observation)
            history.append(command)
            ours, theirs = fast.step(command), official.step(command)
            refused = ours.observation.text == NOTHING_HAPPENS
            verbs["(refused)" if refused else command.split()[0]] += 1
            verbs["(beside)"] += "Next to it, you see a " in ours.observation.text
    finally:
        official.close()


def _explain(ours: Step, theirs: Step) -> str:
    for name in ("text", "actions", "facts"):
        a, b = getattr(ours.observation, name), getattr(theirs.observation, name)
        if a != b and isinstance(a, tuple) and isinstance(b, tuple):
            return f"{name}: only fast {sorted({*a} - {*b})}, only official {sorted({*b} - {*a})} ({len(a)} and {len(b)})"
        if a != b:
            return f"{name}: fast {a!r}, official {b!r}"
    return f"fast {(ours.reward, ours.terminated, ours.outcome)}, official {(theirs.reward, theirs.terminated, theirs.outcome)}"


def _random_walk(rng: random.Random) -> Callable[[Observation], str]:
    def choose(observation: Observation) -> str:
        actions = observation.actions or ()
        active = [a for a in actions if a.split()[0] in _ACTIVE]
        return rng.choice(active if active and rng.random() < 0.5 else actions)

    return choose


def _expert_walk(rng: random.Random) -> Callable[[Observation], str]:
    return HouseholdExpert(rng, noise=0.2).act


def _adversarial_walk(rng: random.Random) -> Callable[[Observation], str]:
    last = "look"
    plan: list[str] = []

    def choose(observation: Observation) -> str:
        nonlocal last, plan
        actions = observation.actions or ()
        draw = rng.random()
        if draw < 0.2:
            last = _spoil(rng.choice(actions), last, rng)
            return last
        moves = [a for a in actions if a.startswith("move ")]
        if draw < 0.3:
            last = _undo(last)
        elif len(moves) > 1 and rng.random() < 0.5:
            # several receptacles stand here: what is moved among them also lies "next to" the one it was taken from
            there, elsewhere = rng.sample(moves, 2)
            plan = [_undo(there), "look", elsewhere, "look", _undo(elsewhere), *plan]
            last = there
        else:
            plan = plan or _mission(observation, rng)
            while len(plan) > 1 and plan[0] not in actions and rng.random() < 0.8:
                plan.pop(0)
            last = plan.pop(0)
        return last

    return choose


def _spoil(action: str, last: str, rng: random.Random) -> str:
    """A command that is probably not admissible."""
    return rng.choice(
        [
            rng.choice(_NONSENSE),
            action.upper(),
            f"  {action}\n",
            f"{action} 1",
            action.replace("go to", "open").replace("examine", "take"),
            action.replace("move", "put").replace(" to ", " in/on "),
            last,
        ]
    )


def _mission(observation: Observation, rng: random.Random) -> list[str]:
    """Commands that take a telling object by what is true, treat it or use it as a knife, and put it somewhere else; not
    all of them admissible (the hand may be full, the door closed)."""
    places = [(match[1], match[2]) for fact in observation.facts or () if (match := _LIES.fullmatch(fact))]
    receptacles = [action.removeprefix("go to ") for action in observation.actions or () if action.startswith("go to ")]
    counts = Counter(o for o, _ in places)
    weights = [8 if counts[o] > 1 else 4 if _type(o) in _SHARP else 2 if _type(o) in _TELLING else 1 for o, _ in places]
    if not places:
        return ["look"]
    o, r = rng.choices(places, weights)[0]
    commands = [f"go to {r}", f"open {r}", f"take {o} from {r}", f"examine {r}", f"examine {o}", "inventory"]
    food = [place for place in places if _type(place[0]) in _FOOD]
    if _type(o) in _SHARP and food:
        f, s = rng.choice(food)
        commands += [f"go to {s}", f"slice {f} with {o}", f"open {s}", f"move {o} to {s}", f"take {f} from {s}", f"examine {f}"]
        o = f
    for verb in rng.sample(("clean", "heat", "cool", "heat"), rng.randint(0, 3)):
        appliance = {"clean": "sinkbasin 1", "heat": "microwave 1", "cool": "fridge 1"}[verb]
        commands += [f"go to {appliance}", f"{verb} {o} with {appliance}", f"examine {o}"]
    new = rng.choice(receptacles)
    return [*commands, f"go to {new}", f"open {new}", f"move {o} to {new}", "look", f"close {new}", "inventory"]


def _type(name: str) -> str:
    return name.partition(" ")[0]


def _undo(command: str) -> str:
    """The command that takes one back, where there is one."""
    for pattern, opposite in _OPPOSITES:
        if pattern.match(command):
            return pattern.sub(opposite, command)
    return command
