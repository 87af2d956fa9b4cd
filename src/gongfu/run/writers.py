"""Who writes the texts of taught proposals: the suite's scripted teacher, or a chat model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, Field

from gongfu.core.records import Task, Trajectory
from gongfu.engine.chat import ChatClient, ChatError, ChatRequest
from gongfu.envs.protocol import Suite
from gongfu.rollout.collector import wait


@dataclass(frozen=True)
class Lesson:
    """What a text is wanted for."""

    task: Task
    win: Trajectory
    loss: Trajectory
    shown: str
    """Text of the skill that both episodes were shown, "" = none."""
    quality: str
    """"good", "wrong", "vague" or "instance": what the policy has to meet before it can learn which is worth something."""
    rng: random.Random


class Writer(Protocol):
    def write(self, lessons: Sequence[Lesson]) -> list[str]:
        """One text a lesson, in order; "" where there is none."""
        ...


@dataclass
class ScriptedWriter:
    """The suite's own teacher (`advise`)."""

    suite: Suite

    def write(self, lessons: Sequence[Lesson]) -> list[str]:
        teach = self.suite.advise  # type: ignore[attr-defined]
        return [teach(x.task, x.quality, x.rng, seen=[turn.action for turn in x.win.turns]).text for x in lessons]


class SkillText(BaseModel):
    """What a chat model answers."""

    comparison: str = Field(min_length=1)
    text: str = Field(min_length=1)


@dataclass
class ChatWriter:
    """A chat model that reads both episodes. Raises the first ChatError when it answers nothing at all."""

    client: ChatClient

    def write(self, lessons: Sequence[Lesson]) -> list[str]:
        requests = [ChatRequest([{"role": "user", "content": _brief(lesson)}], SkillText) for lesson in lessons]
        answers = wait(self.client.complete_many(requests)) if requests else []
        failed = [answer for answer in answers if isinstance(answer, ChatError)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        return ["" if isinstance(answer, ChatError) else " ".join(answer.parsed.text.split()) for answer in answers]


_KINDS = {
    "good": "Say what made the difference, so that it carries over to other episodes.",
    "wrong": "Make it plausible, clear and wrong: it should send the agent somewhere that the episodes speak against.",
    "vague": "Make it true and of no use: say nothing that an agent could act on.",
    "instance": "Tie it to this one episode: name its numbered things, so that it helps nowhere else.",
}
_BRIEF = (
    "An agent is shown a skill with a task: one or two sentences that say when they apply and what to do. Below are two "
    "episodes of one task that ended differently, and the skill that both were shown, if any. First compare the episodes, "
    "then write a skill."
)


def _brief(lesson: Lesson) -> str:
    data = {
        "task": lesson.task.goal,
        "start": lesson.win.turns[0].observation,
        "successful actions": [turn.action for turn in lesson.win.turns],
        "failed actions": [turn.action for turn in lesson.loss.turns],
        "shown skill": lesson.shown or None,
    }
    return f"{_BRIEF} {_KINDS[lesson.quality]}\n{json.dumps(data, ensure_ascii=False)}"
