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
