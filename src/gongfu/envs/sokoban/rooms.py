"""Seeded rooms that can be solved: begin with every box on its target and play backwards, pulling."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache

from gongfu.core.errors import TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.sokoban.room import MOVES, Cell, Room, State
from gongfu.envs.sokoban.solver import solve

__all__ = ["RoomSpec", "make_room"]

_WALLS = 0.2  # chance that an inner square is a wall
_TRIES = 2000


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """Names one generated room of a seed."""

    split: str
    number: int
    size: int
    boxes: int
    solution: tuple[int, int]
    """Fewest and most moves of its shortest solution."""


@lru_cache(maxsize=4096)
def make_room(seed: int, spec: RoomSpec) -> tuple[Room, State]:
    """The room; none is in both of the splits train and seen. Raises TaskError if no room of these settings was found."""
    rng = rng_for(seed, purpose="sokoban room", task=spec.split, rollout=spec.number)
    fewest, most = spec.solution
    for _ in range(_TRIES):
        room = _empty_room(rng, spec.size, spec.boxes)
        if room is None:
            continue
        start = _played_backwards(rng, room, 3 * most)
        if room.solved(start) or not _belongs(spec.split, room, start):
            continue
        moves = solve(room, start)
        if moves is not None and fewest <= len(moves) <= most:
            return room, start
    raise TaskError(
        f"found no sokoban room of size {spec.size} with {spec.boxes} boxes that takes {fewest} to {most} moves; "
        "ask for a larger room, fewer boxes or another length"
    )


def _empty_room(rng: random.Random, size: int, boxes: int) -> Room | None:
    """One connected floor and targets on it; None if there is too little floor."""
    inner = [(r, c) for r in range(1, size - 1) for c in range(1, size - 1)]
    free = {cell for cell in inner if rng.random() >= _WALLS}
    floor = _around(rng.choice(inner), free)
    if len(floor) < max(2 * boxes + 2, len(inner) // 2):
        return None
    return Room(size, size, frozenset(floor), frozenset(rng.sample(sorted(floor), boxes)))


def _around(start: Cell, free: set[Cell]) -> set[Cell]:
    """The squares that can be walked to."""
    reached, waiting = ({start}, [start]) if start in free else (set(), [])
    while waiting:
        r, c = waiting.pop()
        for dr, dc in MOVES.values():
            cell = (r + dr, c + dc)
            if cell in free and cell not in reached:
                reached.add(cell)
                waiting.append(cell)
    return reached


def _played_backwards(rng: random.Random, room: Room, steps: int) -> State:
    """Steps back from a box, which it pulls along, are preferred to steps that change only the player."""
    boxes = room.targets
    state = State(rng.choice(sorted(room.floor - boxes)), boxes)
    for _ in range(steps):
        pulls, walks = [], []
        for dr, dc in MOVES.values():
            r, c = state.player
            back, front = (r - dr, c - dc), (r + dr, c + dc)
            if back not in room.floor or back in state.boxes:
                continue
            walks.append(State(back, state.boxes))
            if front in state.boxes:
                pulls.append(State(back, state.boxes - {front} | {state.player}))
        choices = pulls if pulls and rng.random() < 0.7 else walks
        if choices:
            state = rng.choice(choices)
    return state


def _belongs(split: str, room: Room, start: State) -> bool:
    """Of all rooms every fifth, by what it looks like, is kept for the split seen."""
    kept = hashlib.blake2b(room.drawn(start).encode(), digest_size=1).digest()[0] % 5 == 0
    return kept == (split == "seen") or split not in ("train", "seen")
