"""The skill bank: "git for skills". An append-only log of commits, and the evidence on the skills in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine

from gongfu.skills import compare, embedding_cache, evidence, pgvector, store
from gongfu.skills.commit import Commit
from gongfu.skills.compare import Blame, Change
from gongfu.skills.dialects import connect, reading, writing
from gongfu.skills.edits import Edit, Operation, Put, SetState, plan, replay
from gongfu.skills.errors import BankError, EditError, StaleHeadError
from gongfu.skills.evidence import ProposalRecord, Use
from gongfu.skills.migrate import migrate
from gongfu.skills.pgvector import PgVectorSearch
from gongfu.skills.skill import Skill
from gongfu.skills.store import MAIN
from gongfu.skills.tree import Tree
from gongfu.skills.verify import problems
from gongfu.skills.view import BankView

FILE = "bank.sqlite"
"""Name of the bank in a run folder."""
_VIEWS = 32


class SkillBank:
    """A bank of skills in an SQLite file or a PostgreSQL database.

    >>> with SkillBank.open("runs/a/bank.sqlite") as bank:                                          # doctest: +SKIP
    ...     view = bank.at("main")
    ...     done = bank.commit([Add(Skill("Open the fridge first.", kind="cool"))], parent=view.commit, step=3)
    ...     assert bank.head() == done.id
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._views: dict[str, BankView] = {}
        self._skills: dict[str, Skill] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(cls, location: str | Path, *, create: bool = True) -> Self:
        """Open the bank in a file, in a run folder or at a database URL; with `create`, make it when there is none.

        An older schema is upgraded (a file after a copy of it was made). Raises BankError when there is no bank, when it is
        no bank, or when a newer gongfu wrote it.
        """
        if "://" not in str(location) and Path(location).is_dir():
            location = Path(location) / FILE
        engine, file = connect(location, create=create)
        migrate(engine, file)
        with reading(engine) as connection:
            complete = MAIN in store.names(connection)
        if not complete:
            with writing(engine) as connection:
                store.create_root(connection)
        return cls(engine)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Reading

    def head(self, branch: str = MAIN) -> str:
        """Commit id that the branch is at."""
        with reading(self._engine) as connection:
            return store.branch_head(connection, branch)

    def at(self, ref: str = MAIN) -> BankView:
        """The bank at a branch, a tag, a commit id or 6 digits of one; `main~2` is two commits before main."""
        with reading(self._engine) as connection:
            return self._view(connection, store.resolve(connection, ref))

    def log(self, ref: str = MAIN, limit: int | None = None) -> list[Commit]:
        """The commit at `ref` and those before it, newest first."""
        with reading(self._engine) as connection:
            return store.history(connection, store.resolve(connection, ref), limit=limit)

    def refs(self) -> dict[str, tuple[str, str]]:
        """Name -> ("branch" or "tag", commit id)."""
        with reading(self._engine) as connection:
            return store.names(connection)

    def reflog(self) -> list[dict[str, Any]]:
        """Every move of a branch and every new name: ref, old, new, why, at; oldest first."""
        with reading(self._engine) as connection:
            return store.moves(connection)

    def diff(self, a: str, b: str) -> list[Change]:
        """What changed from `a` to `b`, by skill id."""
        return compare.diff(self.at(a), self.at(b))

    def blame(self, skill: str, ref: str = MAIN) -> list[Blame]:
        """All that was ever done to a skill, oldest first; it may be gone by now."""
        return self.histories(ref, {skill}).get(skill, [])

    def histories(self, ref: str = MAIN, skills: Collection[str] | None = None) -> dict[str, list[Blame]]:
        """`blame` of these skills, or of all, by id."""
        found: dict[str, list[tuple[Commit, Operation]]] = {}
        with reading(self._engine) as connection:
            for commit in store.history(connection, store.resolve(connection, ref))[::-1]:
                for op in commit.ops:
                    if skills is None or op["skill"] in skills:
                        found.setdefault(op["skill"], []).append((commit, op))
            self._read(connection, (op["digest"] for past in found.values() for _, op in past if "digest" in op))
        return {skill: compare.blame(past, self._skills) for skill, past in found.items()}

    def verify(self) -> list[str]:
        """Recompute every digest, replay every commit, check every reference; what is wrong, one line each."""
        with reading(self._engine) as connection:
            return problems(connection)

    # Writing

    def commit(
        self,
        edits: Sequence[Edit],
        *,
        parent: str,
        branch: str = MAIN,
        step: int = 0,
        message: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> Commit:
        """Carry out `edits` on `parent` and move `branch` from there, all or nothing.

        The same edits on the same parent with the same step, message and meta are the same commit: made again (after a
        resume) it is found, not repeated. Raises StaleHeadError when the branch is no longer at `parent`, EditError when an
        edit does not fit.
        """
        with reading(self._engine) as connection:
            view = self._view(connection, store.resolve(connection, parent))
            ops, skills = plan(view.tree, edits, lambda digest: self._read(connection, [digest])[digest])
        tree = replay(view.tree, ops)
        commit = Commit.of(view.made_by, tree, ops, step, message, meta or {})
        with writing(self._engine) as connection:
            store.append(connection, commit, skills, branch)
            commit = store.read_commit(connection, commit.id)
        self._skills.update((s.digest, s) for s in skills)
        self._remember(BankView(commit, tree, self._skills))
        return commit

    def revert(self, ref: str, *, branch: str = MAIN, message: str = "", step: int | None = None) -> Commit:
        """Undo one commit by a new one. Raises EditError when a later commit has changed the same skills."""
        with reading(self._engine) as connection:
            bad = store.read_commit(connection, store.resolve(connection, ref))
            if bad.parent is None:
                raise EditError("the empty bank cannot be reverted")
            after = self._view(connection, bad.id).tree
            before = self._view(connection, bad.parent).tree

        def undo(view: BankView) -> list[Edit]:
            edits: list[Edit] = []
            for skill, old, new in before.difference(after):
                now = view.tree.get(skill)
                if (now and (now.digest, now.state)) != (new and (new.digest, new.state)):
                    raise EditError(
                        f"{bad.id[:12]} cannot be reverted: skill {skill} was changed again since; revert that first"
                    )
                edits.append(Put(skill, old))
            return edits

        return self._on_head(undo, branch, step, message or f"Revert {bad.id[:12]}: {bad.message}".rstrip(": "))

    def quarantine(self, skill: str, why: str, *, branch: str = MAIN, step: int | None = None) -> Commit:
        """Take a skill out of use at once; its evidence stays."""
        return self._on_head(
            lambda view: [SetState(skill, "quarantined", why)], branch, step, f"Quarantine {skill}: {why}".rstrip(": ")
        )

    def reset(self, ref: str, why: str, *, branch: str = MAIN) -> str:
        """Move a branch to a commit, forward or back; the id it was at, which the reflog keeps too. Nothing is removed."""
        with writing(self._engine) as connection:
            old, new = store.branch_head(connection, branch), store.resolve(connection, ref)
            if old != new:
                store.move(connection, branch, old, new, why)
            return old

    def branch(self, name: str, ref: str = MAIN, why: str = "a new branch") -> str:
        """Begin a branch at a commit; the commit's id."""
        return self._name(name, "branch", ref, why)

    def tag(self, name: str, ref: str = MAIN, why: str = "a new tag") -> str:
        """Give a commit a name that stays; the commit's id. Raises RefError when the name is taken."""
        return self._name(name, "tag", ref, why)

    # Evidence

    def record_uses(self, uses: Iterable[Use]) -> int:
        """Record how episodes with and without skills went; how many were new. See `evidence.record_uses`."""
        return evidence.record_uses(self._engine, uses)

    def record_proposals(self, proposals: Iterable[ProposalRecord]) -> int:
        """Record proposals, rejected ones too; how many were new."""
        return evidence.record_proposals(self._engine, proposals)

    def uses(self, skill: str | None = None, before_step: int | None = None) -> list[Use]:
        """Recorded uses, by step, trajectory, skill and mode."""
        return evidence.read_uses(self._engine, skill, before_step)

    def proposals(self, target: str | None = None, before_step: int | None = None) -> list[ProposalRecord]:
        """Recorded proposals, by step and id; with `target`, those that would change this skill."""
        return evidence.read_proposals(self._engine, target, before_step)

    def tallies(self, before_step: int | None = None, versions: Iterable[str] | None = None) -> evidence.Tallies:
        """Uses counted by skill version, of all or of these (digests): what `utilities` is made of."""
        return evidence.read_tallies(self._engine, before_step, versions)

    def load_embeddings(self, embedder: str, text_digests: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """The cached vectors among those of these texts."""
        return embedding_cache.load(self._engine, embedder, text_digests)

    def store_embeddings(self, embedder: str, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Cache vectors by text digest. One that is there already stays."""
        embedding_cache.store(self._engine, embedder, vectors)

    def vector_search(self, embedder: str, *, approximate: bool = False) -> PgVectorSearch | None:
        """A search of vectors by the database, None when it has none. See `pgvector.open_search`."""
        return pgvector.open_search(self._engine, embedder, approximate=approximate)

    # Within

    def _on_head(self, edits: Callable[[BankView], list[Edit]], branch: str, step: int | None, message: str) -> Commit:
        while True:
            view = self.at(self.head(branch))
            at_step = view.made_by.step if step is None else step
            try:
                return self.commit(edits(view), parent=view.commit, branch=branch, step=at_step, message=message)
            except StaleHeadError:  # another writer was first, so the log has grown: look again
                continue

    def _name(self, name: str, kind: Literal["branch", "tag"], ref: str, why: str) -> str:
        with writing(self._engine) as connection:
            commit = store.resolve(connection, ref)
            store.name(connection, name, kind, commit, why)
            return commit

    def _view(self, connection: Connection, commit: str) -> BankView:
        with self._lock:
            known = dict(self._views)
        if commit in known:
            return known[commit]
        past = store.history(connection, commit, until=list(known))
        base = known.get(past[-1].id)
        newer = past if base is None else past[:-1]
        tree = Tree() if base is None else base.tree
        for c in reversed(newer):
            tree = replay(tree, c.ops)
        if tree.digest != past[0].tree:
            raise BankError(f"commit {commit[:12]} does not hold what its id vouches for, run verify")
        if base is None:
            self._read(connection, (entry.digest for _, entry in tree.items()))
        else:
            self._read(connection, (op["digest"] for c in newer for op in c.ops if "digest" in op))
        return self._remember(BankView(past[0], tree, self._skills))

    def _read(self, connection: Connection, digests: Iterable[str]) -> dict[str, Skill]:
        missing = {digest for digest in digests if digest not in self._skills}
        if missing:
            self._skills.update(store.read_skills(connection, sorted(missing)))
        return self._skills

    def _remember(self, view: BankView) -> BankView:
        with self._lock:
            self._views[view.commit] = view
            while len(self._views) > _VIEWS:
                del self._views[next(iter(self._views))]
        return view
