"""How episodes that run side by side take their turns: all together, or each as soon as it can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from gongfu.core.errors import EngineError, EnvError
from gongfu.core.records import Call, Task
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.runner import EnvRunner
from gongfu.rollout.actor import Actor, Ask

Kind = Literal["reset", "step", "answer"]
_ORDER: tuple[Kind, ...] = ("reset", "step", "answer")


class Desk(Protocol):
    """Where the coroutines of running episodes ask for what they need."""

    async def reset(self, key: str, task: Task) -> Observation | EnvError: ...
    async def step(self, key: str, action: str) -> Step | EnvError: ...
    async def answer(self, ask: Ask) -> Call | EngineError: ...
    async def release(self, key: str) -> None:
        """The episode is over."""
        ...

    async def leave(self) -> None:
        """One coroutine less asks."""
        ...

    def limit(self, seconds: float) -> asyncio.Timeout:
        """Raises TimeoutError in its body when that takes longer; 0 = no limit."""
        ...

    def close(self) -> None: ...


class Together:
    """Waits until every running episode asks for something: prompts are one batch, and so are actions.

    What is in a batch depends on nothing but the episodes, so a run repeats itself exactly; best where the engine is in this
    process. New episodes begin first, then actions are taken, then prompts are answered.
    """

    def __init__(self, runner: EnvRunner, actor: Actor, seats: int) -> None:
        self.runner, self.actor = runner, actor
        self._seats = seats
        self._asked: dict[Kind, list[tuple[Any, asyncio.Future[Any]]]] = {k: [] for k in _ORDER}

    async def reset(self, key: str, task: Task) -> Observation | EnvError:
        return await self._join("reset", (key, task))

    async def step(self, key: str, action: str) -> Step | EnvError:
        return await self._join("step", (key, action))

    async def answer(self, ask: Ask) -> Call | EngineError:
        return await self._join("answer", ask)

    async def release(self, key: str) -> None:
        self.runner.release([key])

    async def leave(self) -> None:
        self._seats -= 1
        await self._serve()

    def limit(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(None)  # nobody can be called back from a batch; the clock is looked at between turns

    def close(self) -> None:
        pass

    async def _join(self, kind: Kind, what: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._asked[kind].append((what, future))
        await self._serve()
        return await future

    async def _serve(self) -> None:
        """The last one to ask serves them all."""
        if not self._seats or sum(map(len, self._asked.values())) < self._seats:
            return
        kind: Kind = next(k for k in _ORDER if self._asked[k])
        asked, self._asked[kind] = self._asked[kind], []
        answers = await self._answers(kind, [what for what, _ in asked])
        for (_, future), answer in zip(asked, answers, strict=True):
            future.set_result(answer)

    async def _answers(self, kind: Kind, what: Sequence[Any]) -> Iterable[Any]:
        match kind:
            case "reset":
                return self.runner.reset(dict(what)).values()
            case "step":
                return self.runner.step(dict(what)).values()
            case "answer":
                return await self.actor.answer(what)


class Apart:
    """Every episode goes on as soon as it has its answer: for servers that batch what comes, and for slow environments.

    An environment that waits for others' work is asked from a thread of its own, so a hanging one holds up nobody.
    """

    def __init__(self, runner: EnvRunner, actor: Actor, seats: int) -> None:
        self.runner, self.actor = runner, actor
        self._threads = ThreadPoolExecutor(seats, "environment") if runner.waits else None
        self._calls: dict[str, asyncio.Future[Any]] = {}

    async def reset(self, key: str, task: Task) -> Observation | EnvError:
        return await self._call(self.runner.reset, key, task)

    async def step(self, key: str, action: str) -> Step | EnvError:
        return await self._call(self.runner.step, key, action)

    async def answer(self, ask: Ask) -> Call | EngineError:
        return (await self.actor.answer([ask]))[0]

    async def release(self, key: str) -> None:
        """An environment that is still being asked has its own dead-line, and keeps its worker until then."""
        call = self._calls.pop(key, None)
        if call is not None and not call.done():
            await asyncio.wait([call])
        self.runner.release([key])

    async def leave(self) -> None:
        pass

    def limit(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds or None)

    def close(self) -> None:
        if self._threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[[dict[str, Any]], dict[str, Any]], key: str, what: Any) -> Any:
        if self._threads is None:
            return function({key: what})[key]
        call = asyncio.get_running_loop().run_in_executor(self._threads, function, {key: what})
        self._calls[key] = call
        return (await asyncio.shield(call))[key]
