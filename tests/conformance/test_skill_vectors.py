"""Searching vectors in PostgreSQL: the answers of NumPy, given by the database, and what happens where it cannot."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest
from sqlalchemy import create_engine, event, text

from gongfu.skills import neighbours, pgvector
from gongfu.skills.bank import SkillBank
from gongfu.skills.dense import DenseRetriever
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.errors import BankError
from gongfu.skills.neighbours import DatabaseSnapshot, MemorySnapshot
from gongfu.skills.retrieve import Query
from gongfu.skills.skill import Skill
from skill_support import Bagger, skill

NOUNS = ["fridge", "drawer", "apple", "key", "mug", "lamp", "desk", "open", "close", "take", "put", "in", "the"]


class Clouds:
    """An embedder for tests: texts in clouds around some centres, 64 dimensions."""

    id = "50% of clouds: 'a'"

    def embed(self, texts, *, query):
        return np.stack([self._one(text) for text in texts])

    def _one(self, text):
        digits = [int(word) for word in text.split() if word.isdigit()]
        vector = np.random.default_rng(digits[0] % 40).normal(size=64) + 0.5 * np.random.default_rng(digits).normal(size=64)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


@pytest.fixture
def bank(vector_location):
    with SkillBank.open(vector_location) as opened:
        yield opened


@pytest.fixture
def statements(bank):
    """What the bank's database is asked: (statement, values)."""
    heard = []
    event.listen(bank._engine, "before_cursor_execute", lambda _c, _cursor, sql, values, *_: heard.append((sql, values)))
    return heard


@pytest.fixture
def plain(server):
    """A database without the extension, the name of a role in it that may create tables and no extensions."""
    name = f"plain_{uuid.uuid4().hex}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        may = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        if not connection.execute(text(may)).scalar_one():
            pytest.skip("makes a role and a database, which this role may not")
        connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'plain'"))
        connection.execute(text(f"CREATE DATABASE {name} OWNER {name}"))
    yield server.set(database=name, username=name, password="plain"), server.set(database=name)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        connection.execute(text(f"DROP ROLE {name}"))
    admin.dispose()


def told(hits):
    return [[(hit.skill.id, hit.score) for hit in found] for found in hits]


def in_memory(bank, embedder, **options):
    """The retriever that any other bank would get."""
    retriever = DenseRetriever(embedder, bank, **options)
    retriever.snapshot = MemorySnapshot(retriever.texts)
    return retriever


@pytest.mark.parametrize("few", [0, 6, 256])
@pytest.mark.parametrize("options", [{"top_k": 4}, {"top_k": 3, "floor": 0.45}, {"per_kind": False}, {"states": ("retired",)}])
def test_the_database_answers_as_numpy_does(bank, monkeypatch, options, few):
    """Many texts repeat words, so many scores are equal or nearly so; few: whether candidates are named to the database."""
    monkeypatch.setattr(neighbours, "_FEW", few)
    rng = random.Random(str(options))
    there = [
        Skill(
            " ".join(rng.choices(NOUNS, k=rng.randint(1, 4))),
            name=f"n-{n}",
            kind=rng.choice(["", "cool", *map(str, range(30))]),
        )
        for n in range(300)
    ]
    bank.commit([Add(s, rng.choice(["active", "candidate", "retired"])) for s in there], parent=bank.head())
    database, memory = DenseRetriever(Bagger(), bank, **options), in_memory(bank, Bagger(), **options)
    assert isinstance(database.snapshot, DatabaseSnapshot)
    for step in range(3):
        edits = [Update(s.id, {"text": f"{s.text} the desk"}) for s in there[step * 5 : step * 5 + 5]]
        gone = there[-1 - step]
        edits.append(SetState(gone.id, "active" if bank.at().state(gone.id) == "retired" else "retired"))
        bank.commit(edits, parent=bank.head(), step=step)
        queries = [Query(" ".join(rng.choices(NOUNS, k=3)), kind) for kind in ("", "cool", "7", "none") for _ in range(5)]
        assert told(database.rank(queries, bank.at())) == told(memory.rank(queries, bank.at()))


def test_the_database_is_asked_and_sends_no_vectors_but_those_of_candidates(bank, statements):
    bank.commit([Add(skill(n, ""), "active") for n in range(600)], parent=bank.head())
    DenseRetriever(Bagger(), bank).rank([Query("advice")], bank.at())
    fresh, asked = Bagger(), [Query("open receptacle 17 first"), Query("advice number 4")]
    loaded, load = [], bank.load_embeddings
    bank.load_embeddings = lambda name, digests: (loaded.extend(digests), load(name, digests))[1]
    retriever = DenseRetriever(fresh, bank)
    statements.clear()
    found = retriever.rank(asked, bank.at())
    assert [hits[0].skill.text[:16] for hits in found] == ["Advice number 17", "Advice number 4:"]
    assert fresh.asked == [q.text for q in asked] and 2 <= len(loaded) < 40
    assert sum("<#>" in sql for sql, _ in statements) == 2
    assert not any("embedding" in sql and "INSERT" in sql for sql, _ in statements)


def test_a_search_goes_on_until_nothing_beyond_can_be_a_hit(bank, statements, monkeypatch):
    """The nearest 300 texts are of another kind, or gone."""
    monkeypatch.setattr(neighbours, "_FEW", 0)
    near = [Skill("open the fridge", name=f"n-{n}", kind="heat") for n in range(150)]
    old = [Skill(f"open the fridge fridge {'open ' * n}") for n in range(150)]
    far = Skill("close the fridge, take a lamp from the desk", kind="cool")
    bank.commit([Add(s, "active") for s in (*near, *old, far)], parent=bank.head())
    retriever = DenseRetriever(Bagger(), bank)
    retriever.rank([Query("open the fridge")], bank.at())
    bank.commit([SetState(s.id, "retired") for s in old], parent=bank.head())
    statements.clear()
    assert [h.skill.id for h in retriever.rank([Query("open the fridge", "cool")], bank.at())[0]] == [far.id]
    assert sum("<#>" in sql for sql, _ in statements) > 1
    assert retriever.rank([Query("open the fridge", "mop")], bank.at()) == [[]]


def test_a_bank_whose_vectors_were_cached_before_needs_no_embedder_to_gain_the_table(bank):
    bank.commit([Add(skill(n, ""), "active") for n in range(20)], parent=bank.head())
    queries = [Query("receptacle 3"), Query("advice number 11")]
    before = told(in_memory(bank, Bagger()).rank(queries, bank.at()))
    with bank._engine.begin() as connection:
        connection.execute(text("DROP TABLE embedding_vectors"))
    embedder = Bagger()
    assert told(DenseRetriever(embedder, bank).rank(queries, bank.at())) == before
    assert embedder.asked == [q.text for q in queries]


def test_the_hnsw_index_is_used_and_overlooks_little(bank, statements):
    bank.commit([Add(Skill(f"Advice {n % 40} {n} ."), "active") for n in range(3000)], parent=bank.head())
    view, queries = bank.at(), [Query(f"{n % 40} {n} 7") for n in range(100)]
    exact = in_memory(bank, Clouds(), top_k=10).rank(queries, view)
    approximate = DenseRetriever(Clouds(), bank, top_k=10, index="hnsw")
    found = approximate.rank(queries, view)
    recall = sum(len({h.skill.id for h in a} & {h.skill.id for h in b}) for a, b in zip(found, exact, strict=True)) / 1000
    assert recall >= 0.95, recall
    sql, values = next((sql, values) for sql, values in statements if "<#>" in sql and "CAST" in sql.split("OPERATOR")[0])
    with bank._engine.begin() as connection:
        for setting in ("enable_seqscan", "enable_sort"):
            connection.exec_driver_sql(f"SET LOCAL {setting} = off")
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {sql}", values).scalars())
    assert "Index Scan using embedding_vectors_" in plan, plan
    assert told(DenseRetriever(Clouds(), bank, top_k=10).rank(queries, view)) == told(exact), "exact though an index is there"


def test_hnsw_that_finds_too_few_leaves_it_to_the_exact_search(bank, monkeypatch):
    monkeypatch.setattr(neighbours, "_FEW", 0)
    monkeypatch.setattr(pgvector, "_MOST_EF", 1)
    monkeypatch.setitem(pgvector._HNSW, "hnsw.max_scan_tuples", "1")
    bank.commit([Add(skill(n, ""), "active") for n in range(300)], parent=bank.head())
    queries = [Query("receptacle 3")]
    found = DenseRetriever(Bagger(), bank, top_k=5, index="hnsw").rank(queries, bank.at())
    assert told(found) == told(in_memory(bank, Bagger(), top_k=5).rank(queries, bank.at())) and len(found[0]) == 5


def test_a_server_without_the_extension_is_searched_by_numpy_until_it_has_it(plain):
    location, admin = plain
    queries = [Query("receptacle 3"), Query("advice number 11")]
    with SkillBank.open(location.render_as_string(hide_password=False)) as bank:
        bank.commit([Add(skill(n, ""), "active") for n in range(20)], parent=bank.head())
        retriever = DenseRetriever(Bagger(), bank)
        assert bank.vector_search("any") is None and isinstance(retriever.snapshot, MemorySnapshot)
        before = told(retriever.rank(queries, bank.at()))
        with pytest.raises(BankError, match="create it"):
            DenseRetriever(Bagger(), bank, index="hnsw")
        engine = create_engine(admin)
        with engine.begin() as connection:
            tables = set(connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars())
            assert "embeddings" in tables and "embedding_vectors" not in tables
            connection.execute(text("CREATE EXTENSION vector"))
        engine.dispose()
        embedder = Bagger()
        later = DenseRetriever(embedder, bank)
        assert isinstance(later.snapshot, DatabaseSnapshot)
        assert told(later.rank(queries, bank.at())) == before and embedder.asked == [q.text for q in queries]


def test_a_bank_in_a_file_has_no_index(tmp_path):
    with SkillBank.open(tmp_path / "bank.sqlite") as bank:
        assert isinstance(DenseRetriever(Bagger(), bank).snapshot, MemorySnapshot)
        with pytest.raises(BankError, match=r'index = "hnsw" needs a bank in PostgreSQL'):
            DenseRetriever(Bagger(), bank, index="hnsw")


WRITE = """
import sys, time
import numpy as np
from gongfu.skills.bank import SkillBank

location, who, start = sys.argv[1:]
with SkillBank.open(location) as bank:
    search = bank.vector_search("same")
    for turn in range(10):
        time.sleep(max(0, float(start) + turn / 5 - time.time()))  # so that they meet
        names = [f"{turn:032d}{n:032d}" for n in range(100)]
        vectors = {d: np.full(8, 8 ** -0.5, dtype=np.float32) for d in (names if int(who) % 2 else reversed(names))}
        bank.store_embeddings("same", vectors)
        search.add(vectors)
"""


def test_processes_that_store_the_same_vectors_at_once_all_succeed(bank, vector_location):
    """Some begin with the last: two that waited for each other's rows would fail."""
    with bank._engine.begin() as connection:
        connection.execute(text("DROP TABLE embedding_vectors"))  # made by whoever is first
    command, start = [sys.executable, "-c", WRITE, vector_location], str(time.time() + 4)
    writers = [subprocess.Popen([*command, str(n), start], stderr=subprocess.PIPE, text=True) for n in range(4)]
    said = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4, said
    search = bank.vector_search("same")
    assert len(search.nearest(np.eye(8, dtype=np.float32)[0], 2000)) == 1000
