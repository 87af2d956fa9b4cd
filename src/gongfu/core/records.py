"""The records that flow through a training step: frozen, plain, and the same after a round trip through JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from gongfu.core.errors import TokenError

Outcome = Literal["success", "failure"]
Stop = Literal["terminated", "truncated", "context", "error", "timeout"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to be done: the same `id` and `seed` always give the same episode start."""

    id: str
    suite: str
    kind: str
    """Task type within the suite (ALFWorld: pick_and_place_simple, ...)."""
    goal: str
    split: str
    seed: int = 0
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What the suite needs to build the environment; JSON values only."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a response was drawn from, when it was drawn from a list instead of generated.

    The policy of a choice is softmax over the options of (total log-prob / temperature). A response's tokens carry it by the
    chain rule: log p(token | tokens before it, the list), which sums to log p(response | the list).
    """

    options: tuple[tuple[int, ...], ...]
    """The likely options, the response among them. Unlikely ones are left out: training need not compute them again."""
    others: float | None = None
    """log Σ exp(total log-prob / temperature) of the options left out, a constant in training; None = none was."""
    start: int = 0
    """Where the response begins in its row."""
    alone: tuple[float, ...] | None = None
    """Log-prob of each response token at temperature 1, had it been generated instead of chosen; None = not known."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model by a role: tokens in, tokens out, as sampled."""

    role: str
    adapter: str | None
    policy_version: int
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    """Log-probability of each response token under the policy that sampled it; None when no policy did (a demonstration)."""
    text: str
    stop: str
    """Why sampling ended: "stop" (end token), "length" or "choice"."""
    temperature: float = 1.0
    choice: Choice | None = None
    """What the response was chosen from; `logprobs` are then those of its tokens given the list."""

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.response) != len(self.logprobs):
            raise TokenError(f"a call has {len(self.response)} response tokens but {len(self.logprobs)} log-probs")


@dataclass(frozen=True, slots=True)
class Validity:
    """What was wrong with an action, if anything. An action is valid when both flags hold."""

    format: bool
    admissible: bool
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.format and self.admissible


@dataclass(frozen=True, slots=True)
class Turn:
    """What the agent saw, what it said, and what that was worth."""

    observation: str
    actions: tuple[str, ...] | None
    """Admissible actions the environment offered, None when it lists none."""
    call: Call | None
    """None for a scripted actor."""
    action: str
    validity: Validity
    reward: float
    facts: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. `id` is made from step, task and rollout number, never at random."""

    id: str
    task: Task
    group: str
    """Rollouts of one task at one step share a group."""
    skills: tuple[str, ...]
    """Ids of the skills in the prompt."""
    turns: tuple[Turn, ...]
    final_observation: str
    outcome: Outcome
    score: float
    """The suite's own score of the episode, 0 to 1."""
    stop: Stop
    error: str = ""
    restarts: int = 0
    """Times that its environment failed and it was begun anew."""

    @property
    def success(self) -> bool:
        return self.outcome == "success"


@dataclass(frozen=True, slots=True)
class Row:
    """A token sequence as it crosses to an engine.

    `mask[i]` is True when token i was produced by the policy and is scored; position 0 never is (nothing precedes it).
    `temperature` divides the logits, as it did in sampling. Responses in `choices` are scored among their options.
    """

    id: str
    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    temperature: float = 1.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.mask):
            raise TokenError(f"row {self.id}: {len(self.tokens)} tokens but a mask of {len(self.mask)}")
        if not self.tokens or self.mask[0]:
            raise TokenError(f"row {self.id}: needs at least one token, and the first one cannot be scored")
        if self.temperature <= 0:
            raise TokenError(
                f"row {self.id}: temperature must be positive, got {self.temperature}: greedy samples are not trained"
            )
        for choice in self.choices:
            response = self.response(choice)
            if not all(self.mask[choice.start : choice.start + len(response)]):
                raise TokenError(f"row {self.id}: the choice at token {choice.start} is not scored as a whole")

    def response(self, choice: Choice) -> tuple[int, ...]:
        """The option that was taken: the one whose tokens stand in the row. Raises TokenError when none does."""
        at = choice.start
        for option in choice.options:
            if option and self.tokens[at : at + len(option)] == option:
                return option
        raise TokenError(f"row {self.id}: none of the {len(choice.options)} options of the choice at token {at} stands there")

    @property
    def targets(self) -> int:
        """Number of scored tokens."""
        return sum(self.mask)


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(record: Any) -> dict[str, Any]:
    """A record as plain JSON values (tuples become lists when written)."""
    return asdict(record)


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """The record that `to_json` wrote. Raises ValueError naming the fields that do not fit."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as e:
        raise ValueError(f"not a {kind.__name__}: {e}") from None
