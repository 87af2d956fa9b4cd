"""One running episode: what it has seen and said, and the record that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gongfu.core.errors import EngineError, EnvError, EnvTimeout
from gongfu.core.records import Call, Stop, Task, Trajectory, Turn
from gongfu.envs.protocol import Observation, Step
from gongfu.rollout.actions import ParsedAction
from gongfu.rollout.context import Context


@dataclass(frozen=True, slots=True)
class Start:
    """An episode that is to be played."""

    id: str
    group: str
    task: Task
    rollout: int
    skills: Mapping[str, str]
    """Id -> text of the skills that it is shown."""


@dataclass
class Episode:
    """An episode between its first observation and its end."""

    start: Start
    context: Context
    begun: float
    """By the monotonic clock, in seconds: when it was first begun."""
    restarts: int = 0
    observation: Observation = field(default_factory=lambda: Observation(""))
    turns: list[Turn] = field(default_factory=list)

    def see(self, observation: Observation) -> None:
        self.observation = observation
        self.context.see(observation)

    def advance(self, call: Call, parsed: ParsedAction, answer: Step, max_steps: int) -> Stop | None:
        """Take a turn; why the episode is over, or None."""
        shown = self.observation
        self.turns.append(Turn(shown.text, shown.actions, call, parsed.action, parsed.validity, answer.reward, shown.facts))
        self.observation = answer.observation
        if answer.terminated:
            return "terminated"
        if answer.truncated or len(self.turns) >= max_steps:
            return "truncated"
        self.context.say(call.response, parsed.action)
        self.context.see(answer.observation)
        return None

    def end(self, last: Step | None, stop: Stop, error: str = "") -> Trajectory:
        success = last is not None and last.outcome == "success"
        score = last.score if last is not None and last.score is not None else float(success)
        return Trajectory(
            id=self.start.id,
            task=self.start.task,
            group=self.start.group,
            skills=tuple(self.start.skills),
            turns=tuple(self.turns),
            final_observation=self.observation.text,
            outcome="success" if success else "failure",
            score=score,
            stop=stop,
            error=error,
            restarts=self.restarts,
        )

    def lost(self, error: EnvError | EngineError) -> Trajectory:
        return self.end(None, "timeout" if isinstance(error, EnvTimeout) else "error", str(error))
