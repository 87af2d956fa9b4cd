"""The tables of a bank. How they came to be is in `migrations`; a test holds the two together."""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text

VERSION = "0002"
"""Newest migration: the schema that this code reads and writes."""

metadata = MetaData()

# Text columns named ops, meta and body hold canonical JSON: a commit's id is a digest over exactly this text.
objects = Table(
    "objects",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("body", Text, nullable=False),
)
commits = Table(
    "commits",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("parent", String(64), ForeignKey("commits.id")),
    Column("depth", Integer, nullable=False),
    Column("tree", String(64), nullable=False),
    Column("step", Integer, nullable=False),
    Column("ops", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("meta", Text, nullable=False),
    Column("at", String(40), nullable=False),
)
refs = Table(
    "refs",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("kind", String(10), nullable=False),
    Column("commit_id", String(64), ForeignKey("commits.id"), nullable=False),
)
reflog = Table(
    "reflog",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("ref", String(200), nullable=False),
    Column("old", String(64)),
    Column("new", String(64), nullable=False),
    Column("why", Text, nullable=False),
    Column("at", String(40), nullable=False),
)
uses = Table(
    "uses",
    metadata,
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("trajectory", String(200), primary_key=True),
    Column("skill", String(16), primary_key=True),
    Column("mode", String(10), primary_key=True),
    Column("version", String(64), ForeignKey("objects.digest"), nullable=False),
    Column("commit_id", String(64), ForeignKey("commits.id"), nullable=False),
    Column("kind", String(200), nullable=False),
    Column("success", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Column("turns", Integer, nullable=False),
    Index("uses_by_version", "version", "mode", "step", "success"),  # utilities read nothing else
    Index("uses_by_skill", "skill", "step"),
)
proposals = Table(
    "proposals",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("step", Integer, nullable=False),
    Column("op", String(40), nullable=False),
    Column("target", String(16), nullable=False),
    Column("decision", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("proposals_by_step", "step"),
)
embeddings = Table(
    "embeddings",
    metadata,
    Column("text_digest", String(64), primary_key=True),
    Column("embedder", String(200), primary_key=True),
    Column("vector", LargeBinary, nullable=False),
)
