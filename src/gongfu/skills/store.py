"""The log in its tables: commits, skill versions, branches and tags. Knows SQL, not what an edit means."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, literal, select, update

from gongfu.skills.commit import ROOT, Commit
from gongfu.skills.dialects import insert_missing
from gongfu.skills.errors import BankError, RefError, SkillError, StaleHeadError
from gongfu.skills.schema import commits, objects, reflog, refs
from gongfu.skills.skill import Skill

MAIN = "main"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
_REF = re.compile(r"(?P<base>[^~]+)(?P<back>(~\d*)*)")
_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_BATCH = 500


def create_root(connection: Connection) -> None:
    """Give a bank its first commit and its main branch, unless it has them."""
    insert_missing(connection, commits, [{**ROOT.row(), "at": _now()}])
    if insert_missing(connection, refs, [{"name": MAIN, "kind": "branch", "commit_id": ROOT.id}]):
        _note(connection, MAIN, None, ROOT.id, "a new bank")


def resolve(connection: Connection, ref: str) -> str:
    """Commit id of a branch, a tag, a prefix of an id (6 digits or more), each with `~n`: n commits before."""
    found = _REF.fullmatch(ref)
    if found is None:
        raise RefError(f"{ref!r} names no commit; give a branch, a tag, or 6 or more digits of a commit id, with or without ~1")
    commit = _resolve_base(connection, found["base"])
    back = sum(int(n or 1) for n in found["back"].split("~")[1:])
    if back:
        walked = history(connection, commit, limit=back + 1)
        if len(walked) <= back:
            raise RefError(f"{ref!r} lies before the empty bank: {found['base']} has {len(walked) - 1} commits before it")
        commit = walked[-1].id
    return commit


def read_commit(connection: Connection, commit: str) -> Commit:
    """The commit of a full id."""
    row = connection.execute(select(commits).where(commits.c.id == commit)).one_or_none()
    if row is None:
        raise RefError(f"there is no commit {commit!r} in this bank")
    return Commit.from_row(row._asdict())


def history(connection: Connection, commit: str, *, until: Collection[str] = (), limit: int | None = None) -> list[Commit]:
    """A commit and those before it, newest first: down to the empty bank, or to the first one in `until` (it included)."""
    walk = (
        select(commits.c.id, commits.c.parent, literal(1).label("n")).where(commits.c.id == commit).cte("walk", recursive=True)
    )
    step = select(commits.c.id, commits.c.parent, walk.c.n + 1).join(walk, commits.c.id == walk.c.parent)
    if until:
        step = step.where(walk.c.id.not_in(until))
    if limit is not None:
        step = step.where(walk.c.n < limit)
    walk = walk.union_all(step)
    rows = connection.execute(select(commits).join(walk, commits.c.id == walk.c.id).order_by(walk.c.n))
    return [Commit.from_row(row._asdict()) for row in rows]


def is_ancestor(connection: Connection, commit: Commit, of: str) -> bool:
    """Whether `commit` is `of` or comes before it."""
    distance = read_commit(connection, of).depth - commit.depth
    return distance >= 0 and history(connection, of, limit=distance + 1)[-1].id == commit.id


def read_skills(connection: Connection, digests: Iterable[str]) -> dict[str, Skill]:
    """The skill versions of these digests. Raises BankError for one that is missing or damaged."""
    wanted = list(digests)
    found: dict[str, Skill] = {}
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        for digest, body in connection.execute(select(objects).where(objects.c.digest.in_(batch))):
            try:
                found[digest] = Skill.from_body(body)
            except SkillError as e:
                raise BankError(f"skill version {digest[:12]} is damaged, run verify: {e}") from e
    missing = set(wanted) - found.keys()
    if missing:
        raise BankError(f"skill version {min(missing)[:12]} is missing, run verify")
    return found


def append(connection: Connection, commit: Commit, skills: Sequence[Skill], branch: str) -> None:
    """Write a commit and move its branch from the commit's parent to it.

    A commit that the branch holds already stays as it is. Raises StaleHeadError when the branch is somewhere else.
    """
    head = branch_head(connection, branch)
    if head != commit.parent:
        if not (_exists(connection, commit.id) and is_ancestor(connection, commit, head)):
            raise StaleHeadError(branch, str(commit.parent), head)
        return
    insert_missing(connection, objects, [{"digest": s.digest, "body": s.body} for s in skills])
    insert_missing(connection, commits, [{**commit.row(), "at": _now()}])
    move(connection, branch, head, commit.id, commit.message)


def branch_head(connection: Connection, branch: str) -> str:
    found = connection.execute(select(refs).where(refs.c.name == branch)).one_or_none()
    if found is None or found.kind != "branch":
        known = connection.execute(select(refs.c.name).where(refs.c.kind == "branch").order_by(refs.c.name)).scalars()
        raise RefError(f"there is no branch {branch!r}; there are {', '.join(known)}")
    return found.commit_id


def move(connection: Connection, ref: str, old: str, new: str, why: str) -> None:
    """Move a branch, and note it. Raises StaleHeadError when it is not at `old`."""
    moved = connection.execute(update(refs).where(refs.c.name == ref, refs.c.commit_id == old).values(commit_id=new))
    if moved.rowcount != 1:
        raise StaleHeadError(ref, old, branch_head(connection, ref))
    _note(connection, ref, old, new, why)


def name(connection: Connection, ref: str, kind: Literal["branch", "tag"], commit: str, why: str) -> None:
    """Make a branch or a tag. Naming the same commit again is fine, a name that is taken is not."""
    if not _NAME.fullmatch(ref) or _PREFIX.fullmatch(ref):
        raise RefError(
            f"{ref!r} cannot name a {kind}: use letters, digits and . _ / -, and nothing that looks like a commit id"
        )
    if insert_missing(connection, refs, [{"name": ref, "kind": kind, "commit_id": commit}]):
        _note(connection, ref, None, commit, why)
        return
    there = connection.execute(select(refs).where(refs.c.name == ref)).one()
    if (there.kind, there.commit_id) != (kind, commit):
        raise RefError(f"{ref!r} is taken: the {there.kind} at {there.commit_id[:12]}")


def names(connection: Connection) -> dict[str, tuple[str, str]]:
    """name -> (branch or tag, commit id), sorted."""
    rows = connection.execute(select(refs).order_by(refs.c.name))
    return {row.name: (row.kind, row.commit_id) for row in rows}


def moves(connection: Connection) -> list[dict[str, Any]]:
    """The reflog, oldest first."""
    return [row._asdict() for row in connection.execute(select(reflog).order_by(reflog.c.seq))]


def _resolve_base(connection: Connection, base: str) -> str:
    named = connection.execute(select(refs.c.commit_id).where(refs.c.name == base)).scalar_one_or_none()
    if named is not None:
        return named
    found: list[str] = []
    if _PREFIX.fullmatch(base):
        alike = select(commits.c.id).where(commits.c.id.startswith(base)).order_by(commits.c.id).limit(2)
        found = list(connection.execute(alike).scalars())
    if len(found) == 1:
        return found[0]
    if found:
        raise RefError(f"{base!r} begins several commit ids ({found[0][:20]}, {found[1][:20]}, ...): give more digits")
    raise RefError(f"there is no branch, tag or commit {base!r}; the branches and tags are {', '.join(names(connection))}")


def _exists(connection: Connection, commit: str) -> bool:
    return connection.execute(select(commits.c.id).where(commits.c.id == commit)).first() is not None


def _note(connection: Connection, ref: str, old: str | None, new: str, why: str) -> None:
    connection.execute(reflog.insert().values(ref=ref, old=old, new=new, why=why, at=_now()))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
