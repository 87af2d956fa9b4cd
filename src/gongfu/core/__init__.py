"""Plain records, errors, seeds and token helpers. Imports no torch."""

from gongfu.core.errors import GongfuError
from gongfu.core.records import Call, Row, Task, Trajectory, Turn, Validity, from_json, to_json
from gongfu.core.seeds import rng_for, seed_for
from gongfu.core.tokens import prefix_lengths, token_span

__all__ = [
    "Call",
    "GongfuError",
    "Row",
    "Task",
    "Trajectory",
    "Turn",
    "Validity",
    "from_json",
    "prefix_lengths",
    "rng_for",
    "seed_for",
    "to_json",
    "token_span",
]
