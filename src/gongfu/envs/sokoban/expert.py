"""A scripted player: reads the drawn room and walks a shortest solution."""

from __future__ import annotations

import random

from gongfu.core.errors import TaskError
from gongfu.envs.protocol import Observation
from gongfu.envs.sokoban.room import MOVES, Room, State, read_room
from gongfu.envs.sokoban.solver import solve

__all__ = ["SokobanExpert"]


class SokobanExpert:
    """Plays one episode. Implements `gongfu.envs.protocol.Expert`.

    `noise` is the probability, at each step, of a random move instead; one that makes the room hopeless is not taken. In a
    room that is hopeless already, and in one too hard for the solver, it moves at random.
    """

    def __init__(self, rng: random.Random, *, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a probability, got {noise}")
        self._rng = rng
        self._noise = noise
        self._plan: list[str] = []
        self._expected: State | None = None
        self.explored = False
        """Whether the last action was random: not a thing to imitate."""

    def act(self, observation: Observation) -> str:
        """The next move. Raises TaskError if the observation shows no room."""
        room, state = _read(observation.text)
        if state != self._expected:
            self._plan = list(solve(room, state) or ())
        self.explored = self._rng.random() < self._noise or not self._plan
        move = self._random(room, state) if self.explored else self._plan.pop(0)
        self._expected = None if self.explored else room.moved(state, move)
        return move

    def _random(self, room: Room, state: State) -> str:
        moves = [*MOVES]
        if self._plan:
            moves = [move for move in moves if solve(room, room.moved(state, move)) is not None]
        return self._rng.choice(moves)


def _read(text: str) -> tuple[Room, State]:
    rows = [line for line in text.splitlines() if line.startswith("#")]
    if not rows:
        raise TaskError(f"the sokoban expert sees no room in {text!r:.80}")
    return read_room(rows)
