"""The other side of a worker: plays one episode at a time; whatever an environment does becomes an answer."""

from __future__ import annotations

import pickle
import sys
from typing import Any, Literal

from gongfu.core.errors import EnvError
from gongfu.envs.answers import describe, plain_observation, plain_step
from gongfu.envs.protocol import Env, Suite, prepare
from gongfu.envs.worker import Verb

Answer = tuple[Literal["ok", "error"], Any]
"""An observation, a step or None; or what went wrong, in words."""


class Player:
    """Raises EnvError for a suite that cannot be loaded here."""

    def __init__(self, suite: bytes) -> None:
        try:
            self._suite: Suite = pickle.loads(suite)
        except BaseException as e:
            raise EnvError(f"the suite cannot be loaded in a worker: {describe(e)}") from e
        try:
            prepare(self._suite)
        except BaseException as e:
            raise EnvError(f"the suite cannot be prepared in a worker: {describe(e)}") from e
        self._env: Env | None = None

    def answer(self, verb: Verb, payload: Any) -> Answer:
        try:
            if verb == "reset":
                self._env = self._suite.make(payload)
                return "ok", plain_observation(self._env.reset())
            if verb == "step":
                assert self._env is not None
                return "ok", plain_step(self._env.step(payload))
            self.close()
            return "ok", None
        except BaseException as e:  # also SystemExit: whatever an environment does is its episode's end
            return "error", describe(e)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None


def print_anything() -> None:
    """No environment shall fail for what it prints."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(line_buffering=True, errors="backslashreplace")
