"""Evidence: uses and proposals. Embeddings, a cache."""

import sqlalchemy as sa
from alembic import op

from gongfu.skills.dialects import append_only

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "uses",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("trajectory", sa.String(200), primary_key=True),
        sa.Column("skill", sa.String(16), primary_key=True),
        sa.Column("mode", sa.String(10), primary_key=True),
        sa.Column("version", sa.String(64), sa.ForeignKey("objects.digest"), nullable=False),
        sa.Column("commit_id", sa.String(64), sa.ForeignKey("commits.id"), nullable=False),
        sa.Column("kind", sa.String(200), nullable=False),
        sa.Column("success", sa.Integer, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("turns", sa.Integer, nullable=False),
    )
    op.create_index("uses_by_version", "uses", ["version", "mode", "step", "success"])
    op.create_index("uses_by_skill", "uses", ["skill", "step"])
    op.create_table(
        "proposals",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("op", sa.String(40), nullable=False),
        sa.Column("target", sa.String(16), nullable=False),
        sa.Column("decision", sa.String(40), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("proposals_by_step", "proposals", ["step"])
    op.create_table(
        "embeddings",
        sa.Column("text_digest", sa.String(64), primary_key=True),
        sa.Column("embedder", sa.String(200), primary_key=True),
        sa.Column("vector", sa.LargeBinary, nullable=False),
    )
    for table in ("uses", "proposals"):
        for statement in append_only(op.get_bind().dialect.name, table):
            op.execute(statement)
