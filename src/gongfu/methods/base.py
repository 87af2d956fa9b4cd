"""What a method is: one step of training, written out, and the little state it carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gongfu.core.records import Trajectory


@dataclass(frozen=True)
class StepReport:
    """What one step did: numbers to track and the episodes it played."""

    metrics: Mapping[str, float]
    trajectories: tuple[Trajectory, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Schedule:
    """Learning rate over a run: a linear warm-up, constant, and over the last `decay` of the steps down to a tenth."""

    steps: int
    warmup: int = 0
    decay: float = 0.0

    def at(self, k: int) -> float:
        """Factor on the learning rate in step k (from 0).

        >>> [round(Schedule(steps=10, warmup=2, decay=0.5).at(k), 2) for k in (0, 1, 4, 7, 9)]
        [0.5, 1.0, 1.0, 0.64, 0.28]
        """
        left = (self.steps - k) / (self.decay * self.steps) if self.decay else 1.0
        return min((k + 1) / max(1, self.warmup), 1.0, 0.1 + 0.9 * max(0.0, left))


class Method(Protocol):
    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters it trains; the first one acts."""
        ...

    def step(self, k: int) -> StepReport:
        """Run step k (from 0): rollouts, credit, update, publish. Depends on (seed, k, weights, state) only."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the engine's weights; JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
