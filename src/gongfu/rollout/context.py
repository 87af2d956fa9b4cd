"""How an episode becomes prompts: a growing conversation, or the papers' per-turn prompt with the last k turns.

The text rules here are the only ones: cold start, training and evaluation all go through a `Context`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from gongfu.core.errors import TokenError
from gongfu.core.records import Task
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.protocol import Observation
from gongfu.rollout.actions import ActionFormat, instruction

_FIRST, _ANSWER, _NEXT = "\u27e8first\u27e9", "\u27e8answer\u27e9", "\u27e8next\u27e9"
REMINDER = "Your task is to:"
"""How every reminder begins."""


@dataclass(frozen=True, slots=True)
class TextRules:
    """Which texts go into a prompt."""

    context: Literal["append", "window"] = "append"
    window: int = 2
    """Turns of history in a "window" prompt."""
    format: ActionFormat = "plain"
    instructions: bool = True
    """Whether the suite's instructions and the answer format stand in a system message."""
    list_actions: bool = False
    """Whether each observation is followed by the admissible actions."""
    remind: bool = False
    """Whether every observation of an appended conversation ends with the task (a window prompt always states it)."""

    def system(self, suite_instructions: str) -> str | None:
        return f"{suite_instructions}\n{instruction(self.format)}" if self.instructions else None

    def observation(self, observation: Observation) -> str:
        if not self.list_actions or observation.actions is None:
            return observation.text
        return f"{observation.text}\nActions: {'; '.join(observation.actions)}"


@dataclass(slots=True)
class Context:
    """The prompts of one episode. `see` an observation, take the `prompt`, `say` the response, and so on."""

    rules: TextRules
    tokenizer: Tokenizer
    task: Task
    system: str | None
    skills: Sequence[str] = ()
    _ids: list[int] = field(default_factory=list)
    _history: list[tuple[str, str]] = field(default_factory=list)
    _open: bool = False

    def see(self, observation: Observation) -> None:
        """Take in what the environment shows."""
        text = self.rules.observation(observation)
        if self.rules.context == "window":
            self._ids = self._encode(self._window_prompt(text))
            self._history.append((observation.text, ""))
        elif not self._ids:
            # Last, so that the prompts of one task share their beginning whatever skill they show.
            self._ids = self._encode("\n".join([text, *self._skills()]))
        else:
            gap = conversation_gap(self.tokenizer, self.system)
            if self._open:
                self._ids.append(self.tokenizer.stop_ids[0])
            if self.rules.remind:
                text += f"\n{reminder(self.task)}"
            self._ids.extend(self.tokenizer.encode(gap[0] + text + gap[1]))

    def prompt(self) -> tuple[int, ...]:
        """Token ids the model is given now."""
        return tuple(self._ids)

    def say(self, response: Sequence[int], action: str) -> None:
        """Take in what the model answered: the sampled ids as they are."""
        if self.rules.context == "window":
            self._history[-1] = (self._history[-1][0], action)
        else:
            self._ids.extend(response)
            self._open = not response or response[-1] not in self.tokenizer.stop_ids

    def _encode(self, user: str) -> list[int]:
        return self.tokenizer.encode(self.tokenizer.render(_messages(self.system, user), generation=True))

    def _skills(self) -> list[str]:
        return [f"Skill: {skill}" for skill in self.skills]

    def _window_prompt(self, text: str) -> str:
        taken = len(self._history)
        if not taken:
            return "\n".join([*self._skills(), text])
        recent = self._history[-self.rules.window :] if self.rules.window else []
        lines = [reminder(self.task), f"You have taken {taken} steps. The last {len(recent)}:"]
        for number, (observation, action) in enumerate(recent, taken - len(recent) + 1):
            lines.append(f"{number}. Observation: {observation} Action: {action}")
        lines.append(f"Now, step {taken + 1}: {text}")
        return "\n".join([*self._skills(), *lines])


def reminder(task: Task) -> str:
    return f"{REMINDER} {task.goal}."


def without_reminder(text: str) -> str:
    """What the environment says in a message that may end with a reminder, of whatever task it reminds.

    >>> without_reminder("The fridge 1 is closed.\\nYour task is to: wash a mug.")
    'The fridge 1 is closed.'
    """
    return f"\n{text}".partition(f"\n{REMINDER}")[0].strip()


def _messages(system: str | None, *turns: str) -> list[dict[str, str]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]


@lru_cache(maxsize=64)
def conversation_gap(tokenizer: Tokenizer, system: str | None) -> tuple[str, str]:
    """The template's text between a response (its end token included) and the next observation, and after that.

    Raises TokenError when the chat template rewrites earlier turns, so that a conversation cannot be appended to.
    """
    head = tokenizer.render(_messages(system, _FIRST), generation=True)
    whole = tokenizer.render(_messages(system, _FIRST, _ANSWER, _NEXT), generation=True)
    end = tokenizer.decode([tokenizer.stop_ids[0]])
    start = head + _ANSWER + end
    if not whole.startswith(start) or _NEXT not in whole:
        raise TokenError(
            "this model's chat template rewrites earlier turns when a conversation grows, so its tokens would change "
            'after they were sampled; set rollout.context = "window"'
        )
    before, _, after = whole[len(start) :].partition(_NEXT)
    return before, after
