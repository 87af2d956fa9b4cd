"""Banks for the tests here. PostgreSQL joins in when GONGFU_TEST_POSTGRES names one by URL."""

from __future__ import annotations

import os
import uuid

import pytest
from sqlalchemy import create_engine, make_url, text

from gongfu.skills.bank import SkillBank

POSTGRES = os.environ.get("GONGFU_TEST_POSTGRES")


@pytest.fixture(params=["sqlite", "postgresql"] if POSTGRES else ["sqlite"])
def location(request, tmp_path):
    """Where a new bank can be made."""
    if request.param == "sqlite":
        yield str(tmp_path / "bank.sqlite")
        return
    schema = f"test_{uuid.uuid4().hex}"
    url = make_url(str(POSTGRES)).set(drivername="postgresql+psycopg")
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
