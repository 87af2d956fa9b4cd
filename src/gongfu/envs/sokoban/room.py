"""Rooms and the rules of moving in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gongfu.core.errors import TaskError

__all__ = ["MOVES", "Cell", "Room", "State", "read_room"]

Cell = tuple[int, int]
"""(row, column), from the top left."""

MOVES: dict[str, Cell] = {"down": (1, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0)}

WALL, FLOOR, TARGET, BOX, PLACED, PLAYER, PLAYER_ON_TARGET = "#_.$*@+"
_KNOWN = {*"#_.$*@+", " ", "-"}


@dataclass(frozen=True, slots=True)
class State:
    """What changes in an episode."""

    player: Cell
    boxes: frozenset[Cell]


@dataclass(frozen=True, slots=True)
class Room:
    """What stays: size, floor (all that is no wall, targets included) and targets."""

    height: int
    width: int
    floor: frozenset[Cell]
    targets: frozenset[Cell]

    def moved(self, state: State, move: str) -> State:
        """The state after a move; the same state if a wall or a second box is in the way."""
        (r, c), (dr, dc) = state.player, MOVES[move]
        ahead = (r + dr, c + dc)
        if ahead not in self.floor:
            return state
        if ahead not in state.boxes:
            return State(ahead, state.boxes)
        beyond = (ahead[0] + dr, ahead[1] + dc)
        if beyond not in self.floor or beyond in state.boxes:
            return state
        return State(ahead, state.boxes - {ahead} | {beyond})

    def solved(self, state: State) -> bool:
        return state.boxes <= self.targets

    def drawn(self, state: State) -> str:
        """One line a row: # wall, _ floor, . target, $ box, * box on a target, @ player, + player on a target."""
        return "\n".join("".join(self._sign((r, c), state) for c in range(self.width)) for r in range(self.height))

    def _sign(self, cell: Cell, state: State) -> str:
        if cell not in self.floor:
            return WALL
        on_target = cell in self.targets
        if cell in state.boxes:
            return PLACED if on_target else BOX
        if cell == state.player:
            return PLAYER_ON_TARGET if on_target else PLAYER
        return TARGET if on_target else FLOOR


def read_room(rows: Sequence[str]) -> tuple[Room, State]:
    """A room as `Room.drawn` writes it, or in the usual notation with spaces or dashes for floor.

    Raises TaskError for an unknown sign, no or several players, no box, or fewer targets than boxes.
    """
    signs = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}
    if unknown := sorted(set(signs.values()) - _KNOWN):
        raise TaskError(f"a room holds the unknown sign {unknown[0]!r}; the signs are # _ . $ * @ + and space or -")
    players = [cell for cell, sign in signs.items() if sign in "@+"]
    boxes = frozenset(cell for cell, sign in signs.items() if sign in "$*")
    targets = frozenset(cell for cell, sign in signs.items() if sign in ".*+")
    if len(players) != 1 or not boxes or len(targets) < len(boxes):
        raise TaskError(
            f"a room needs one player, a box and a target for every box; this one has {len(players)} players, "
            f"{len(boxes)} boxes and {len(targets)} targets"
        )
    floor = frozenset(cell for cell, sign in signs.items() if sign != WALL)
    room = Room(len(rows), max(len(row) for row in rows), floor, targets)
    return room, State(players[0], boxes)
