"""What the pool needs of a worker, whatever it is made of, and how it waits for several answers at once."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from gongfu.core.errors import EnvError, EnvTimeout

K = TypeVar("K", bound=Hashable)

START_LIMIT = 120.0
"""Seconds for a worker to start and import the suite."""

Verb = Literal["reset", "step", "close"]
"""What is asked of a worker: a task to begin (payload: the Task), an action (payload: its text), the end of the episode."""


class Failure:
    """Why there is no answer."""

    def __init__(self, what: str, kind: type[EnvError] = EnvError) -> None:
        self.what, self.kind = what, kind


class Worker(ABC):
    """Plays one episode at a time somewhere else; this is our end of the line. One thread uses it at a time.

    A new worker owes the answer that it has loaded the suite. Each request must be answered before the next one is sent.
    """

    handle: Any
    """What is waited for."""
    limit: float
    """Seconds for the answer that is owed, from the sending."""
    deadline: float
    """When they are over, by the monotonic clock."""
    owes: bool
    """Whether an answer is awaited."""

    @abstractmethod
    def send(self, verb: Verb, payload: Any, limit: float) -> None:
        """Ask. Does not wait; that nobody is there is noticed when the answer is awaited."""

    @abstractmethod
    def receive(self) -> Any:
        """The answer that has arrived, or a `Failure`."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether a worker that owes nothing can be asked."""

    @abstractmethod
    def leave(self) -> None:
        """Ask it to close its environment and to end."""

    @abstractmethod
    def kill(self, patience: float = 0.0) -> None:
        """End it and give up what it held; one that was asked to leave has `patience` seconds for it."""

    def expect(self, limit: float) -> None:
        """An answer is owed from now on."""
        self.limit, self.deadline, self.owes = limit, time.monotonic() + limit, True


class Place(Protocol):
    """Where workers are started."""

    def start(self) -> Worker: ...
    def wait(self, handles: Sequence[Any], timeout: float) -> Sequence[Any]:
        """The handles of those that have answered or died, at the latest after `timeout` seconds."""
        ...

    def close(self) -> None:
        """After all workers were killed."""
        ...


def gather(place: Place, waiting: Mapping[K, Worker], patience: float = math.inf) -> dict[K, Any]:
    """The answer of every worker, or a `Failure`; never later than the last dead-line.

    After `patience` seconds those that have not answered are left out.
    """
    keys = {worker.handle: key for key, worker in waiting.items()}
    answers: dict[K, Any] = {}
    until = time.monotonic() + patience
    while left := [worker for key, worker in waiting.items() if key not in answers]:
        timeout = min(until, *(worker.deadline for worker in left)) - time.monotonic()
        ready = place.wait([worker.handle for worker in left], max(0.0, timeout))
        for handle in ready:
            key = keys[handle]
            answers[key] = waiting[key].receive()
        now = time.monotonic()
        for worker in left:
            if worker.owes and worker.deadline <= now:
                answers[keys[worker.handle]] = Failure(
                    f"no answer within {worker.limit:g} s; the worker was killed", EnvTimeout
                )
        if now >= until:
            break
    return answers
