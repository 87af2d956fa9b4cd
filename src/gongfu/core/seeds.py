"""Seeds keyed by what they are for, so that order, threads and batch size never change a random choice."""

from __future__ import annotations

import hashlib
import random


def seed_for(seed: int, *, purpose: str, step: int = 0, task: str = "", rollout: int = 0) -> int:
    """A 63-bit seed for one purpose of one rollout of one task at one step of a run.

    >>> seed_for(0, purpose="sample", step=3, task="a", rollout=1) == seed_for(0, purpose="sample", step=3, task="a", rollout=1)
    True
    """
    key = "\x1f".join((str(seed), str(step), task, str(rollout), purpose))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def rng_for(seed: int, *, purpose: str, step: int = 0, task: str = "", rollout: int = 0) -> random.Random:
    """A generator seeded by `seed_for` of the same key."""
    return random.Random(seed_for(seed, purpose=purpose, step=step, task=task, rollout=rollout))
