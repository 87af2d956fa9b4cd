"""Which tasks a step plays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gongfu.core.errors import TaskError
from gongfu.core.records import Task
from gongfu.core.seeds import rng_for


@dataclass(frozen=True)
class TaskSampler:
    """Draws tasks without replacement, epoch after epoch. The draw of a step depends on (seed, step) only."""

    tasks: Sequence[Task]
    seed: int

    def __post_init__(self) -> None:
        if not self.tasks:
            raise TaskError("there are no tasks to draw from: the split is empty")

    def draw(self, step: int, count: int) -> list[Task]:
        """`count` tasks of step `step` (from 0). A batch that crosses an epoch's end goes on in the next epoch."""
        return [self._at(position) for position in range(step * count, (step + 1) * count)]

    def _at(self, position: int) -> Task:
        epoch, place = divmod(position, len(self.tasks))
        return self.tasks[_order(self.seed, epoch, len(self.tasks))[place]]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    order = list(range(count))
    rng_for(seed, purpose="task order", step=epoch).shuffle(order)
    return order
