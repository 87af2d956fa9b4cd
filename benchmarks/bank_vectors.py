"""Who should search the vectors of a bank in PostgreSQL: NumPy, which loads them all, or pgvector, where they are?

Banks of some sizes hold skills with vectors of 384 dimensions in clouds of 20. A query lies near a skill or, `unrelated`,
anywhere. Both are searches of `DenseRetriever`; they give the same hits (`same_answers`). In one run, by number of skills:

* `numpy_ms`, `pgvector_ms`, `hnsw_ms`: median time of a query, for the one best skill. `slowdown` and `hnsw_slowdown`: these as
  multiples of `numpy_ms`.
* `numpy_first_s`, `pgvector_first_s`: what a fresh process waits for its first answer once it has read the skills, and
  `numpy_mb`, what it loads and keeps for it. `add_s`, `build_s`: giving pgvector the vectors, once, and making the HNSW index.
* `recall`, `recall_unrelated`: how many of the ten best the HNSW index finds.

    python benchmarks/bank_vectors.py                               # 1,000 and 10,000 skills: a minute or two
    python benchmarks/bank_vectors.py --skills 1000 --queries 20
    python benchmarks/bank_vectors.py --skills 100000               # some ten minutes
    GONGFU_TEST_POSTGRES=postgresql://... python benchmarks/bank_vectors.py        # a server of yours; else one is started
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from _record import record
from bank_postgres import postgres, schema

from gongfu.skills.bank import SkillBank
from gongfu.skills.dense import DenseRetriever
from gongfu.skills.edits import Add
from gongfu.skills.embedding import VectorCache
from gongfu.skills.retrieve import Hit, Query, Selection
from gongfu.skills.skill import Skill
from gongfu.skills.view import BankView

FULL = {"skills": [1_000, 10_000], "queries": 50}
DIMENSIONS, CLOUD, BEST, BATCH = 384, 20, 10, 10_000


class Clouds:
    """An embedder: "SKILL 7 ..." is somewhere in its cloud, "NEAR 7 ..." near that skill, any other text anywhere."""

    id = "clouds"

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        return np.stack([self._one(*text.split()[:2]) for text in texts])

    def _one(self, word: str, number: str) -> np.ndarray:
        n = int(number)
        vector = np.random.default_rng((1, n)).normal(size=DIMENSIONS)
        if word != "ANYWHERE":
            vector = np.random.default_rng((2, n // CLOUD)).normal(size=DIMENSIONS) + 0.7 * vector
        if word == "NEAR":
            vector += 0.5 * np.random.default_rng((3, n)).normal(size=DIMENSIONS)
        return (vector / np.linalg.norm(vector)).astype(np.float32)


class CacheOnly:
    """A bank that keeps vectors and searches none, whatever its database can."""

    def __init__(self, bank: VectorCache) -> None:
        self.load_embeddings = bank.load_embeddings
        self.store_embeddings = bank.store_embeddings

    def vector_search(self, embedder: str, *, approximate: bool) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skills", type=int, nargs="+", default=FULL["skills"])
    parser.add_argument("--queries", type=int, default=FULL["queries"], help="of each sort")
    options = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder, postgres(Path(folder)) as url:
        for skills in options.skills:
            with schema(url) as location, SkillBank.open(location) as bank:
                if bank.vector_search(Clouds.id) is None:
                    raise SystemExit("this server has no pgvector, or the role may not create it: CREATE EXTENSION vector")
                found[str(skills)] = measure(bank, skills, options.queries)
                print(skills, found[str(skills)], flush=True)
    result = {
        "same_answers": all(of.pop("same_answers") for of in found.values()),
        "by_skills": found,
        "dimensions": DIMENSIONS,
        "queries": options.queries,
    }
    record("bank_vectors", result, full=options.skills == FULL["skills"] and options.queries >= FULL["queries"])


def measure(bank: SkillBank, skills: int, queries: int) -> dict[str, Any]:
    for start in range(0, skills, BATCH):
        numbers = range(start, min(start + BATCH, skills))
        bank.commit([Add(Skill(f"SKILL {n} says what to do."), "active") for n in numbers], parent=bank.head())
    view, rng = bank.at(), np.random.default_rng(0)
    near = [Query(f"NEAR {n} ?") for n in rng.integers(skills, size=queries)]
    unrelated = [Query(f"ANYWHERE {n + skills} ?") for n in range(queries)]
    DenseRetriever(Clouds(), CacheOnly(bank)).rank(near[:1], view)  # embeds the skills, which the bank then keeps
    numpy = DenseRetriever(Clouds(), CacheOnly(bank))
    _, numpy_first = timed(numpy, near[:1], view)
    _, add = timed(DenseRetriever(Clouds(), bank), near[:1], view)
    exact, hnsw = DenseRetriever(Clouds(), bank), DenseRetriever(Clouds(), bank, index="hnsw")
    _, pgvector_first = timed(exact, near[:1], view)
    _, build = timed(hnsw, near[:1], view)
    retrievers = {"numpy": numpy, "pgvector": exact, "hnsw": hnsw}
    for retriever in retrievers.values():
        retriever.texts.of_queries([q.text for q in (*near, *unrelated)])
    times: dict[str, list[float]] = {name: [] for name in retrievers}
    for query in near:  # one after the other, so that what else the machine does slows all of them down
        for name, retriever in retrievers.items():
            times[name].append(timed(retriever, [query], view)[1])
    ms = {name: 1000 * median(values) for name, values in times.items()}
    for retriever in retrievers.values():
        retriever.selection = Selection(top_k=BEST)
    best = {name: [retriever.rank(asked, view) for asked in (near, unrelated)] for name, retriever in retrievers.items()}
    return {
        "slowdown": round(ms["pgvector"] / ms["numpy"], 2),
        "hnsw_slowdown": round(ms["hnsw"] / ms["numpy"], 2),
        **{f"{name}_ms": round(value, 3) for name, value in ms.items()},
        "numpy_first_s": round(numpy_first, 3),
        "pgvector_first_s": round(pgvector_first, 3),
        "numpy_mb": round(numpy.snapshot.vectors.nbytes / 1e6, 1),
        "add_s": round(add, 2),
        "build_s": round(build, 2),
        "recall": recall(best["hnsw"][0], best["numpy"][0]),
        "recall_unrelated": recall(best["hnsw"][1], best["numpy"][1]),
        "same_answers": best["numpy"] == best["pgvector"],
    }


def timed(retriever: DenseRetriever, queries: Sequence[Query], view: BankView) -> tuple[list[list[Hit]], float]:
    started = time.perf_counter()
    found = retriever.rank(queries, view)
    return found, time.perf_counter() - started


def recall(found: Sequence[Sequence[Hit]], best: Sequence[Sequence[Hit]]) -> float:
    both = [len({h.skill.id for h in some} & {h.skill.id for h in all_}) for some, all_ in zip(found, best, strict=True)]
    return round(sum(both) / sum(map(len, best)), 4)


if __name__ == "__main__":
    main()
