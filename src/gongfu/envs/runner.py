"""Plays many episodes by key. An environment that fails costs its own episode and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gongfu.core.errors import EnvError
from gongfu.core.records import Task
from gongfu.envs.answers import describe, plain_observation, plain_step
from gongfu.envs.protocol import Env, Observation, Step, Suite

_log = logging.getLogger(__name__)


@runtime_checkable
class EnvRunner(Protocol):
    """Plays episodes by key.

    A key names a running episode from `reset` to `release`. An episode for which an EnvError was returned is over and its
    key free. Dictionaries come back in the order of the argument. Raises EnvError (for the whole call, before anything is
    done) only for a mistake of the caller: a key that runs already, a step of a key that does not run, too many episodes.

    Several threads may call at once for different keys; a call waits for its own environments and for no others. `close` comes
    after all calls.
    """

    capacity: int | None
    """Most episodes at a time, None = any number."""
    waits: bool
    """Whether a call waits for work that is done elsewhere, in another process."""

    def reset(self, tasks: Mapping[str, Task]) -> dict[str, Observation | EnvError]: ...
    def step(self, actions: Mapping[str, str]) -> dict[str, Step | EnvError]: ...
    def release(self, keys: Iterable[str]) -> None:
        """Close these episodes. Keys that do not run are ignored."""
        ...

    def close(self) -> None:
        """Close everything; idempotent."""
        ...


@dataclass
class Episode:
    """What a runner knows of a running episode."""

    key: str
    task: Task
    steps: int = 0
    """Steps begun, including the one being answered."""

    def error(self, what: str, kind: type[EnvError] = EnvError) -> EnvError:
        when = f"step {self.steps}" if self.steps else "reset"
        return kind(f"{self.task.suite} environment of task {self.task.id} (episode {self.key}), {when}: {what}")


def check_keys(running: Container[str], *, new: Iterable[str] = (), known: Iterable[str] = ()) -> None:
    """Raises EnvError if one of `new` runs already or one of `known` does not run."""
    if twice := [key for key in new if key in running]:
        raise EnvError(f"episode {twice[0]!r} is running already; release it before its key is used again")
    if unknown := [key for key in known if key not in running]:
        raise EnvError(f"episode {unknown[0]!r} is not running: it was never reset, was released, or has failed")


class InlineRunner:
    """Plays in this process, one environment after the other: for suites that neither crash nor hang.

    An exception of an environment becomes the EnvError of its key; see `EnvRunner`. Environments play in the thread that calls:
    what they share must bear several, if several call.
    """

    capacity: int | None = None
    waits = False

    def __init__(self, suite: Suite) -> None:
        self.suite = suite
        self._running: dict[str, tuple[Episode, Env]] = {}

    def reset(self, tasks: Mapping[str, Task]) -> dict[str, Observation | EnvError]:
        check_keys(self._running, new=tasks)
        return {key: self._reset(Episode(key, task)) for key, task in tasks.items()}

    def _reset(self, episode: Episode) -> Observation | EnvError:
        env = None
        try:
            env = self.suite.make(episode.task)
            observation = plain_observation(env.reset())
        except Exception as e:
            if env is not None:
                self._close(episode, env)
            return _failed(episode, e)
        self._running[episode.key] = (episode, env)
        return observation

    def step(self, actions: Mapping[str, str]) -> dict[str, Step | EnvError]:
        check_keys(self._running, known=actions)
        return {key: self._step(*self._running[key], action) for key, action in actions.items()}

    def _step(self, episode: Episode, env: Env, action: str) -> Step | EnvError:
        episode.steps += 1
        try:
            return plain_step(env.step(action))
        except Exception as e:
            del self._running[episode.key]
            self._close(episode, env)
            return _failed(episode, e)

    def release(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self._running:
                self._close(*self._running.pop(key))

    def close(self) -> None:
        self.release(list(self._running))

    def _close(self, episode: Episode, env: Env) -> None:
        try:
            env.close()
        except Exception as e:  # the episode is over: nothing is lost but the resource
            _log.warning("%s", episode.error(f"close() failed: {describe(e)}"))

    def __enter__(self) -> InlineRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _failed(episode: Episode, cause: Exception) -> EnvError:
    error = episode.error(describe(cause))
    error.__cause__ = cause
    return error
