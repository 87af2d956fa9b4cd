"""Raw evidence on skills: what was played with and without them, and what was proposed. Only ever added to.

Rows have natural keys. A run that is resumed records the steps after its checkpoint again: what is there stays as it is, and
readers look at `step < before_step` only, so the resumed run sees what the uninterrupted one saw.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, func, select

from gongfu.core.records import Outcome
from gongfu.skills.dialects import insert_missing, reading, writing
from gongfu.skills.errors import BankError, EvidenceError
from gongfu.skills.schema import proposals, uses

Mode = Literal["with", "without", "shadow"]
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Use:
    """How one episode went for which a skill was chosen. Key: step, trajectory, skill, mode."""

    trajectory: str
    step: int
    skill: str
    """Id."""
    version: str
    """Digest of the version that was chosen."""
    commit: str
    """Of the bank that the rollout read."""
    mode: Mode
    """with: the policy read it. without: it was held back, for comparison. shadow: another skill was read instead of it."""
    kind: str
    outcome: Outcome
    score: float
    turns: int


@dataclass(frozen=True, slots=True)
class ProposalRecord:
    """One proposal to change the bank, and what became of it. Key: id."""

    id: str
    step: int
    op: str
    """What was proposed: "add", "update", "no-edit", ..."""
    target: str
    """Id of the skill it would change, "" for none."""
    source: str
    """Trajectory it was written from."""
    references: tuple[str, ...]
    """Trajectories it was judged by."""
    text: str
    scores: Mapping[str, float | None] = field(default_factory=dict)
    verdict: str = ""
    """What a critic or verifier said."""
    decision: str = ""
    """What the gate did: "accepted", "rejected", ..."""
    reason: str = ""


class Tallies(NamedTuple):
    """Uses counted by skill version, as columns of equal length."""

    versions: list[str]
    counts: NDArray[np.int64]
    """(versions, 5): uses with it, successes of these, uses without it, successes of these, last step with it (-1 = none)."""


def record_uses(engine: Engine, records: Iterable[Use]) -> int:
    """Add uses; how many were new. Raises EvidenceError when one names a version or a commit that the bank does not hold."""
    rows = [_use_row(use) for use in records]
    _refuse_double(rows, ("step", "trajectory", "skill", "mode"))
    try:
        with writing(engine) as connection:
            return insert_missing(connection, uses, rows)
    except BankError as e:
        if "foreign key" in str(e).lower():
            raise EvidenceError("a use names a skill version or a commit that is not in this bank; nothing was recorded") from e
        raise


def record_proposals(engine: Engine, records: Iterable[ProposalRecord]) -> int:
    """Add proposals; how many were new. Raises EvidenceError for scores that are no finite numbers."""
    rows = [_proposal_row(proposal) for proposal in records]
    _refuse_double(rows, ("id",))
    with writing(engine) as connection:
        return insert_missing(connection, proposals, rows)


def read_uses(engine: Engine, skill: str | None = None, before_step: int | None = None) -> list[Use]:
    query = select(uses).order_by(uses.c.step, uses.c.trajectory, uses.c.skill, uses.c.mode)
    if skill is not None:
        query = query.where(uses.c.skill == skill)
    if before_step is not None:
        query = query.where(uses.c.step < before_step)
    with reading(engine) as connection:
        return [_use(row._asdict()) for row in connection.execute(query)]


def read_proposals(engine: Engine, target: str | None = None, before_step: int | None = None) -> list[ProposalRecord]:
    query = select(proposals.c.body).order_by(proposals.c.step, proposals.c.id)
    if target is not None:
        query = query.where(proposals.c.target == target)
    if before_step is not None:
        query = query.where(proposals.c.step < before_step)
    with reading(engine) as connection:
        found = [json.loads(body) for body in connection.execute(query).scalars()]
    return [ProposalRecord(**{**body, "references": tuple(body["references"])}) for body in found]


def read_tallies(engine: Engine, before_step: int | None = None, versions: Iterable[str] | None = None) -> Tallies:
    """All uses before a step, or those of some versions, counted by version in the database."""
    query = (
        select(uses.c.version, uses.c.mode, func.count(), func.sum(uses.c.success), func.max(uses.c.step))
        .where(uses.c.mode != "shadow")
        .group_by(uses.c.version, uses.c.mode)
        .order_by(uses.c.version)
    )
    if before_step is not None:
        query = query.where(uses.c.step < before_step)
    if versions is None:
        queries = [query]
    else:
        wanted = sorted(versions)
        queries = [query.where(uses.c.version.in_(wanted[i : i + _BATCH])) for i in range(0, len(wanted), _BATCH)]
    with reading(engine) as connection:
        rows = [row for query in queries for row in connection.execute(query)]
    counted: dict[str, list[int]] = {}
    for version, mode, n, success, last in rows:
        counts = counted.setdefault(version, [0, 0, 0, 0, -1])
        if mode == "with":
            counts[0], counts[1], counts[4] = n, success, last
        else:
            counts[2], counts[3] = n, success
    return Tallies(list(counted), np.array(list(counted.values()), dtype=np.int64).reshape(-1, 5))


def _refuse_double(rows: Sequence[Mapping[str, Any]], key: tuple[str, ...]) -> None:
    # Against what is on record a second row is a resumed run's; within one call it is a mistake, and would be lost.
    seen = Counter(tuple(row[name] for name in key) for row in rows)
    twice = next((values for values, n in seen.items() if n > 1), None)
    if twice is not None:
        raise EvidenceError(f"two records have the same key ({', '.join(key)}): {', '.join(map(str, twice))}")


def _use_row(use: Use) -> dict[str, Any]:
    if use.mode not in get_args(Mode) or use.outcome not in get_args(Outcome):
        raise EvidenceError(f"use of {use.skill} in {use.trajectory}: no mode {use.mode!r} with an outcome {use.outcome!r}")
    if not math.isfinite(use.score):
        raise EvidenceError(f"use of {use.skill} in {use.trajectory}: the score is {use.score}")
    row = {f.name: getattr(use, f.name) for f in fields(use) if f.name not in ("commit", "outcome")}
    return {**row, "commit_id": use.commit, "success": int(use.outcome == "success")}


def _use(row: Mapping[str, Any]) -> Use:
    same = {f.name: row[f.name] for f in fields(Use) if f.name not in ("commit", "outcome")}
    return Use(**same, commit=row["commit_id"], outcome="success" if row["success"] else "failure")


def _proposal_row(proposal: ProposalRecord) -> dict[str, Any]:
    try:
        # ASCII: what a model wrote may hold characters that a database refuses.
        body = json.dumps(asdict(proposal), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as e:
        raise EvidenceError(f"proposal {proposal.id} cannot be recorded ({e}); a score that is not defined is None") from e
    return {**{n: getattr(proposal, n) for n in ("id", "step", "op", "target", "decision")}, "body": body}
