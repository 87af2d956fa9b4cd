"""Ray, started on this machine or joined. A process has one Ray: who comes later shares it, and the last who leaves ends it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_STORE = 256 * 2**20  # bytes of the object store of a Ray of our own: what passes through it is small


@dataclass
class _Connection:
    """The Ray of this process, as far as it was started or joined here."""

    users: int = 0
    ours: bool = False
    elsewhere: bool = False


_connection = _Connection()
_lock = threading.Lock()


def prepare(*, loopback: bool) -> None:
    """Set what Ray reads once, when it is imported. What the user has set stays.

    `loopback`: all ports of a Ray started here are bound to 127.0.0.1, and it cannot reach other machines.
    """
    wanted = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # 15 would give workers nothing beside other jobs
    if loopback:
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # works on Linux too
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


class Cluster:
    """One user's hold on the Ray of this process.

    Where none is connected, the Ray at `address` is joined ("auto": the one of this machine), or without an address one is
    started on this machine, with `cpus` CPUs to give away (None = as many as there are). Its workers get the environment's
    `variables` and this process's module path. Call `prepare` and import Ray before.
    """

    def __init__(self, *, address: str, cpus: int | None, variables: Sequence[str] = ()) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        self.ray: Any = ray
        self._held = True
        with _lock:
            if not ray.is_initialized():
                _init(ray, address, cpus, variables)
                _connection.users, _connection.ours, _connection.elsewhere = 0, True, bool(address)
            _connection.users += 1
            self.here = _connection.ours and not _connection.elsewhere
            """Whether Ray was started here: every process of it is on this machine and ends with it."""

    def close(self) -> None:
        """Give up the hold; the last one ends Ray, or leaves the one that was joined. Idempotent."""
        with _lock:
            if not self._held:
                return
            self._held = False
            _connection.users -= 1
            if _connection.ours and not _connection.users:
                _connection.ours = False
                self.ray.shutdown()


def _init(ray: Any, address: str, cpus: int | None, variables: Sequence[str]) -> None:
    environment = {name: os.environ[name] for name in variables if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "runtime_env": {"env_vars": environment}}
    if address:
        ray.init(address=address, **options)
    else:
        ray.init(include_dashboard=False, object_store_memory=_STORE, num_cpus=cpus, **options)
