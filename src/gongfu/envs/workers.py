"""Environments in workers, processes or Ray actors: one that raises, hangs, dies or talks nonsense costs one episode."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from gongfu.core.errors import EnvError
from gongfu.core.records import Task
from gongfu.envs.answers import describe
from gongfu.envs.protocol import Observation, Step, Suite
from gongfu.envs.runner import Episode, check_keys
from gongfu.envs.worker import Failure, Place, Verb, Worker, gather

_log = logging.getLogger(__name__)

T = TypeVar("T", Observation, Step)

Kind = Literal["process", "ray"]

_PATIENCE = 1.0  # seconds to wait for an environment to be closed before another worker is started in its place
_LEAVE = 2.0  # seconds for all workers to close their environments when the runner is closed


class WorkerRunner:
    """Plays every running episode in a worker of its own; see `gongfu.envs.runner.EnvRunner`.

    `workers` at most, started when needed and used for one episode after the other; more episodes than workers at a time is an
    EnvError of the call (`capacity`). `kind`: processes of this machine (`gongfu.envs.process_worker`) or Ray actors
    (`gongfu.envs.ray_worker`), on the Ray of this process, else that at `ray_address`, else one that is started on the loopback
    interface of this machine and ended by `close`. All requests of a batch are sent before the first answer is awaited, so the
    environments of a batch step in parallel. `reset_timeout` covers make() and reset(), `step_timeout` step() and close(), in
    seconds from the sending. A worker that raises, misses its dead-line (EnvTimeout), dies or answers with what is not a Step
    is killed and replaced; nothing is asked twice.

    The suite is pickled once and must be importable in a fresh process: a class at the top of a module.
    """

    waits = True

    def __init__(
        self,
        suite: Suite,
        *,
        workers: int,
        kind: Kind = "process",
        ray_address: str = "",
        reset_timeout: float = 60.0,
        step_timeout: float = 30.0,
    ) -> None:
        if workers < 1 or reset_timeout <= 0 or step_timeout <= 0:
            raise EnvError(
                f"need at least one worker and positive timeouts, got {workers} workers, {reset_timeout} s and {step_timeout} s"
            )
        self.suite = suite
        self.capacity: int | None = workers
        self._workers = workers
        self._reset_timeout, self._step_timeout = reset_timeout, step_timeout
        self._lock = threading.Lock()  # of what follows; nobody waits for a worker while holding it
        self._alive = 0  # workers: free, of a running or starting episode, or being started
        self._free: list[Worker] = []  # some may owe the answer to "close"
        self._starting: set[str] = set()
        self._running: dict[str, tuple[Episode, Worker]] = {}
        self._closed = False
        self._place = _place(kind, _pickled(suite), workers, ray_address)
        try:
            first = self._take(1)[0]  # a suite that no worker can load is reported now, not once per episode
            if isinstance(first, Failure):
                raise EnvError(f"no worker could be started for suite {suite.name!r}: {first.what}")
        except BaseException:
            self.close()
            raise
        self._free.append(first)

    def reset(self, tasks: Mapping[str, Task]) -> dict[str, Observation | EnvError]:
        self._reserve(tasks)
        try:
            taken = dict(zip(tasks, self._take(len(tasks)), strict=True))
            workers = {key: worker for key, worker in taken.items() if isinstance(worker, Worker)}
            answers: dict[str, Any] = {**taken, **self._ask(workers, "reset", tasks, self._reset_timeout)}
            episodes = {key: Episode(key, task) for key, task in tasks.items()}
            with self._lock:
                self._running |= {key: (episodes[key], worker) for key, worker in workers.items()}
        finally:
            with self._lock:
                self._starting -= tasks.keys()
        return {key: self._settle(episodes[key], answers[key], Observation) for key in tasks}

    def step(self, actions: Mapping[str, str]) -> dict[str, Step | EnvError]:
        with self._lock:
            check_keys(self._running, known=actions)
            asked = {key: self._running[key] for key in actions}
        for episode, _ in asked.values():
            episode.steps += 1
        answers = self._ask({key: worker for key, (_, worker) in asked.items()}, "step", actions, self._step_timeout)
        return {key: self._settle(episode, answers[key], Step) for key, (episode, _) in asked.items()}

    def release(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                if key in self._running:
                    _, worker = self._running.pop(key)
                    worker.send("close", None, self._step_timeout)  # answered while the others go on; awaited when it is reused
                    self._free.append(worker)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            workers = [worker for _, worker in self._running.values()] + self._free
            self._running, self._free = {}, []
        for worker in workers:
            worker.leave()
        deadline = time.monotonic() + _LEAVE
        for worker in workers:
            worker.kill(patience=max(0.0, deadline - time.monotonic()))
        self._place.close()

    def __enter__(self) -> WorkerRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reserve(self, tasks: Mapping[str, Task]) -> None:
        with self._lock:
            if self._closed:
                raise EnvError("this runner is closed")
            known = self._running.keys() | self._starting
            check_keys(known, new=tasks)
            if len(known) + len(tasks) > self._workers:
                raise EnvError(
                    f"{len(tasks)} more episodes beside {len(known)} running ones, but there are {self._workers} workers; "
                    "play fewer at a time (capacity) or ask for more workers"
                )
            self._starting |= tasks.keys()

    def _take(self, count: int) -> list[Worker | Failure]:
        """That many workers that can be asked: free ones, else new ones.

        There are always enough, since no episode that runs or starts has more than one worker.
        """
        with self._lock:
            claimed = self._claim(count)
            self._alive += count - len(claimed)
        fresh: list[Worker] = []
        try:
            fresh += [self._place.start() for _ in range(count - len(claimed))]
            answers = gather(self._place, _owing(claimed), _PATIENCE)
            claimed = self._without_late(claimed)
            answers |= gather(self._place, _owing(claimed))
            good = [worker for worker in claimed if self._usable(worker, answers.get(worker))]
            fresh += [self._place.start() for _ in range(count - len(good) - len(fresh))]
            answers = gather(self._place, _owing(fresh))
        except BaseException:
            self._end([*claimed, *fresh], count)
            raise
        failed = [worker for worker in fresh if isinstance(answers[worker], Failure)]
        self._end(failed, len(failed))
        return [*good, *(answers[worker] if worker in failed else worker for worker in fresh)]

    def _claim(self, most: int) -> list[Worker]:
        """Free workers, those that still close an environment last."""
        owing = _owing(self._free)
        answered = self._place.wait([worker.handle for worker in owing], 0.0)
        claimed = sorted(self._free, key=lambda worker: worker.owes and worker.handle not in answered)[:most]
        self._free = [worker for worker in self._free if worker not in claimed]
        return claimed

    def _without_late(self, claimed: list[Worker]) -> list[Worker]:
        """Give back those that still owe an answer, as far as others may be started in their places.

        So nobody waits for an environment that hangs in close() as long as there is room.
        """
        with self._lock:
            left = list(_owing(claimed))[: max(0, self._workers - self._alive)]
            self._free += left
            self._alive += len(left)
        return [worker for worker in claimed if worker not in left]

    def _usable(self, worker: Worker, answer: Any) -> bool:
        """Whether a free worker has closed its environment and lives; one that has not is killed."""
        if isinstance(answer, Failure):
            _log.warning("an environment of suite %s could not be closed: %s", self.suite.name, answer.what)
        elif worker.alive():
            return True
        worker.kill()
        return False

    def _ask(self, workers: Mapping[str, Worker], verb: Verb, payloads: Mapping[str, Any], limit: float) -> dict[str, Any]:
        try:
            for key, worker in workers.items():
                worker.send(verb, payloads[key], limit)
            return gather(self._place, workers)
        except BaseException:  # Ctrl-C: answers on their way must not be taken for those of later questions
            for key, worker in workers.items():
                self._end([worker], 1, key)
            raise

    def _settle(self, episode: Episode, answer: Any, kind: type[T]) -> T | EnvError:
        if isinstance(answer, kind):
            return answer
        if episode.key in self._running:
            self._end([self._running[episode.key][1]], 1, episode.key)
        if isinstance(answer, Failure):
            return episode.error(answer.what, answer.kind)
        return episode.error(f"the worker answered out of turn with {type(answer).__name__}")

    def _end(self, workers: Iterable[Worker], places: int, key: str | None = None) -> None:
        """Kill these; then as many others may be started, and the key is free."""
        for worker in workers:
            worker.kill()
        with self._lock:
            self._alive -= places
            if key is not None:
                self._running.pop(key, None)


def _owing(workers: Iterable[Worker]) -> dict[Worker, Worker]:
    return {worker: worker for worker in workers if worker.owes}


def _pickled(suite: Suite) -> bytes:
    try:
        return pickle.dumps(suite)
    except Exception as e:
        raise EnvError(
            f"suite {suite.name!r} cannot be sent to a worker ({describe(e)}); define its class at the top of a module and "
            "keep open files and lambdas out of it, or play it in this process (InlineRunner)"
        ) from e


def _place(kind: Kind, suite: bytes, workers: int, ray_address: str) -> Place:
    if kind == "ray":
        from gongfu.envs.ray_worker import RayActors

        return RayActors(suite, workers=workers, address=ray_address)
    from gongfu.envs.process_worker import Processes

    return Processes(suite)
