"""Run by Alembic; `gongfu.skills.migrate` passes the connection, within its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], render_as_batch=True, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
