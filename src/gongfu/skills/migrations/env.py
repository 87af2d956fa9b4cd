"""Run by Alembic; `gongfu.skills.migrate` passes the connection, within its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
