"""From candidate to active to retired, and back to an earlier bank: decisions from evidence, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Literal, Protocol

from gongfu.core.errors import ConfigError

State = Literal["candidate", "active", "retired", "quarantined"]


class Evidence(Protocol):
    """What is known of a skill's present version."""

    @property
    def with_n(self) -> int:
        """Episodes that were played with it."""
        ...

    @property
    def uplift(self) -> float | None:
        """Success rate with it minus that without it; None when one of them was never tried."""
        ...

    @property
    def high(self) -> float:
        """Upper end of the interval of the uplift."""
        ...

    @property
    def last_used(self) -> int | None:
        """Last step with it."""
        ...


@dataclass(frozen=True, slots=True)
class LifecycleRules:
    """Settings of `review`; raises ConfigError for one that cannot be used."""

    probation: int = 16
    """Uses before anything is decided by success."""
    retire_harmful: bool = True
    """Retire a skill whose interval of uplift lies below 0."""
    unused_for: int = 0
    """Retire a skill that was not used for this many steps; 0 = never."""

    def __post_init__(self) -> None:
        if self.probation < 1 or self.unused_for < 0:
            raise ConfigError(
                f"probation must be at least 1 use and unused_for not negative, got {self.probation} and {self.unused_for}"
            )


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a skill of the bank stands."""

    state: State
    since: int
    """Step at which its present version entered the bank."""
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Change:
    """A skill's move to another state."""

    skill: str
    state: State
    reason: str


def review(standings: Mapping[str, Standing], rules: LifecycleRules, *, step: int) -> list[Change]:
    """What changes at `step`, by skill id. Retired and quarantined skills stay as they are."""
    changes = []
    for skill in sorted(standings):
        found = _next(standings[skill], rules, step)
        if found is not None:
            changes.append(Change(skill, *found))
    return changes


def _next(standing: Standing, rules: LifecycleRules, step: int) -> tuple[State, str] | None:
    evidence = standing.evidence
    if standing.state not in ("candidate", "active"):
        return None
    proved = evidence.with_n >= rules.probation
    if proved and rules.retire_harmful and evidence.uplift is not None and evidence.high < 0:
        return "retired", f"harmful: uplift {evidence.uplift:+.3f}, at most {evidence.high:+.3f}, in {evidence.with_n} uses"
    idle = step - (standing.since if evidence.last_used is None else evidence.last_used)
    if rules.unused_for and idle >= rules.unused_for:
        return "retired", f"not used for {idle} steps"
    if proved and standing.state == "candidate":
        uplift = "not known" if evidence.uplift is None else f"{evidence.uplift:+.3f}"
        return "active", f"{evidence.with_n} uses, uplift {uplift}"
    return None


@dataclass
class Canary:
    """Watches a new bank on held-out tasks beside the bank before it, both played by the same policy.

        canary.begin("commit-1", "commit-2")
        canary.count("commit-1", success=31, n=40)
        canary.count("commit-2", success=22, n=40)
        canary.verdict()        # "roll back": 22/40 lies 2.1 standard errors below 31/40

    The standard error is that of two proportions that are equal: sqrt(p (1 - p) (1/n1 + 1/n2)), p over both.
    """

    errors: float = 2.0
    """Roll back when success is more than this many standard errors below what it was."""
    episodes: int = 32
    """Episodes with each bank before anything is said."""
    _banks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Commit -> (successes, episodes): the bank before, then the one after."""

    def __post_init__(self) -> None:
        if self.errors < 0 or self.episodes < 1:
            raise ConfigError(
                f"a canary needs errors of 0 or more and at least 1 episode, got {self.errors} and {self.episodes}"
            )

    def begin(self, before: str, after: str) -> None:
        """Watch the bank at commit `after` against that at `before` from now on."""
        if before == after:
            raise ValueError(f"a canary compares two commits of the bank, got {before!r} twice")
        self._banks = {before: (0, 0), after: (0, 0)}

    def count(self, commit: str, *, success: int, n: int) -> None:
        """Add `n` held-out episodes played with the bank at `commit`."""
        if commit not in self._banks:
            raise ValueError(f"the canary watches the banks {list(self._banks)}, not {commit!r}; begin with it first")
        if not 0 <= success <= n:
            raise ValueError(f"{success} successes in {n} episodes with bank {commit!r}")
        successes, episodes = self._banks[commit]
        self._banks[commit] = (successes + success, episodes + n)

    def verdict(self) -> Literal["wait", "keep", "roll back"]:
        """Says "wait" while a bank has too few episodes, or none is watched."""
        if not self._banks or min(n for _, n in self._banks.values()) < self.episodes:
            return "wait"
        (old, old_n), (new, new_n) = self._banks.values()
        both = (old + new) / (old_n + new_n)
        error = sqrt(both * (1 - both) * (1 / old_n + 1 / new_n))
        return "roll back" if old / old_n - new / new_n > self.errors * error else "keep"

    def state(self) -> dict[str, Any]:
        return {"banks": [[commit, *counts] for commit, counts in self._banks.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._banks = {str(commit): (int(success), int(n)) for commit, success, n in state["banks"]}
