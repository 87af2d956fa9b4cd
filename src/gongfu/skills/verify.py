"""Recomputes a whole bank: every digest, every replayed commit, every reference."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from gongfu.skills import store
from gongfu.skills.commit import ROOT, Commit
from gongfu.skills.dialects import damage
from gongfu.skills.edits import replay
from gongfu.skills.errors import EditError, SkillError
from gongfu.skills.schema import commits, objects, uses
from gongfu.skills.skill import Skill
from gongfu.skills.tree import Tree


def problems(connection: Connection) -> list[str]:
    """What is wrong with a bank, one line each; nothing when all is well."""
    found = damage(connection)
    if found:
        return found  # nothing that is read from a broken file means anything
    versions = {row.digest: row.body for row in connection.execute(select(objects).order_by(objects.c.digest))}
    found += [f"skill version {digest[:12]}: {wrong}" for digest, body in versions.items() if (wrong := _object(digest, body))]
    found += _log(connection, versions)
    found += _names(connection)
    for column, known in ((uses.c.version, objects.c.digest), (uses.c.commit_id, commits.c.id)):
        lost = select(column).distinct().where(column.not_in(select(known)))
        found += [f"uses: {column.name} {value[:12]} is not in the bank" for value in connection.execute(lost).scalars()]
    return found


def _object(digest: str, body: str) -> str:
    try:
        skill = Skill.from_body(body)
    except SkillError as e:
        return f"is no skill: {e}"
    if body != skill.body or skill.digest != digest:
        return f"was changed: its contents have the digest {skill.digest[:12]}"
    return ""


def _log(connection: Connection, versions: dict[str, str]) -> list[str]:
    found: list[str] = []
    level: dict[str, Tree | None] = {}  # trees of the commits one step nearer to the root; None = could not be replayed
    depth = -1
    above: dict[str, Tree | None] = {}
    for row in [r._asdict() for r in connection.execute(select(commits).order_by(commits.c.depth, commits.c.id))]:
        if row["depth"] != depth:
            above = level if row["depth"] == depth + 1 else {}
            level, depth = {}, row["depth"]
        wrong, level[row["id"]] = _commit(row, above, versions)
        found += [f"commit {row['id'][:12]}: {text}" for text in wrong]
    if not found and depth < 0:
        found.append("there is no commit")
    return found


def _commit(row: dict[str, Any], above: dict[str, Tree | None], versions: dict[str, str]) -> tuple[list[str], Tree | None]:
    try:
        commit = Commit.from_row(row)
        name = commit.digest()
    except (ValueError, TypeError) as e:
        return [f"cannot be read: {e}"], None
    wrong = [] if name == commit.id else [f"was changed: its contents have the digest {name[:12]}"]
    if commit.parent is None:
        return wrong + ([] if commit.id == ROOT.id else ["has no parent and is not the empty bank"]), Tree()
    if commit.parent not in above:
        return [*wrong, f"its parent {commit.parent[:12]} is missing or not one commit nearer to the empty bank"], None
    parent = above[commit.parent]
    if parent is None:
        return wrong, None
    try:
        tree = replay(parent, commit.ops)
    except EditError as e:
        return [*wrong, str(e)], None
    missing = sorted({op["digest"] for op in commit.ops if "digest" in op and op["digest"] not in versions})
    wrong += [f"needs the skill version {digest[:12]}, which is missing" for digest in missing]
    if tree.digest != commit.tree:
        wrong.append(f"its operations lead to the tree {tree.digest[:12]}, not to {commit.tree[:12]}")
    return wrong, tree


def _names(connection: Connection) -> list[str]:
    found: list[str] = []
    known = set(connection.execute(select(commits.c.id)).scalars())
    last: dict[str, str] = {}
    for moved in store.moves(connection):
        if moved["old"] != last.get(moved["ref"]):
            found.append(f"reflog entry {moved['seq']}: {moved['ref']} was not at {str(moved['old'])[:12]}")
        last[moved["ref"]] = moved["new"]
    for name, (kind, commit) in store.names(connection).items():
        if commit not in known:
            found.append(f"{kind} {name}: its commit {commit[:12]} is missing")
        if last.get(name) != commit:
            found.append(f"{kind} {name}: is at {commit[:12]}, where the reflog never moved it")
    return found
