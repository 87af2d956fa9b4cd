"""The record of a commit: what was done, on what, and a name that says exactly this."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gongfu.skills.canonical import canonical_json, sha256
from gongfu.skills.edits import Operation
from gongfu.skills.errors import EditError
from gongfu.skills.skill import readable
from gongfu.skills.tree import Tree


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a bank.

    `id` is a digest over everything here but the clock, so the same run gives the same commits, and each id vouches for the
    whole history before it.
    """

    id: str
    parent: str | None
    depth: int
    """Commits between this one and the empty bank."""
    tree: str
    """Digest of the versions and states it holds."""
    step: int
    """Training step that made it."""
    ops: tuple[Operation, ...]
    message: str
    meta: Mapping[str, Any]
    at: str = field(default="", compare=False)
    """When it was written first, UTC."""

    @classmethod
    def of(
        cls, parent: Commit | None, tree: Tree, ops: Sequence[Operation], step: int, message: str, meta: Mapping[str, Any]
    ) -> Self:
        """The commit of these contents. Raises EditError when `meta` is not plain JSON."""
        ancestor = None if parent is None else parent.id
        try:
            kept = json.loads(canonical_json(dict(meta)))
            name = _digest(ancestor, tree.digest, ops, step, readable(message, "a commit's message"), kept)
        except (TypeError, ValueError) as e:
            raise EditError(f"this cannot be committed: {e}") from e
        return cls(name, ancestor, 0 if parent is None else parent.depth + 1, tree.digest, step, tuple(ops), message, kept)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**{**row, "ops": tuple(json.loads(row["ops"])), "meta": json.loads(row["meta"])})

    def row(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "parent": self.parent,
            "depth": self.depth,
            "tree": self.tree,
            "step": self.step,
            "ops": canonical_json(self.ops),
            "message": self.message,
            "meta": canonical_json(self.meta),
        }

    def digest(self) -> str:
        """The id that the contents ask for."""
        return _digest(self.parent, self.tree, self.ops, self.step, self.message, self.meta)


def _digest(parent: str | None, tree: str, ops: Sequence[Operation], step: int, message: str, meta: Mapping[str, Any]) -> str:
    contents = {"parent": parent, "tree": tree, "ops": list(ops), "step": step, "message": message, "meta": meta}
    return sha256(canonical_json(contents))


ROOT = Commit.of(None, Tree(), (), 0, "an empty bank", {})
"""Every bank begins with it."""
