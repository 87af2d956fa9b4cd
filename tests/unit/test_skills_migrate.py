import contextlib
import sqlite3

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from gongfu.core.errors import MissingExtra
from gongfu.skills import dialects, migrate
from gongfu.skills.bank import FILE, SkillBank
from gongfu.skills.dialects import connect, reading, writing
from gongfu.skills.edits import Add
from gongfu.skills.errors import BankError
from gongfu.skills.schema import VERSION, metadata
from gongfu.skills.store import create_root
from skill_support import skill, use


@pytest.fixture
def file(tmp_path):
    return tmp_path / "bank.sqlite"


def old_bank(file):
    """A bank as the first schema had it, with one commit."""
    engine, _ = connect(file, create=True)
    with writing(engine) as connection:
        migrate._upgrade(connection, "0001")
        create_root(connection)
    engine.dispose()


def version(file):
    with contextlib.closing(sqlite3.connect(file)) as opened:
        return opened.execute("SELECT version_num FROM alembic_version").fetchall()


def tables(file):
    with contextlib.closing(sqlite3.connect(file)) as opened:
        return {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_migrations_make_the_schema_that_the_code_uses(file):
    SkillBank.open(file).close()
    engine, _ = connect(file, create=False)
    with reading(engine) as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    config = Config()
    config.set_main_option("script_location", str(migrate.Path(migrate.__file__).with_name("migrations")))
    assert ScriptDirectory.from_config(config).get_heads() == [VERSION]
    assert [p.name for p in file.parent.iterdir() if "before" in p.name] == []


def test_an_older_bank_is_copied_and_upgraded(file):
    old_bank(file)
    with SkillBank.open(file) as bank:
        first = bank.commit([Add(skill(1))], parent=bank.head(), step=1)
        assert bank.record_uses([use(skill(1), first.id)]) == 1 and bank.verify() == []
    copy = file.with_name(f"bank.sqlite.before-{VERSION}")
    assert (version(file), version(copy)) == ([(VERSION,)], [("0001",)])
    assert "uses" in tables(file) - tables(copy)
    copy.unlink()
    SkillBank.open(file).close()
    assert not copy.exists()


def test_a_failed_upgrade_leaves_the_bank_as_it_was(file, monkeypatch):
    old_bank(file)
    before = tables(file)

    def fail(dialect, table):
        raise RuntimeError("the lights went out")

    monkeypatch.setattr(dialects, "append_only", fail)
    with pytest.raises(RuntimeError):
        SkillBank.open(file)
    assert (version(file), tables(file)) == ([("0001",)], before)
    monkeypatch.undo()
    SkillBank.open(file).close()
    assert version(file) == [(VERSION,)]


def test_a_newer_bank_is_refused_and_left_alone(file):
    SkillBank.open(file).close()
    with contextlib.closing(sqlite3.connect(file)) as opened, opened:
        opened.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(BankError, match=rf"newer gongfu \(schema 9999, this one knows {VERSION}\): upgrade"):
        SkillBank.open(file)
    assert version(file) == [("9999",)]


def test_what_is_no_bank_is_refused(file, tmp_path):
    with pytest.raises(BankError, match=r"there is no bank at .*bank\.sqlite"):
        SkillBank.open(file, create=False)
    assert not file.exists()
    with pytest.raises(BankError, match="there is no folder"):
        SkillBank.open(tmp_path / "nowhere" / "bank.sqlite")
    text = tmp_path / "notes.txt"
    text.write_text("these are notes, not a bank " * 100)
    with pytest.raises(BankError, match=r"notes\.txt cannot be read or written: file is not a database"):
        SkillBank.open(text)
    for statement in ("CREATE TABLE recipes (x)", "CREATE TABLE alembic_version (version_num)"):
        with contextlib.closing(sqlite3.connect(file)) as opened, opened:
            opened.execute(statement)
        with pytest.raises(BankError, match="is no skill bank"):
            SkillBank.open(file)
        file.unlink()


def test_a_run_folder_and_a_url_name_the_bank_in_them(tmp_path):
    with SkillBank.open(tmp_path) as bank:
        bank.tag("here")
    assert (tmp_path / FILE).is_file()
    with SkillBank.open(f"sqlite:///{tmp_path / FILE}", create=False) as bank:
        assert "here" in bank.refs()


def test_other_databases_and_missing_drivers_are_refused(monkeypatch):
    with pytest.raises(BankError, match="not in mysql://"):
        SkillBank.open("mysql://u:secret@host/x")
    with pytest.raises(BankError, match=r"not in .*\*\*\*"):
        SkillBank.open("mysql://u:secret@host/x")
    with pytest.raises(BankError, match="no database URL"):
        SkillBank.open("://")
    monkeypatch.setattr(dialects.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"gongfu\[postgres\]"):
        SkillBank.open("postgresql://host/x")


def test_sqlite_is_set_up_for_many_processes(file, monkeypatch):
    SkillBank.open(file).close()
    monkeypatch.setattr(dialects, "BUSY_SECONDS", 0)
    (first, _), (second, _) = connect(file, create=False), connect(file, create=False)
    with reading(first) as connection:
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "foreign_keys")]
        assert pragmas == ["wal", 1]
    with writing(first):
        with pytest.raises(BankError, match="locked"), writing(second):
            pass
        with reading(second) as connection:  # readers go on
            assert connection.exec_driver_sql("SELECT count(*) FROM refs").scalar() == 1
