"""What a suite and an environment are. Duck-typed: a user's class needs no import from here.

class Hello:                                  # an environment plays ONE episode and is thrown away
    def reset(self): return Observation("Say hello.", actions=("hello", "bye"))
    def step(self, action): return Step(Observation("Hi."), reward=1.0, terminated=True, outcome="success")
    def close(self): ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from gongfu.core.records import Outcome, Task


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees."""

    text: str
    actions: tuple[str, ...] | None = None
    """Admissible actions, sorted; None when the environment lists none."""
    facts: tuple[str, ...] | None = None
    """Predicates that hold, e.g. "holds(agent, apple 1)"; None when the environment has none."""


@dataclass(frozen=True, slots=True)
class Step:
    """The answer to one action."""

    observation: Observation
    reward: float = 0.0
    terminated: bool = False
    """The episode ended by its own rules."""
    truncated: bool = False
    """The episode was cut by a limit of the environment."""
    outcome: Outcome | None = None
    """Set when the episode ended."""
    score: float | None = None
    """The suite's own score, 0 to 1, when the episode ended; None means 1 for success and 0 for failure."""


@runtime_checkable
class Env(Protocol):
    def reset(self) -> Observation: ...
    def step(self, action: str) -> Step: ...
    def close(self) -> None: ...


@runtime_checkable
class Suite(Protocol):
    """What every suite has. These a suite may have too; whatever wants one says so when it is missing:

    `expert(task, rng, *, noise=0.0) -> Expert`: a scripted actor, for cold starts and `gongfu play --expert`; `noise` is the
    chance of a random action.
    `failure_modes: Sequence[str]`: names of the ways in which episodes fail. Role-Agent's failure curriculum
    (`method.failures.share` above 0) needs them.
    `diagnose(trajectory: Trajectory) -> str`: which of them a failed episode shows, measured. Needed by
    `method.failures.writer = "measured"`; otherwise what the model says is compared with it.
    `advise(task, quality, rng, *, seen=()) -> Advice`: a scripted teacher, for cold starts that show skills; `seen` are
    actions that an episode took.
    `lessons(task) -> Sequence[str]`: the skill texts that `method.proposer.mode = "choose"` chooses among.
    `prepare()`: loads what episodes share; called before the first one in every process that plays.
    """

    name: str
    splits: tuple[str, ...]
    max_steps: int
    """Steps after which an episode counts as truncated (the papers' horizon)."""

    def tasks(self, split: str) -> Sequence[Task]: ...
    def make(self, task: Task) -> Env: ...
    def instructions(self) -> str:
        """What an agent must be told about this suite, once (the system message)."""
        ...


def prepare(suite: Suite) -> None:
    """Load what a suite's episodes share, if it has anything of that kind."""
    if load := getattr(suite, "prepare", None):
        load()


@runtime_checkable
class Expert(Protocol):
    """A scripted actor for one episode: the next action, given all that was observed."""

    def act(self, observation: Observation) -> str: ...


@dataclass(frozen=True, slots=True)
class Advice:
    """A skill text whose quality is known, from a suite that can give it (`suite.advise(task, quality, rng)`)."""

    text: str
    quality: str
    """"good", "wrong", "vague", "instance" (bound to one episode) or "irrelevant" (true, about something else)."""
    belief: Mapping[str, str] = field(default_factory=dict)
    """What an expert believes who trusts it; goes back to the suite as `suite.expert(task, rng, habits=belief)`."""
