"""The log: skill versions, commits, branches and tags."""

import sqlalchemy as sa
from alembic import op

from gongfu.skills.dialects import append_only

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "objects",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "commits",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("parent", sa.String(64), sa.ForeignKey("commits.id")),
        sa.Column("depth", sa.Integer, nullable=False),
        sa.Column("tree", sa.String(64), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("ops", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
    )
    op.create_table(
        "refs",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("commit_id", sa.String(64), sa.ForeignKey("commits.id"), nullable=False),
    )
    op.create_table(
        "reflog",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("ref", sa.String(200), nullable=False),
        sa.Column("old", sa.String(64)),
        sa.Column("new", sa.String(64), nullable=False),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("at", sa.String(40), nullable=False),
    )
    for table in ("objects", "commits", "reflog"):
        for statement in append_only(op.get_bind().dialect.name, table):
            op.execute(statement)
