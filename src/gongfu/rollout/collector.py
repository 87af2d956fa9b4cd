"""Plays B tasks x G rollouts, batched turn by turn; an episode that ends leaves the batch at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gongfu.core.errors import EngineError, EnvError, EnvTimeout
from gongfu.core.records import Call, Stop, Task, Trajectory, Turn
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.runner import EnvRunner
from gongfu.rollout.actions import ParsedAction, parse_action
from gongfu.rollout.actor import Actor, Ask
from gongfu.rollout.context import Context, TextRules

T = TypeVar("T")


@dataclass
class _Episode:
    id: str
    group: str
    rollout: int
    context: Context
    observation: Observation
    skills: tuple[str, ...]
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Collector:
    """Plays episodes of one suite under one set of text rules.

    An environment that fails, or an engine that fails for one prompt, costs that episode: it is returned with stop
    "error" or "timeout" and the message, and methods leave it out of their statistics.
    """

    runner: EnvRunner
    tokenizer: Tokenizer
    rules: TextRules
    instructions: str
    max_steps: int
    max_tokens: int
    """An episode whose next prompt would reach this many tokens stops with "context"."""

    def collect(
        self,
        actor: Actor,
        tasks: Sequence[Task],
        *,
        group_size: int = 1,
        step: int = 0,
        skills: Sequence[Mapping[str, str]] | None = None,
        withheld: int = 0,
        concurrency: int = 256,
    ) -> list[Trajectory]:
        """Trajectories in the order of `tasks`, the `group_size` rollouts of a task side by side.

        `skills` holds for each of `tasks` the skills (id -> text) that its rollouts are shown, all but the last `withheld`.
        """
        return wait(
            self.play(
                actor,
                tasks,
                group_size=group_size,
                step=step,
                skills=skills or [{}] * len(tasks),
                withheld=withheld,
                concurrency=concurrency,
            )
        )

    async def play(
        self,
        actor: Actor,
        tasks: Sequence[Task],
        *,
        group_size: int,
        step: int,
        skills: Sequence[Mapping[str, str]],
        withheld: int = 0,
        concurrency: int,
    ) -> list[Trajectory]:
        waiting = self._starts(tasks, group_size, step)
        order = [id for id, _, _, _ in waiting]
        shown = {id: skills[n // group_size] if n % group_size < group_size - withheld else {} for n, id in enumerate(order)}
        done: dict[str, Trajectory] = {}
        running: dict[str, _Episode] = {}
        waiting.reverse()
        limit = min(concurrency, self.runner.capacity or concurrency)
        try:
            while waiting or running:
                fresh = [waiting.pop() for _ in range(min(limit - len(running), len(waiting)))]
                if fresh:
                    self._begin(fresh, shown, running, done)
                self._drop_overlong(running, done)
                if running:
                    await self._turn(actor, step, running, done)
        finally:
            self.runner.release(list(running))
        return [done[id] for id in order]

    def _starts(self, tasks: Sequence[Task], group_size: int, step: int) -> list[tuple[str, str, Task, int]]:
        seen: dict[str, int] = {}
        starts = []
        for task in tasks:
            seen[task.id] = again = seen.get(task.id, 0) + 1
            group = f"{step:06d}:{task.id}" + (f"~{again}" if again > 1 else "")
            starts += [(f"{group}:{rollout}", group, task, rollout + (again - 1) * group_size) for rollout in range(group_size)]
        return starts

    def _begin(
        self,
        fresh: Sequence[tuple[str, str, Task, int]],
        skills: Mapping[str, Mapping[str, str]],
        running: dict[str, _Episode],
        done: dict[str, Trajectory],
    ) -> None:
        first = self.runner.reset({id: task for id, _, task, _ in fresh})
        for id, group, task, rollout in fresh:
            shown = skills[id]
            context = Context(self.rules, self.tokenizer, task, self.rules.system(self.instructions), tuple(shown.values()))
            observation = first[id]
            failed = isinstance(observation, EnvError)
            episode = _Episode(id, group, rollout, context, Observation("") if failed else observation, tuple(shown))
            if failed:
                done[id] = self._lost(episode, observation)
            else:
                context.see(observation)
                running[id] = episode

    def _drop_overlong(self, running: dict[str, _Episode], done: dict[str, Trajectory]) -> None:
        for id, episode in list(running.items()):
            if len(episode.context.prompt()) >= self.max_tokens:
                done[id] = self._end(running.pop(id), None, "context")
                self.runner.release([id])

    async def _turn(self, actor: Actor, step: int, running: dict[str, _Episode], done: dict[str, Trajectory]) -> None:
        asks = [
            Ask(e.id, e.context.task, len(e.turns), e.rollout, step, e.context.prompt(), e.observation)
            for e in running.values()
        ]
        calls: dict[str, Call] = {}
        for ask, answer in zip(asks, await actor.answer(asks), strict=True):
            if isinstance(answer, EngineError):
                done[ask.episode] = self._lost(running.pop(ask.episode), answer)
                self.runner.release([ask.episode])
            else:
                calls[ask.episode] = answer
        parsed = {id: self._parse(running[id], call) for id, call in calls.items()}
        answers = self.runner.step({id: p.action for id, p in parsed.items()})
        for id, answer in answers.items():
            if isinstance(answer, EnvError):
                done[id] = self._lost(running.pop(id), answer)
            else:
                self._advance(id, calls[id], parsed[id], answer, running, done)

    def _advance(
        self, id: str, call: Call, parsed: ParsedAction, answer: Step, running: dict[str, _Episode], done: dict[str, Trajectory]
    ) -> None:
        episode = running[id]
        shown = episode.observation
        episode.turns.append(Turn(shown.text, shown.actions, call, parsed.action, parsed.validity, answer.reward, shown.facts))
        episode.observation = answer.observation
        if answer.terminated:
            stop: Stop | None = "terminated"
        elif answer.truncated or len(episode.turns) >= self.max_steps:
            stop = "truncated"
        else:
            stop = None
            episode.context.say(call.response, parsed.action)
            episode.context.see(answer.observation)
        if stop:
            done[id] = self._end(running.pop(id), answer, stop)
            self.runner.release([id])

    def _parse(self, episode: _Episode, call: Call) -> ParsedAction:
        finished = call.stop != "length"
        ends = finished and bool(call.response) and call.response[-1] in self.tokenizer.stop_ids
        text = self.tokenizer.decode(call.response[:-1] if ends else call.response)
        return parse_action(self.rules.format, text, finished=finished, admissible=episode.observation.actions)

    def _end(self, episode: _Episode, last: Step | None, stop: Stop, error: str = "") -> Trajectory:
        success = last is not None and last.outcome == "success"
        score = last.score if last is not None and last.score is not None else float(success)
        return Trajectory(
            id=episode.id,
            task=episode.context.task,
            group=episode.group,
            skills=episode.skills,
            turns=tuple(episode.turns),
            final_observation=episode.observation.text,
            outcome="success" if success else "failure",
            score=score,
            stop=stop,
            error=error,
        )

    def _lost(self, episode: _Episode, error: EnvError | EngineError) -> Trajectory:
        return self._end(episode, None, "timeout" if isinstance(error, EnvTimeout) else "error", str(error))


def lost(trajectory: Trajectory) -> bool:
    """Whether the episode failed for a reason that is not the agent's."""
    return trajectory.stop in ("error", "timeout")


def wait(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also from inside a running event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as e:
            failure.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
