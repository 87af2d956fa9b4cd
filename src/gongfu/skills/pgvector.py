"""Searching vectors in PostgreSQL by its extension pgvector (named `vector` there), where a server has it.

The table `embedding_vectors` repeats vectors of `embeddings` in the extension's type. It is no part of the migrations: whether
it can be made depends on the server, today and tomorrow, and all that is in it can be made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, text

from gongfu.skills.dialects import lock_schema, reading, writing
from gongfu.skills.errors import BankError

# An extension lies in a schema that the bank's search path need not name, so its type and operators are always qualified.
_SCHEMA = """
    SELECT quote_ident(n.nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector' AND has_schema_privilege(n.oid, 'USAGE')
"""
_MAY_CREATE = """
    SELECT 1 FROM pg_available_extensions, pg_roles
    WHERE name = 'vector' AND installed_version IS NULL AND rolname = current_user AND rolsuper
    AND to_regnamespace('public') IS NOT NULL
"""
_TABLE = """
    CREATE TABLE embedding_vectors (
        text_digest varchar(64), embedder varchar(200), vector {schema}.vector NOT NULL, PRIMARY KEY (text_digest, embedder),
        FOREIGN KEY (text_digest, embedder) REFERENCES embeddings ON DELETE CASCADE
    )
"""
_HNSW = {
    "hnsw.iterative_scan": "strict_order",  # goes on until `count` are found
    "plan_cache_mode": "force_custom_plan",  # the index is for one embedder, which a generic plan does not know
    "enable_seqscan": "off",
    "enable_sort": "off",
}
_LEAST_EF, _MOST_EF = 200, 1000
_BATCH = 500
_MOST_DIMENSIONS = 2000


def open_search(engine: Engine, embedder: str, *, approximate: bool = False) -> PgVectorSearch | None:
    """A search of the vectors of one embedder, None where the database cannot.

    Creates the table when it is not there, and the extension when the role is a superuser; any other role needs it created:
    `CREATE EXTENSION vector`.
    """
    if engine.dialect.name != "postgresql":
        return None
    with reading(engine) as connection:
        schema, there = _extension(connection), _has_table(connection)
    if schema is None or not there:
        with writing(engine) as connection:
            lock_schema(connection)
            schema = _prepare(connection)
    return None if schema is None else PgVectorSearch(engine, schema, embedder, approximate=approximate)


class PgVectorSearch:
    """Texts by the inner product of their vectors with a given one, which for vectors of length 1 is the cosine.

    Exact: all vectors of the embedder are looked at. Approximate: an HNSW index of the embedder's vectors (pgvector 0.8 or
    newer), made when it is first asked; where it finds too few, all are looked at.
    """

    def __init__(self, engine: Engine, schema: str, embedder: str, *, approximate: bool = False) -> None:
        self._engine = engine
        self._schema = schema
        self._embedder = embedder
        self._approximate = approximate
        self._indexed = False

    def missing(self, text_digests: Collection[str]) -> list[str]:
        """Those of these texts that cannot be found."""
        if not text_digests:
            return []
        query = text("SELECT text_digest FROM embedding_vectors WHERE embedder = :embedder AND text_digest = ANY(:digests)")
        with reading(self._engine) as connection:
            there = set(connection.execute(query, {"embedder": self._embedder, "digests": list(text_digests)}).scalars())
        return [digest for digest in text_digests if digest not in there]

    def add(self, vectors: Mapping[str, NDArray[np.float32]]) -> None:
        """Make texts findable whose embeddings are stored. One that is there already stays."""
        if not vectors:
            return
        rows = text(f"""
            INSERT INTO embedding_vectors (text_digest, embedder, vector)
            SELECT digest, :embedder, CAST(vector AS {self._schema}.vector)
            FROM unnest(CAST(:digests AS text[]), CAST(:vectors AS text[])) AS new (digest, vector)
            ON CONFLICT DO NOTHING
        """)
        digests = sorted(vectors)  # all writers in one order: none waits for another in a circle
        with writing(self._engine) as connection:
            for start in range(0, len(digests), _BATCH):
                batch = digests[start : start + _BATCH]
                literals = [_literal(vectors[digest]) for digest in batch]
                connection.execute(rows, {"embedder": self._embedder, "digests": batch, "vectors": literals})

    def nearest(self, vector: NDArray[np.float32], count: int, among: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """At most `count` texts (digest, inner product), best first; with `among`, of these digests only."""
        if self._approximate and among is None:
            self._index(len(vector))
            found = self._select(vector, count, f"CAST(vector AS {self._schema}.vector({len(vector)}))", hnsw=True)
            if len(found) == count:
                return found
        return self._select(vector, count, "vector", among)

    def _select(
        self, vector: NDArray[np.float32], count: int, column: str, among: Sequence[str] | None = None, *, hnsw: bool = False
    ) -> list[tuple[str, float]]:
        query = text(f"""
            SELECT text_digest, {column} OPERATOR({self._schema}.<#>) CAST(:vector AS {self._schema}.vector) AS distance
            FROM embedding_vectors
            WHERE embedder = :embedder {"" if among is None else "AND text_digest = ANY(:among)"}
            ORDER BY distance LIMIT :count
        """)
        values = {"vector": _literal(vector), "embedder": self._embedder, "count": count}
        with reading(self._engine) as connection:
            if hnsw:
                settings = {**_HNSW, "hnsw.ef_search": str(min(max(count, _LEAST_EF), _MOST_EF))}
                local = text("SELECT set_config(key, value, true) FROM json_each_text(CAST(:settings AS json))")
                connection.execute(local, {"settings": json.dumps(settings)})
            rows = connection.execute(query, values if among is None else {**values, "among": list(among)})
            return [(digest, -distance) for digest, distance in rows]

    def _index(self, dimensions: int) -> None:
        if self._indexed:
            return
        if dimensions > _MOST_DIMENSIONS:
            raise BankError(
                f"pgvector indexes at most {_MOST_DIMENSIONS} dimensions, but {self._embedder} has {dimensions}; "
                'set method.retrieval.index = "exact"'
            )
        name = f"embedding_vectors_{hashlib.sha256(self._embedder.encode()).hexdigest()[:16]}"
        statement = f"""
            SELECT format('CREATE INDEX IF NOT EXISTS {name} ON embedding_vectors
            USING hnsw ((vector::{self._schema}.vector({dimensions})) {self._schema}.vector_ip_ops)
            WHERE embedder = %L', CAST(:embedder AS text))
        """
        with writing(self._engine) as connection:
            lock_schema(connection)
            quoted = connection.execute(text(statement), {"embedder": self._embedder}).scalar_one()
            connection.exec_driver_sql(quoted.replace("%", "%%"))  # the driver takes % for a placeholder
        self._indexed = True


def _extension(connection: Connection) -> str | None:
    return connection.exec_driver_sql(_SCHEMA).scalar_one_or_none()


def _has_table(connection: Connection) -> bool:
    return connection.exec_driver_sql("SELECT to_regclass('embedding_vectors') IS NOT NULL").scalar_one()


def _prepare(connection: Connection) -> str | None:
    """Make what is missing and may be made; the schema of the extension, None when something is still missing."""
    schema = _extension(connection)
    if schema is None and connection.exec_driver_sql(_MAY_CREATE).first() is not None:
        connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        schema = _extension(connection)
    if schema is None or _has_table(connection):
        return schema
    if not connection.exec_driver_sql("SELECT has_schema_privilege(current_schema(), 'CREATE')").scalar_one():
        return None
    connection.exec_driver_sql(_TABLE.format(schema=schema))
    # In the row, not beside it, where a search would have to look each one up.
    connection.exec_driver_sql("ALTER TABLE embedding_vectors ALTER COLUMN vector SET STORAGE MAIN")
    return schema


def _literal(vector: NDArray[np.float32]) -> str:
    return "[" + ",".join(f"{x:.9g}" for x in vector.tolist()) + "]"  # nine digits tell any two float32 apart
