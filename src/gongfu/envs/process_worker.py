"""Workers that are processes of this machine."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from gongfu.core.errors import EnvError
from gongfu.envs.answers import describe
from gongfu.envs.player import Player, print_anything
from gongfu.envs.worker import START_LIMIT, Failure, Verb, Worker

_GRACE = 10.0  # seconds after its dead-line at which a worker that hangs ends itself, should the parent be gone
_LOG_TAIL = 400  # characters of a dead worker's output that are shown
_lock = threading.RLock()  # multiprocessing looks after all children whenever it starts one: one thread at a time


class Processes:
    """Starts worker processes.

    Workers do not import the main script (nor, so, what it imports) unless the suite was defined there, in which case the
    script needs the usual `if __name__ == "__main__"`. What environments print goes to a file that is read only to explain a
    death. No worker outlives the parent; being daemonic, an environment cannot start `multiprocessing` processes of its own
    (`subprocess` it can).
    """

    def __init__(self, suite: bytes) -> None:
        self._suite = suite
        self._logs = tempfile.TemporaryDirectory(prefix="gongfu-workers-")
        self._started = 0

    def start(self) -> ProcessWorker:
        with _lock:
            self._started += 1
            return ProcessWorker(self._suite, Path(self._logs.name) / f"worker-{self._started}.log")

    def wait(self, handles: Sequence[Any], timeout: float) -> Sequence[Any]:
        return wait(handles, timeout)

    def close(self) -> None:
        self._logs.cleanup()


class ProcessWorker(Worker):
    handle: Connection

    def __init__(self, suite: bytes, log: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.log, self._killed = log, False
        self.handle, theirs = context.Pipe()  # type: ignore[assignment]
        self.process = context.Process(target=_serve, args=(theirs, suite, str(log)), daemon=True, name=log.stem)
        # A pickle holds the names of modules as they are, so no reference to the main script can be missed.
        with contextlib.nullcontext() if b"__main__" in suite else _hidden_main():
            self.process.start()
        theirs.close()
        self.expect(START_LIMIT)

    def send(self, verb: Verb, payload: Any, limit: float) -> None:
        self.expect(limit)
        with contextlib.suppress(OSError):
            self.handle.send((verb, payload, limit + _GRACE))

    def receive(self) -> Any:
        self.owes = False
        try:
            status, value = self.handle.recv()
        except (EOFError, OSError):
            return Failure(f"the worker process {self._death()}")
        except Exception as e:
            return Failure(f"the worker's answer cannot be read: {describe(e)}")
        return value if status == "ok" else Failure(str(value))

    def alive(self) -> bool:
        with _lock:
            return self.process.is_alive()

    def leave(self) -> None:
        self.handle.close()  # the worker reads the end of the file

    def kill(self, patience: float = 0.0) -> None:
        if self._killed:
            return
        self._killed = True
        self.process.join(patience)
        with _lock:
            self.process.kill()
            self.process.join()
            self.process.close()
        self.handle.close()
        self.log.unlink(missing_ok=True)

    def _death(self) -> str:
        with _lock:
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


def _serve(connection: Connection, suite: bytes, log: str) -> None:
    """Answer requests until the line is closed: by the runner, or because the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it closes the line
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    print_anything()
    try:
        player = Player(suite)
    except EnvError as e:
        connection.send(("error", str(e)))
        return
    connection.send(("ok", None))
    while True:
        try:
            verb, payload, last = connection.recv()
        except (EOFError, OSError):
            break
        # A thread of the C runtime: it ends even a process that hangs in native code, when no parent is left to do so.
        faulthandler.dump_traceback_later(last, exit=True, file=output)
        if verb == "reset":
            os.ftruncate(output, 0)
        answer = player.answer(verb, payload)
        faulthandler.cancel_dump_traceback_later()
        try:
            connection.send(answer)
        except OSError:
            break
    faulthandler.dump_traceback_later(_GRACE, exit=True, file=output)
    player.close()
