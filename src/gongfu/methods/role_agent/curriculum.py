"""Which tasks a step draws when failures steer it: most as they come, some from those that earlier failures point to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gongfu.config.role_agent import FailureConfig
from gongfu.core.records import Task, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.rollout.tasks import TaskSampler


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed episode and what was made of it."""

    task: str
    """Id of the task."""
    kind: str
    goal: str
    mode: str
    """Why it failed, one of the suite's failure modes; "" = it could not be told."""
    query: str
    """What earlier failures are compared by: words about the cause and the task."""
    step: int
    detail: str = ""
    critical_step: str = ""
    lesson: str = ""


Select = Callable[[str, Sequence[Failure], Sequence[Failure], int], Sequence[Failure]]
"""(mode, its new failures, the short list of earlier ones, most to return) -> those of the list that are like the new ones."""


@dataclass
class FailureCurriculum:
    """Uniform draws by the sampler, of which a share is replaced by tasks of the pool. `look` fills the pool."""

    tasks: TaskSampler
    settings: FailureConfig
    seed: int
    memory: list[Failure] = field(default_factory=list)
    """Oldest first."""
    pool: dict[str, float] = field(default_factory=dict)
    """Task id -> weight of being drawn."""
    passed: dict[str, int] = field(default_factory=dict)
    """Task id of the pool -> groups in a row without a failure."""
    looked: int = 0
    """Step of the last look."""

    def draw(self, step: int, count: int) -> tuple[list[Task], int]:
        """The tasks of a step and how many of them come from the pool. No task of the pool is drawn twice in a step."""
        drawn = self.tasks.draw(step, count)
        rng = rng_for(self.seed, purpose="failure curriculum", step=step)
        by_id = {task.id: task for task in self.tasks.tasks}
        left = {task: weight for task, weight in self.pool.items() if task in by_id}
        replaced = 0
        for place in range(count):
            if rng.random() < self.settings.share and left:
                (task,) = rng.choices(list(left), list(left.values()))
                del left[task]
                drawn[place] = by_id[task]
                replaced += 1
        return drawn, replaced

    def record(self, played: Sequence[Trajectory], failures: Sequence[Failure]) -> None:
        """Take in a step: its failures, and which tasks of the pool were solved by all their rollouts."""
        groups: dict[str, tuple[str, bool]] = {}
        for t in played:
            groups[t.group] = (t.task.id, groups.get(t.group, (t.task.id, True))[1] and t.success)
        for task, solved in groups.values():
            if task in self.pool:
                self.passed[task] = self.passed.get(task, 0) + 1 if solved else 0
                if self.passed[task] >= self.settings.solved_after:
                    del self.pool[task], self.passed[task]
                    self.memory = [f for f in self.memory if f.task != task]  # what was solved is not brought back
        self.memory += failures
        while len(self.memory) > self.settings.capacity:
            most, _ = Counter(f.mode for f in self.memory).most_common(1)[0]
            del self.memory[next(i for i, f in enumerate(self.memory) if f.mode == most)]

    def due(self, step: int) -> bool:
        return (step + 1) % self.settings.every == 0

    def look(self, step: int, select: Select) -> int:
        """Let old weights fall and bring in tasks whose earlier failures are like the most frequent ones since the last look.

        Before there are earlier ones, those since the last look themselves. Returns how many were selected.
        """
        s = self.settings
        self.pool = {task: weight * s.decay for task, weight in self.pool.items() if weight * s.decay >= s.floor}
        window = [f for f in self.memory if f.step >= self.looked and f.mode]
        counts = Counter(f.mode for f in window)
        newest_first = [f for f in self.memory if f.step < self.looked][::-1] or window[::-1]
        selected = 0
        for mode, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: s.modes]:
            own = [f for f in newest_first if f.mode == mode]
            others = [f for f in newest_first if f.mode != mode]
            now = [f for f in window if f.mode == mode]
            for failure in select(mode, now, [*own, *others][: s.shortlist], s.per_mode):
                weight = (count / len(window)) ** (1 / s.focus)
                self.pool[failure.task] = max(self.pool.get(failure.task, 0.0), weight)
                selected += 1
        self.passed = {task: count for task, count in self.passed.items() if task in self.pool}
        self.looked = step + 1
        return selected

    def state(self) -> dict[str, Any]:
        return {
            "memory": [asdict(f) for f in self.memory],
            "pool": self.pool,
            "passed": self.passed,
            "looked": self.looked,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.memory = [Failure(**row) for row in state["memory"]]
        self.pool = dict(state["pool"])
        self.passed = dict(state["passed"])
        self.looked = state["looked"]
