"""The shortest solution of a room, by A* over moves."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from gongfu.envs.sokoban.room import MOVES, Cell, Room, State

__all__ = ["solve"]


def solve(room: Room, start: State, *, most_states: int = 300_000) -> tuple[str, ...] | None:
    """The fewest moves that put every box on a target; None if there are none or more than `most_states` had to be looked at.

    A box on a square from which it can reach no target makes a state hopeless.
    """
    distance = _push_distances(room)
    if any(box not in distance for box in start.boxes):
        return None
    came: dict[State, tuple[State, str] | None] = {start: None}
    cost = {start: 0}
    bound = sum(distance[box] for box in start.boxes)
    waiting = [(bound, 0, 0, start)]
    tie = 0  # the first found goes first, so that a solution never depends on anything but the room
    while waiting:
        _, _, so_far, state = heapq.heappop(waiting)
        if so_far > cost[state]:
            continue
        if room.solved(state):
            return tuple(reversed([*_moves_to(state, came)]))
        for move in MOVES:
            after = room.moved(state, move)
            if after is state or so_far + 1 >= cost.get(after, so_far + 2):
                continue
            if any(box not in distance for box in after.boxes):
                continue
            if len(cost) >= most_states:
                return None
            cost[after], came[after] = so_far + 1, (state, move)
            tie += 1
            heapq.heappush(waiting, (so_far + 1 + sum(distance[box] for box in after.boxes), tie, so_far + 1, after))
    return None


def _moves_to(state: State, came: dict[State, tuple[State, str] | None]) -> Iterator[str]:
    while step := came[state]:
        state, move = step
        yield move


def _push_distances(room: Room) -> dict[Cell, int]:
    """Square -> fewest pushes from it to a target, other boxes left aside. Squares of no return are missing."""
    distance = dict.fromkeys(sorted(room.targets), 0)
    waiting = deque(distance)
    while waiting:
        r, c = cell = waiting.popleft()
        for dr, dc in MOVES.values():
            before, player = (r - dr, c - dc), (r - 2 * dr, c - 2 * dc)
            if before in room.floor and player in room.floor and before not in distance:
                distance[before] = distance[cell] + 1
                waiting.append(before)
    return distance
