"""One room: push every box onto a target."""

from __future__ import annotations

from gongfu.core.errors import EnvError
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.sokoban.room import MOVES, Room, State

__all__ = ["GOAL", "SokobanEnv"]

GOAL = "push every box onto a target"
NOT_UNDERSTOOD = "Nothing happens."


class SokobanEnv:
    """One episode. Implements `gongfu.envs.protocol.Env`.

    An observation is the drawn room, so that equal states look equal. A push against a wall changes nothing; any other text
    than the four moves is answered by "Nothing happens." Every action is a step. Outcome "success" when all boxes are on
    targets; truncated after `max_steps` steps. `score="boxes"`: the share of boxes on targets at the end, in place of 1 or 0.
    Rewards are gym-sokoban's: -0.1 a step, 1 for a box that comes onto a target, -1 for one that leaves it, 10 for the last.
    """

    def __init__(
        self, room: Room, start: State, goal: str = GOAL, *, max_steps: int = 15, score: str = "outcome", facts: bool = False
    ) -> None:
        self._room = room
        self._state = start
        self._goal = goal
        self._max_steps = max_steps
        self._score = score
        self._want_facts = facts
        self._phase = "new"
        self._steps = 0

    def reset(self) -> Observation:
        if self._phase != "new":
            raise EnvError(f"a sokoban environment plays one episode; this one is {self._phase}: make a new one")
        self._phase = "running"
        return self._observe(f"Your task is to: {self._goal}.\n")

    def step(self, action: str) -> Step:
        if self._phase != "running":
            raise EnvError(f"cannot step a sokoban environment that is {self._phase}")
        move = action.strip().lower()
        known = move in MOVES
        placed = self._placed()
        if known:
            self._state = self._room.moved(self._state, move)
        self._steps += 1
        seen = self._observe("" if known else f"{NOT_UNDERSTOOD}\n")
        solved = self._room.solved(self._state)
        reward = -0.1 + self._placed() - placed + 10.0 * solved
        if not solved and self._steps < self._max_steps:
            return Step(seen, reward)
        self._phase = "over"
        score = self._placed() / len(self._state.boxes) if self._score == "boxes" else float(solved)
        outcome = "success" if solved else "failure"
        return Step(seen, reward, terminated=solved, truncated=not solved, outcome=outcome, score=score)

    def close(self) -> None:
        self._phase = "closed"

    def _placed(self) -> int:
        """Boxes on targets."""
        return len(self._state.boxes & self._room.targets)

    def _observe(self, before: str) -> Observation:
        return Observation(before + self._room.drawn(self._state), tuple(MOVES), self._facts() if self._want_facts else None)

    def _facts(self) -> tuple[str, ...]:
        """Places as row and column from the top left, beginning with 0."""
        facts = [f"at(player, {self._state.player[0]} {self._state.player[1]})"]
        for r, c in self._state.boxes:
            facts.append(f"{'placed' if (r, c) in self._room.targets else 'unplaced'}(box, {r} {c})")
        return tuple(sorted(facts))
