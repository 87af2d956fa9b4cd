"""Who answers a prompt: the model, or a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

from gongfu.core.errors import EngineError
from gongfu.core.records import Call, Task
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.protocol import Engine, SampleRequest, Tokenizer
from gongfu.envs.protocol import Expert, Observation
from gongfu.rollout.actions import ActionFormat, write_action
from gongfu.rollout.rows import NOISE


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt of one running episode."""

    episode: str
    task: Task
    turn: int
    rollout: int
    step: int
    prompt: tuple[int, ...]
    observation: Observation


class Actor(Protocol):
    """Answers a batch of prompts, in order. An EngineError in place of a call costs that episode."""

    async def answer(self, asks: Sequence[Ask]) -> list[Call | EngineError]: ...


@dataclass(frozen=True)
class ModelActor:
    """A role of the policy, sampled by the engine."""

    engine: Engine
    adapter: str | None
    seed: int
    role: str = "actor"
    purpose: str = "sample"
    """Part of the seed: evaluation and training never share random numbers."""
    mode: Literal["generate", "choose"] = "generate"
    format: ActionFormat = "plain"
    temperature: float = 1.0
    max_tokens: int = 32
    sessions: bool = True
    """Whether the prompts of an episode extend each other, so that the engine may keep their attention cache."""

    async def answer(self, asks: Sequence[Ask]) -> list[Call | EngineError]:
        results = await self.engine.sample([self._request(ask) for ask in asks])
        return [self._call(ask, result) for ask, result in zip(asks, results, strict=True)]

    def _request(self, ask: Ask) -> SampleRequest:
        choices = None
        if self.mode == "choose" and ask.observation.actions is not None:
            choices = tuple(_response(self.engine.tokenizer, self.format, action) for action in ask.observation.actions)
        return SampleRequest(
            prompt=ask.prompt,
            adapter=self.adapter,
            seed=seed_for(
                self.seed, purpose=f"{self.purpose}/{ask.turn}", step=ask.step, task=ask.task.id, rollout=ask.rollout
            ),
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            session=ask.episode if self.sessions else None,
            choices=choices,
        )

    def _call(self, ask: Ask, result: list | EngineError) -> Call | EngineError:
        if isinstance(result, EngineError):
            return result
        sample = result[0]
        return Call(
            role=self.role,
            adapter=self.adapter,
            policy_version=sample.version,
            prompt=ask.prompt,
            response=sample.tokens,
            logprobs=sample.logprobs,
            text=self.engine.tokenizer.decode(sample.tokens),
            stop=sample.stop,
            temperature=self.temperature or 1.0,
            choice=sample.drawn_from,
        )


ExpertFor = Callable[[Task, int], Expert]


@dataclass
class ScriptedActor:
    """A scripted expert for each episode, writing its actions by the same text rules as the model.

    An action that the expert took at random (its `explored` flag) is a call of role "noise": nothing to imitate.
    """

    tokenizer: Tokenizer
    expert_for: ExpertFor
    """(task, rollout number) -> a fresh expert."""
    role: str = "expert"
    format: ActionFormat = "plain"
    _experts: dict[str, Expert] = field(default_factory=dict)

    async def answer(self, asks: Sequence[Ask]) -> list[Call | EngineError]:
        return [self._call(ask) for ask in asks]

    def _call(self, ask: Ask) -> Call:
        if ask.turn == 0:
            self._experts[ask.episode] = self.expert_for(ask.task, ask.rollout)
        expert = self._experts[ask.episode]
        action = expert.act(ask.observation)
        role = NOISE if getattr(expert, "explored", False) else self.role
        response = _response(self.tokenizer, self.format, action)
        return Call(role, None, -1, ask.prompt, response, None, self.tokenizer.decode(response), "stop")


@dataclass
class RandomActor:
    """An expert that takes any admissible action: the other end of the scale, and a source of language for `nano`."""

    task: Task
    rollout: int
    seed: int
    _turn: int = 0

    def act(self, observation: Observation) -> str:
        self._turn += 1
        rng = rng_for(self.seed, purpose="random actor", step=self._turn, task=self.task.id, rollout=self.rollout)
        return rng.choice(observation.actions) if observation.actions else ""


@lru_cache(maxsize=65536)
def _response(tokenizer: Tokenizer, format: ActionFormat, action: str) -> tuple[int, ...]:
    return (*tokenizer.encode(write_action(format, action)), tokenizer.stop_ids[0])
