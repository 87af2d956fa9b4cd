"""Plays B tasks x G rollouts side by side; an episode that ends makes room for the next one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from gongfu.core.errors import EngineError, EnvError, EnvTimeout
from gongfu.core.records import Call, Task, Trajectory
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.runner import EnvRunner
from gongfu.rollout.actions import ParsedAction, parse_action
from gongfu.rollout.actor import Actor, Ask
from gongfu.rollout.context import Context, TextRules
from gongfu.rollout.desk import Apart, Desk, Together
from gongfu.rollout.episode import Episode, Start

T = TypeVar("T")


@dataclass(frozen=True)
class Collector:
    """Plays episodes of one suite under one set of text rules.

    An environment that fails is begun anew from the task's seed, never its step repeated, `retries` times. One that fails
    still, or an engine that fails for one prompt, costs that episode: it is returned with stop "error" or "timeout" and the
    message, and methods leave it out of their statistics.
    """

    runner: EnvRunner
    tokenizer: Tokenizer
    rules: TextRules
    instructions: str
    max_steps: int
    max_tokens: int
    """An episode whose next prompt would reach this many tokens stops with "context"."""
    schedule: Literal["together", "apart"] = "together"
    """How episodes take their turns; see `gongfu.rollout.desk`."""
    retries: int = 0
    episode_timeout: float = 0.0
    """Seconds that an episode may take, with its new beginnings; then it is lost. 0 = no limit."""

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
        shown = skills or [{}] * len(tasks)
        return wait(self._play(actor, step, _starts(tasks, group_size, step, shown, withheld), concurrency))

    async def _play(self, actor: Actor, step: int, starts: Sequence[Start], concurrency: int) -> list[Trajectory]:
        seats = min(concurrency, self.runner.capacity or concurrency, len(starts))
        desk: Desk = (Together if self.schedule == "together" else Apart)(self.runner, actor, seats)
        waiting, done = deque(starts), dict[str, Trajectory]()

        async def seat() -> None:
            while waiting:
                start = waiting.popleft()
                done[start.id] = await self._episode(start, desk, step)
            await desk.leave()

        players = [asyncio.ensure_future(seat()) for _ in range(seats)]
        try:
            await asyncio.gather(*players)
        finally:
            for player in players:
                player.cancel()
            await asyncio.gather(*players, return_exceptions=True)
            desk.close()
        return [done[start.id] for start in starts]

    async def _episode(self, start: Start, desk: Desk, step: int) -> Trajectory:
        """Play an episode to its end, from its seed again where the environment fails."""
        begun = time.monotonic()
        episode, clock = self._new(start, begun, 0), desk.limit(self.episode_timeout)
        try:
            async with clock:
                for restarts in range(self.retries + 1):
                    episode = self._new(start, begun, restarts)
                    try:
                        return await self._turns(episode, desk, step)
                    except _EnvFailed as e:
                        if restarts == self.retries or self._late(episode):
                            return episode.lost(e.error)
        except TimeoutError:
            if not clock.expired():
                raise
        finally:
            await desk.release(start.id)
        return episode.lost(self._too_late(episode))

    async def _turns(self, episode: Episode, desk: Desk, step: int) -> Trajectory:
        """From the first observation to the end. Raises _EnvFailed where the environment does not go on."""
        start = episode.start
        episode.see(_right(await desk.reset(start.id, start.task)))
        while True:
            prompt = episode.context.prompt()
            if len(prompt) >= self.max_tokens:
                return episode.end(None, "context")
            if self._late(episode):
                raise _EnvFailed(self._too_late(episode))
            ask = Ask(start.id, start.task, len(episode.turns), start.rollout, step, prompt, episode.observation)
            call = await desk.answer(ask)
            if isinstance(call, EngineError):
                return episode.lost(call)
            parsed = self._parse(episode, call)
            answer = _right(await desk.step(start.id, parsed.action))
            if stop := episode.advance(call, parsed, answer, self.max_steps):
                return episode.end(answer, stop)

    def _new(self, start: Start, begun: float, restarts: int) -> Episode:
        system = self.rules.system(self.instructions)
        context = Context(self.rules, self.tokenizer, start.task, system, tuple(start.skills.values()))
        return Episode(start, context, begun, restarts)

    def _late(self, episode: Episode) -> bool:
        return bool(self.episode_timeout) and time.monotonic() - episode.begun >= self.episode_timeout

    def _too_late(self, episode: Episode) -> EnvTimeout:
        return EnvTimeout(f"episode {episode.start.id} took longer than {self.episode_timeout:g} s (rollout.episode_timeout)")

    def _parse(self, episode: Episode, call: Call) -> ParsedAction:
        finished = call.stop != "length"
        ends = finished and bool(call.response) and call.response[-1] in self.tokenizer.stop_ids
        text = self.tokenizer.decode(call.response[:-1] if ends else call.response)
        return parse_action(self.rules.format, text, finished=finished, admissible=episode.observation.actions)


def _starts(
    tasks: Sequence[Task], group_size: int, step: int, skills: Sequence[Mapping[str, str]], withheld: int
) -> list[Start]:
    seen: dict[str, int] = {}
    starts = []
    for task, shown in zip(tasks, skills, strict=True):
        seen[task.id] = again = seen.get(task.id, 0) + 1
        group = f"{step:06d}:{task.id}" + (f"~{again}" if again > 1 else "")
        for n in range(group_size):
            own = shown if n < group_size - withheld else {}
            starts.append(Start(f"{group}:{n}", group, task, n + (again - 1) * group_size, own))
    return starts


class _EnvFailed(Exception):
    """What an environment answered in place of a step. An EnvError that a runner *raises* ends the whole collection."""

    def __init__(self, error: EnvError) -> None:
        self.error = error


def _right(answer: T | EnvError) -> T:
    if isinstance(answer, EnvError):
        raise _EnvFailed(answer)
    return answer


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
