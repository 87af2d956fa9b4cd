"""Vectors of texts that were embedded before. A cache: nothing is lost with it but time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Engine, select

from gongfu.skills.dialects import insert_missing, reading, writing
from gongfu.skills.schema import embeddings

_BATCH = 500


def load(engine: Engine, embedder: str, text_digests: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """The cached vectors among those of these texts."""
    found: dict[str, NDArray[np.float32]] = {}
    with reading(engine) as connection:
        for start in range(0, len(text_digests), _BATCH):
            wanted = embeddings.c.text_digest.in_(text_digests[start : start + _BATCH])
            query = select(embeddings.c.text_digest, embeddings.c.vector).where(embeddings.c.embedder == embedder, wanted)
            found |= {digest: np.frombuffer(vector, dtype="<f4") for digest, vector in connection.execute(query)}
    return found


def store(engine: Engine, embedder: str, vectors: Mapping[str, NDArray[np.float32]]) -> None:
    """Cache vectors by text digest. One that is there already stays."""
    # All writers in one order: none waits for another in a circle.
    ordered = sorted(vectors.items(), key=lambda item: item[0])
    rows = [{"text_digest": d, "embedder": embedder, "vector": v.astype("<f4").tobytes()} for d, v in ordered]
    with writing(engine) as connection:
        insert_missing(connection, embeddings, rows)
