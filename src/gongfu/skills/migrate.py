"""Brings a bank's tables to the schema of this code: a new bank, an older one (after a backup), never a newer one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from gongfu.skills.dialects import back_up, lock_schema, reading, writing
from gongfu.skills.errors import BankError
from gongfu.skills.schema import VERSION


def migrate(engine: Engine, file: Path | None) -> None:
    """Upgrade if needed. An older SQLite bank is first copied to `<file>.before-<version>`.

    Raises BankError when the bank is newer than this code, or the database holds something else.
    """
    with reading(engine) as connection:
        if _current(connection, engine) == VERSION:
            return
    with writing(engine) as connection:
        lock_schema(connection)
        found = _current(connection, engine)  # again under the lock: another process may have been first
        if found == VERSION:
            return
        if found is not None and file is not None:
            back_up(file, file.with_name(f"{file.name}.before-{VERSION}"))
        _upgrade(connection)


def _current(connection: Connection, engine: Engine) -> str | None:
    """Version of the schema, None for an empty database."""
    where = engine.url.render_as_string()
    tables = inspect(connection).get_table_names()
    if "alembic_version" not in tables:
        if tables:
            raise BankError(f"{where} is no skill bank: it holds the table {tables[0]!r} and no schema version")
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if found is None or "refs" not in tables:
        raise BankError(f"{where} is no skill bank")
    if found > VERSION:
        raise BankError(f"{where} was written by a newer gongfu (schema {found}, this one knows {VERSION}): upgrade gongfu")
    return found


def _upgrade(connection: Connection, target: str = VERSION) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, target)
