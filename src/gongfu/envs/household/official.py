"""The official ALFWorld engine (TextWorld's PDDL engine with ALFWorld's domain and grammar) as an environment of ours.

It is slow (tens of steps a second) and needs the extra "alfworld"; it is here to play official games as published and to
check the fast engine against. Domain and grammar always come from the installed wheel: a grammar is evaluated as Python
code, so those stored in game files are never loaded, and the goal sentence never enters the grammar.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gongfu.core.errors import EnvError, MissingExtra
from gongfu.envs.household.problem import FACT_NAMES
from gongfu.envs.protocol import Observation, Step

__all__ = ["OfficialHouseholdEnv", "require_packages"]

_GOAL_PLACEHOLDER = "UNKNOWN GOAL"
_FACTS = FACT_NAMES | {"atlocation": "atLocation", "holds": "holds", "inreceptacle": "inReceptacle"}


class OfficialHouseholdEnv:
    """One episode on the official engine. Implements `gongfu.envs.protocol.Env`, with the texts, rewards, facts and errors
    of `HouseholdEnv`.

    Raises MissingExtra without the extra "alfworld", EnvError on a second reset, on a step before the reset, after the end or
    after `close`, and when the engine cannot read the problem.
    """

    def __init__(self, problem: str, goal: str, *, max_steps: int = 50, facts: bool = False) -> None:
        self._engine = _new_engine(facts)
        self._problem = problem
        self._goal_text = goal
        self._max_steps = max_steps
        self._want_facts = facts
        self._phase = "new"
        self._steps = 0

    def reset(self) -> Observation:
        if self._phase != "new":
            raise EnvError(f"a household environment plays one episode; this one is {self._phase}: make a new one")
        try:
            self._engine.load({"pddl_problem": self._problem})
            state = self._engine.reset()
        except (Exception, SystemExit) as e:  # the translator leaves the process on a problem that it cannot read
            raise EnvError(f"the official engine cannot load this problem: {type(e).__name__}: {e}") from e
        self._phase = "running"
        return self._observe(state, state.feedback.replace(_GOAL_PLACEHOLDER, self._goal_text))

    def step(self, action: str) -> Step:
        if self._phase != "running":
            raise EnvError(f"cannot step a household environment that is {self._phase}")
        state, _, _ = self._engine.step(action)
        observation = self._observe(state, state.feedback)
        self._steps += 1
        if state["won"]:
            self._phase = "over"
            return Step(observation, reward=1.0, terminated=True, outcome="success")
        if self._steps >= self._max_steps:
            self._phase = "over"
            return Step(observation, truncated=True, outcome="failure")
        return Step(observation)

    def close(self) -> None:
        self._phase = "closed"
        self._engine.close()

    def _observe(self, state: Any, text: str) -> Observation:
        facts = _facts(state["facts"]) if self._want_facts else None
        return Observation(text.strip(), tuple(state["admissible_commands"]), facts)


def _facts(propositions: list[Any]) -> tuple[str, ...]:
    """The engine's facts in the words of `HouseholdEnv`: places instead of coordinates, nothing that never changes."""
    at = {fact.arguments[1].name for fact in propositions if fact.name == "atlocation"}
    facts = {
        f"atLocation(agent, {fact.arguments[0].name})"
        for fact in propositions
        if fact.name == "receptacleatlocation" and fact.arguments[1].name in at
    }
    for fact in propositions:
        if fact.name in _FACTS and fact.name != "atlocation":
            names = ["agent" if argument.type == "agent" else argument.name for argument in fact.arguments]
            facts.add(f"{_FACTS[fact.name]}({', '.join(names)})")
    return tuple(sorted(facts))


def require_packages() -> None:
    """Raises MissingExtra unless the official engine can be imported."""
    _packages()


@cache
def _packages() -> SimpleNamespace:
    """The extra's classes, its domain and its grammar, imported and repaired once."""
    # alfworld makes this folder when it is imported; without the variable, in the user's home
    os.environ.setdefault("ALFWORLD_DATA", str(Path(tempfile.gettempdir()) / "gongfu-alfworld"))
    try:
        import fast_downward  # pyright: ignore[reportMissingImports]
        import textworld  # pyright: ignore[reportMissingImports]
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # pyright: ignore[reportMissingImports]
        from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH  # pyright: ignore[reportMissingImports]
        from textworld.envs import PddlEnv  # pyright: ignore[reportMissingImports]
        from textworld.envs.pddl import logic  # pyright: ignore[reportMissingImports]
    except ImportError as e:
        raise MissingExtra("the official ALFWorld engine", "alfworld") from e
    _repair()
    domain, grammar = (Path(path).read_text(encoding="utf-8") for path in (ALFRED_PDDL_PATH, ALFRED_TWL2_PATH))
    return SimpleNamespace(
        infos=textworld.EnvInfos,
        base=PddlEnv,
        demangler=AlfredDemangler,
        environment=textworld.Environment,
        load_lib=fast_downward.load_lib,
        state=logic.PddlState,
        logic=logic.GameLogic(domain=domain, grammar=grammar),
    )


def _new_engine(facts: bool) -> Any:
    packages = _packages()
    wanted = packages.infos(won=True, admissible_commands=True, facts=facts)
    return packages.demangler(_engine_class()(wanted), shuffle=False)


@cache
def _engine_class() -> Any:
    packages = _packages()
    libraries: list[Any] = []

    class Engine(packages.base):
        """PddlEnv whose domain and grammar were read beforehand, and whose copy of the planner's library serves again.

        PddlEnv loads a new copy for each environment and never frees it: several megabytes an episode.
        """

        def __init__(self, infos: Any) -> None:
            packages.environment.__init__(self, infos)
            self.downward_lib = libraries.pop() if libraries else packages.load_lib()

        def load(self, filename_or_data: Any) -> None:
            self._game_file, self._game_data, self.walkthrough = None, filename_or_data, None
            self._logic = packages.logic
            self._pddl_state = packages.state(self.downward_lib, filename_or_data["pddl_problem"], self._logic)
            self._entity_infos = self._get_entity_infos()

        def close(self) -> None:
            if self.downward_lib is not None:
                libraries.append(self.downward_lib)
                self.downward_lib = None

    return Engine


@cache
def _repair() -> None:
    """Make the installed packages run on Python 3.13 and do the same work once; no result changes."""
    import fast_downward  # pyright: ignore[reportMissingImports]
    from textworld.envs.pddl import textgen  # pyright: ignore[reportMissingImports]

    def derive(self: Any, context: Any = None) -> list[Any]:
        # The original updates locals() before eval, which eval no longer sees in Python 3.13 (PEP 667).
        variables = dict((context or self.context)["variables"])
        return [textgen.TerminalSymbol(eval(self.expression, {}, variables))]

    textgen.EvalSymbol.derive = derive
    fast_downward.pddl2sas = _translate_once(fast_downward.pddl2sas)
    parse = lru_cache(maxsize=1024)(textgen._parse_and_convert)
    textgen._parse_and_convert = lambda text, *, rule_name, **options: copy.deepcopy(parse(text, rule_name=rule_name))
    textgen.Rule = SimpleNamespace(parse_conjunctive_query=lru_cache(maxsize=1024)(textgen.Rule.parse_conjunctive_query))


def _translate_once(pddl2sas: Callable[..., Any]) -> Callable[..., Any]:
    """Load and reset each translate the problem twice: as it is, and simplified for the planner, which nobody asks here."""

    @lru_cache(maxsize=4)
    def translate(domain: str, problem: str) -> Any:
        argv = sys.argv  # which the translator overwrites
        try:
            return pddl2sas(domain, problem)
        finally:
            sys.argv = argv

    return lambda domain, problem, **options: translate(domain, problem)
