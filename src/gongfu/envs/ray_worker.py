"""Workers that are Ray actors, on this machine or on a cluster's."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

from gongfu.core.cluster import Cluster, prepare
from gongfu.core.errors import EnvError, MissingExtra
from gongfu.envs.answers import describe
from gongfu.envs.player import Answer, Player, print_anything
from gongfu.envs.worker import START_LIMIT, Failure, Verb, Worker

_log = logging.getLogger(__name__)

_CPUS = 0.1
"""CPUs that Ray sets aside for a worker: text environments mostly wait for the model."""
_PING = 2.0  # seconds for a worker that owes nothing to show that it lives


class RayActors:
    """Starts Ray actors, spread over the nodes.

    Ray sets room aside for all of them at once: EnvError with what is free, where a cluster has not got it and does not grow
    to it within two minutes. The other nodes need the same packages and the suite's module at the same paths; a suite that was
    defined in the main script cannot be loaded.
    """

    def __init__(self, suite: bytes, *, workers: int, address: str) -> None:
        prepare(loopback=not address)
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as e:
            raise MissingExtra("environments as Ray actors", "ray") from e
        own = max(os.cpu_count() or 1, math.ceil(workers * _CPUS))
        try:
            self._cluster = Cluster(address=address, cpus=own)
        except Exception as e:
            raise EnvError(f"Ray could not be {f'joined at {address}' if address else 'started'}: {describe(e)}") from e
        self._ray = ray
        self._room: Any = None
        try:
            self._options = {"scheduling_strategy": self._set_aside(workers), "num_cpus": _CPUS}
            self._suite = ray.put(suite)
        except BaseException:
            self.close()
            raise
        self._class = ray.remote(EnvActor)

    def _set_aside(self, workers: int) -> Any:
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            PlacementGroupSchedulingStrategy,
        )

        ray = self._ray
        self._room = ray.util.placement_group([{"CPU": _CPUS}] * workers, strategy="SPREAD")
        first = min(5.0, START_LIMIT)
        if not self._room.wait(first):
            _log.warning("waiting for Ray to have room for %d environment workers, %g s at most", workers, START_LIMIT)
            if not self._room.wait(START_LIMIT - first):
                free, total = (found().get("CPU", 0.0) for found in (ray.available_resources, ray.cluster_resources))
                raise EnvError(
                    f"Ray has no room for {workers} environment workers of {_CPUS:g} CPUs each: {free:g} of its {total:g} CPUs "
                    "are free; ask for fewer (rollout.workers.count), add nodes, or end what holds the others"
                )
        return PlacementGroupSchedulingStrategy(self._room)

    def start(self) -> RayWorker:
        # A step must not be repeated, and an actor that is started again knows nothing of its episode.
        actor = self._class.options(max_restarts=0, max_task_retries=0, **self._options).remote()
        return RayWorker(self._ray, actor, self._suite)

    def wait(self, handles: Sequence[Any], timeout: float) -> Sequence[Any]:
        return self._ray.wait(list(handles), num_returns=len(handles), timeout=timeout)[0] if handles else []

    def close(self) -> None:
        if self._room is not None:
            self._ray.util.remove_placement_group(self._room)
        self._cluster.close()


class RayWorker(Worker):
    def __init__(self, ray: Any, actor: Any, suite: Any) -> None:
        self._ray, self._actor = ray, actor
        self._left: Any = None
        self.handle = actor.begin.remote(suite)
        self.expect(START_LIMIT)

    def send(self, verb: Verb, payload: Any, limit: float) -> None:
        self.expect(limit)
        self.handle = self._actor.answer.remote(verb, payload)

    def receive(self) -> Any:
        self.owes = False
        try:
            status, value = self._ray.get(self.handle)
        except self._ray.exceptions.RayError as e:
            return Failure(f"the Ray actor died: {_short(e)}")
        return value if status == "ok" else Failure(str(value))

    def alive(self) -> bool:
        try:
            self._ray.get(self._actor.ping.remote(), timeout=_PING)
        except self._ray.exceptions.RayError:
            return False
        return True

    def leave(self) -> None:
        self._left = self._actor.answer.remote("close", None)

    def kill(self, patience: float = 0.0) -> None:
        if self._left is not None:
            self._ray.wait([self._left], timeout=patience)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


def _short(error: BaseException) -> str:
    """Of Ray's pages about a death the line that says why, without its list of common causes."""
    line = str(error).strip().splitlines()[-1].partition(" Some common causes")[0]
    return line.removeprefix("The actor is dead because ")[:400]


class EnvActor:
    """The other side: a process that Ray started, and ends."""

    def begin(self, suite: bytes) -> Answer:
        print_anything()
        try:
            self._player = Player(suite)
        except EnvError as e:
            return "error", str(e)
        return "ok", None

    def answer(self, verb: Verb, payload: Any) -> Answer:
        return self._player.answer(verb, payload)

    def ping(self) -> None:
        """Answered by whoever lives."""
