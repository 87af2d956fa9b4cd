"""Answers on disk: one SQLite file that several processes may share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gongfu.core.records import from_json, to_json
from gongfu.engine.chat.records import ChatError, Reply

_BUSY = 60.0  # seconds to wait for another process
_FIND = "SELECT reply FROM answers WHERE digest = ?"


def digest(body: Mapping[str, Any]) -> str:
    """Identity of a request: the SHA-256 of its body in canonical JSON. The model is in it, the address and the key are not."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class AnswerCache:
    """Replies by digest. The first reply to a request is kept, so that every later reader sees the same one.

    A connection is opened for every access: nothing is shared between threads or across a fork. Raises ChatError where the
    file is missing (`read_only`), damaged or not writable.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self._path = path
        self._read_only = read_only
        if read_only:
            if not path.is_file():
                raise ChatError(f'{path} is missing: cache = "replay-only" needs the answers that "read-write" recorded')
            with self._open():
                return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ChatError(f"the folder of the cache of answers cannot be made: {e}") from e
        with self._open() as db:
            db.execute("CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, request TEXT, reply TEXT)")

    def get(self, key: str) -> Reply | None:
        with self._open() as db:
            row = db.execute(_FIND, (key,)).fetchone()
        return _reply(row) if row else None

    def put(self, body: Mapping[str, Any], reply: Reply) -> Reply:
        """Keep a reply, unless another one was first; returns the one that is kept."""
        key = digest(body)
        row = (key, json.dumps(body), json.dumps(to_json(reply)))
        with self._open() as db:
            db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", row)
            return _reply(db.execute(_FIND, (key,)).fetchone())

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            address = f"{self._path.absolute().as_uri()}?mode={'ro' if self._read_only else 'rwc'}"
            db = sqlite3.connect(address, timeout=_BUSY, isolation_level=None, uri=True)
            with contextlib.closing(db):
                yield db
        except sqlite3.Error as e:
            raise ChatError(
                f"the cache of answers {self._path} cannot be used: {e}; it must be a file that a chat client made, writable "
                "unless it is only replayed"
            ) from e


def _reply(row: tuple[str]) -> Reply:
    return from_json(Reply, json.loads(row[0]))
