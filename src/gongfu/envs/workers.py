"""Environments in processes of their own: one that raises, hangs, dies or talks nonsense costs one episode."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from gongfu.core.errors import EnvError, EnvTimeout
from gongfu.core.records import Task
from gongfu.envs.answers import describe, plain_observation, plain_step
from gongfu.envs.protocol import Env, Observation, Step, Suite
from gongfu.envs.runner import Episode, check_keys

_log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

_START_LIMIT = 120.0  # seconds for a process to start and import the suite
_GRACE = 10.0  # seconds after its dead-line at which a worker that hangs ends itself, should the parent be gone
_LOG_TAIL = 400  # characters of a dead worker's output that are shown


class WorkerRunner:
    """Plays every running episode in a process of its own; see `gongfu.envs.runner.EnvRunner`.

    `workers` processes at most, started when needed and used for one episode after the other; more episodes than workers
    at a time is an EnvError of the call (`capacity`). All requests of a batch are sent before the first answer is awaited, so
    the environments of a batch step in parallel. `reset_timeout` covers make() and reset(), `step_timeout` step() and
    close(), in seconds from the sending. A worker that raises, misses its dead-line (EnvTimeout), dies or answers with what is
    not a Step is killed and replaced.

    The suite is pickled once and must be importable in a fresh process: a class at the top of a module. Workers do not import
    the main script (nor, so, what it imports) unless the suite was defined there, in which case the script needs the usual
    `if __name__ == "__main__"`. What environments print goes to a file that is read only to explain a death. No worker outlives
    the parent; being daemonic, an environment cannot start `multiprocessing` processes of its own (`subprocess` it can).
    """

    waits = True

    def __init__(self, suite: Suite, *, workers: int, reset_timeout: float = 60.0, step_timeout: float = 30.0) -> None:
        if workers < 1 or reset_timeout <= 0 or step_timeout <= 0:
            raise EnvError(
                f"need at least one worker and positive timeouts, got {workers} workers, {reset_timeout} s and {step_timeout} s"
            )
        self.suite = suite
        self.capacity: int | None = workers
        self._workers = workers
        self._reset_timeout, self._step_timeout = reset_timeout, step_timeout
        try:
            self._suite = pickle.dumps(suite)
        except Exception as e:
            raise EnvError(
                f"suite {suite.name!r} cannot be sent to a worker process ({describe(e)}); define its class at the top of a "
                "module and keep open files and lambdas out of it, or play it in this process (InlineRunner)"
            ) from e
        self._logs = tempfile.TemporaryDirectory(prefix="gongfu-workers-")
        self._started = 0
        self._idle: list[_Worker] = []
        self._closing: list[_Worker] = []
        self._running: dict[str, tuple[Episode, _Worker]] = {}
        self._closed = False
        first = self._start()  # a suite that no worker can import is reported now, not once per episode
        if isinstance(failure := _gather({0: first})[0], _Failure):
            first.kill()
            self.close()
            raise EnvError(f"no worker could be started for suite {suite.name!r}: {failure.what}")
        self._idle.append(first)

    def reset(self, tasks: Mapping[str, Task]) -> dict[str, Observation | EnvError]:
        check_keys(self._running, new=tasks)
        self._require_open()
        if len(self._running) + len(tasks) > self._workers:
            raise EnvError(
                f"{len(tasks)} more episodes beside {len(self._running)} running ones, but there are {self._workers} workers; "
                "play fewer at a time (capacity) or ask for more workers"
            )
        taken = self._take(tasks)
        episodes = {key: Episode(key, task) for key, task in tasks.items()}
        answers: dict[str, Any] = {}
        for key, worker in taken.items():
            if isinstance(worker, _Failure):
                answers[key] = worker
            else:
                self._running[key] = (episodes[key], worker)
                worker.send("reset", tasks[key], self._reset_timeout)
        answers |= self._await([key for key, worker in taken.items() if isinstance(worker, _Worker)])
        return {key: self._settle(episodes[key], answers[key], Observation) for key in tasks}

    def step(self, actions: Mapping[str, str]) -> dict[str, Step | EnvError]:
        check_keys(self._running, known=actions)
        for key, action in actions.items():
            episode, worker = self._running[key]
            episode.steps += 1
            worker.send("step", action, self._step_timeout)
        episodes = {key: self._running[key][0] for key in actions}
        answers = self._await(actions)
        return {key: self._settle(episodes[key], answers[key], Step) for key in actions}

    def release(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self._running:
                _, worker = self._running.pop(key)
                worker.send("close", None, self._step_timeout)  # answered while the others go on; awaited by the next reset
                self._closing.append(worker)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        workers = [worker for _, worker in self._running.values()] + self._closing + self._idle
        self._running, self._closing, self._idle = {}, [], []
        for worker in workers:
            worker.connection.close()  # the worker reads the end of the file, closes its environment and leaves
        deadline = time.monotonic() + 2.0
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.kill()
        self._logs.cleanup()

    def __enter__(self) -> WorkerRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise EnvError("this runner is closed")

    def _start(self) -> _Worker:
        self._started += 1
        return _Worker(self._suite, Path(self._logs.name) / f"worker-{self._started}.log")

    def _take(self, keys: Iterable[str]) -> dict[str, _Worker | _Failure]:
        """A free worker for every key: of those that are idle, else a new one."""
        for worker, answer in _gather({worker: worker for worker in self._closing}).items():
            if isinstance(answer, _Failure):
                _log.warning("an environment of suite %s could not be closed: %s", self.suite.name, answer.what)
                worker.kill()
            else:
                self._idle.append(worker)
        self._closing = []
        taken: dict[str, _Worker | _Failure] = {}
        fresh: dict[str, _Worker] = {}
        for key in keys:
            while self._idle and not self._idle[-1].process.is_alive():
                self._idle.pop().kill()
            if self._idle:
                taken[key] = self._idle.pop()
            else:
                fresh[key] = self._start()
        for key, answer in _gather(fresh).items():
            taken[key] = answer if isinstance(answer, _Failure) else fresh[key]
            if isinstance(answer, _Failure):
                fresh[key].kill()
        return taken

    def _await(self, keys: Iterable[str]) -> dict[str, Any]:
        asked = {key: self._running[key][1] for key in keys}
        try:
            return _gather(asked)
        except BaseException:  # Ctrl-C: answers on their way must not be taken for those of later questions
            for key, worker in asked.items():
                del self._running[key]
                worker.kill()
            raise

    def _settle(self, episode: Episode, answer: Any, kind: type[K]) -> K | EnvError:
        if isinstance(answer, kind):
            return answer
        if episode.key in self._running:
            self._running.pop(episode.key)[1].kill()
        if isinstance(answer, _Failure):
            return episode.error(answer.what, answer.kind)
        return episode.error(f"the worker answered out of turn with {type(answer).__name__}")


class _Failure:
    """Why there is no answer."""

    def __init__(self, what: str, kind: type[EnvError] = EnvError) -> None:
        self.what, self.kind = what, kind


class _Worker:
    """A process that plays one episode at a time, and our end of the line to it."""

    def __init__(self, suite: bytes, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.log = log
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, suite, str(log)), daemon=True, name=log.stem)
        # A pickle holds the names of modules as they are, so no reference to the main script can be missed.
        with contextlib.nullcontext() if b"__main__" in suite else _hidden_main():
            self.process.start()
        theirs.close()
        self.limit = _START_LIMIT
        self.deadline = time.monotonic() + _START_LIMIT

    def send(self, verb: str, payload: Any, limit: float) -> None:
        self.limit, self.deadline = limit, time.monotonic() + limit
        # A dead worker is noticed when its answer is awaited.
        with contextlib.suppress(OSError):
            self.connection.send((verb, payload, limit + _GRACE))

    def receive(self) -> Any:
        """The answer that has arrived, or a failure."""
        try:
            status, value = self.connection.recv()
        except (EOFError, OSError):
            return _Failure(f"the worker process {self._death()}")
        except Exception as e:
            return _Failure(f"the worker's answer cannot be read: {describe(e)}")
        return value if status == "ok" else _Failure(str(value))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()
        self.log.unlink(missing_ok=True)

    def _death(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            how = "closed its line"
        elif code < 0:
            how = f"was killed by {_signal_name(-code)}"
        else:
            how = f"exited with status {code}"
        tail = self.log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:].strip() if self.log.exists() else ""
        return f"{how}; its last output: {tail!r}" if tail else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _gather(waiting: Mapping[K, _Worker]) -> dict[K, Any]:
    """The answer of every worker, or a `_Failure`; never later than the last dead-line."""
    keys = {worker.connection: key for key, worker in waiting.items()}
    answers: dict[K, Any] = {}
    while len(answers) < len(waiting):
        left = [worker for key, worker in waiting.items() if key not in answers]
        timeout = max(0.0, min(worker.deadline for worker in left) - time.monotonic())
        ready = wait([worker.connection for worker in left], timeout)
        for connection in ready:
            key = keys[connection]  # type: ignore[index]
            answers[key] = waiting[key].receive()
        now = time.monotonic()
        for worker in left:
            key = keys[worker.connection]
            if key not in answers and worker.deadline <= now and worker.connection not in ready:
                answers[key] = _Failure(f"no answer within {worker.limit:g} s; the worker was killed", EnvTimeout)
    return answers


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Starting a process makes it import the main script, unless there is none to be seen."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


# -- the other side


def _serve(connection: Connection, suite_bytes: bytes, log: str) -> None:
    """Answer requests until the line is closed: by the runner, or because the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes the line
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    env: Env | None = None
    try:
        suite: Suite = pickle.loads(suite_bytes)
    except BaseException as e:
        connection.send(("error", f"the suite cannot be loaded in a worker: {describe(e)}"))
        return
    connection.send(("ok", None))
    while True:
        try:
            verb, payload, last = connection.recv()
        except (EOFError, OSError):
            break
        # A thread of the C runtime: it ends even a process that hangs in native code, when no parent is left to do so.
        faulthandler.dump_traceback_later(last, exit=True, file=output)
        try:
            if verb == "reset":
                os.ftruncate(output, 0)
                env = suite.make(payload)
                answer: tuple[str, Any] = ("ok", plain_observation(env.reset()))
            elif verb == "step":
                assert env is not None
                answer = ("ok", plain_step(env.step(payload)))
            else:
                if env is not None:
                    env.close()
                env, answer = None, ("ok", None)
        except BaseException as e:  # also SystemExit: whatever an environment does is its episode's end
            answer = ("error", describe(e))
        faulthandler.cancel_dump_traceback_later()
        try:
            connection.send(answer)
        except OSError:
            break
    if env is not None:
        faulthandler.dump_traceback_later(_GRACE, exit=True, file=output)
        env.close()
