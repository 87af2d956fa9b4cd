"""All that differs between SQLite and PostgreSQL: connecting, locking, append-only tables, backup."""

from __future__ import annotations

import contextlib
import importlib.util
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from gongfu.core.errors import MissingExtra
from gongfu.skills.errors import BankError

BUSY_SECONDS = 60
"""How long a SQLite writer waits for another one."""


def connect(location: str | Path, *, create: bool) -> tuple[Engine, Path | None]:
    """An engine for a file or a URL, and the file when it is one. Raises BankError, or MissingExtra for a driver."""
    url = check_location(location)
    if url is None or url.get_backend_name() == "sqlite":
        return _sqlite(Path(str(location) if url is None else str(url.database)), create=create)
    return create_engine(url.set(drivername="postgresql+psycopg")), None


def check_location(location: str | Path) -> URL | None:
    """The URL of a bank, None for a file, without opening it. Raises as `connect` does."""
    text = str(location)
    if "://" not in text:
        return None
    try:
        url = make_url(text)
    except ArgumentError as e:
        raise BankError(f"{text!r} is no database URL: {e}") from e
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database:
        return url
    if backend != "postgresql":
        raise BankError(f"a bank lives in an SQLite file or in PostgreSQL, not in {url.render_as_string()}")
    if importlib.util.find_spec("psycopg") is None:
        raise MissingExtra("a bank in PostgreSQL", "postgres")
    return url


@contextlib.contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the bank. Database errors become BankErrors."""
    one_state = engine.execution_options(isolation_level="REPEATABLE READ") if _is_postgres(engine) else engine
    with database_errors(engine), one_state.begin() as connection:
        yield connection


@contextlib.contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that may write: one at a time in SQLite, where it holds the lock from its start."""
    with database_errors(engine), engine.execution_options(writes=True).begin() as connection:
        yield connection


@contextlib.contextmanager
def database_errors(engine: Engine) -> Iterator[None]:
    try:
        yield
    except IntegrityError as e:
        raise BankError(f"the bank {engine.url.render_as_string()} refused a row: {e.orig}") from e
    except (SQLAlchemyError, sqlite3.Error) as e:  # the second while a connection is prepared
        reason = getattr(e, "orig", None) or e
        raise BankError(f"the bank {engine.url.render_as_string()} cannot be read or written: {reason}") from e


def lock_schema(connection: Connection) -> None:
    """Let one process at a time change the tables (in SQLite any writer is alone)."""
    if _is_postgres(connection):
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7073676)")


def insert_missing(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> int:
    """Insert the rows whose primary key is not there yet; how many these were."""
    if not rows:
        return 0
    insert = postgresql.insert if _is_postgres(connection) else sqlite.insert
    done = connection.execute(insert(table).on_conflict_do_nothing(), rows, execution_options={"preserve_rowcount": True})
    return done.rowcount


def append_only(dialect: str, table: str) -> list[str]:
    """Statements that make a table refuse UPDATE and DELETE."""
    message = f"{table} are append-only"
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, '{message}'); END"
            for verb in ("UPDATE", "DELETE")
        ]
    return [
        f"CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '{message}'; END $$",
        f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse()",
    ]


def back_up(file: Path, target: Path) -> None:
    """Copy a SQLite bank, whole even while others write in it."""
    with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def damage(connection: Connection) -> list[str]:
    """What SQLite itself finds wrong with its file."""
    if _is_postgres(connection):
        return []
    found = [row[0] for row in connection.exec_driver_sql("PRAGMA integrity_check")]
    return [] if found == ["ok"] else [f"file: {line}" for line in found]


def _is_postgres(on: Engine | Connection) -> bool:
    return on.dialect.name == "postgresql"


def _sqlite(file: Path, *, create: bool) -> tuple[Engine, Path]:
    if not create and not file.is_file():
        raise BankError(f"there is no bank at {file}")
    if not file.parent.is_dir():
        raise BankError(f"there is no folder {file.parent} to make a bank in")
    engine = create_engine(URL.create("sqlite", database=str(file)))

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # the driver opens no transactions of its own: `begin` below does
        connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes the lock at once: what it has read is then still true when it writes.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    return engine, file
