"""The folder of a run: what it holds, who may write in it, and writes that are whole or not there at all.

    runs/<name>/config.toml      the resolved configuration
                run.json         versions, seeds, digests, when it was created
                metrics.jsonl    one record a line
                trajectories/    checkpoints/    report/

Wall-clock values live only under metric names that start with `time/` or `perf/`, so that two runs can be compared.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import shutil
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from gongfu import __version__
from gongfu.core.errors import RunFolderError

CLOCK_PREFIXES = ("time/", "perf/")
_FORMAT = 1
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PARTS = ("trajectories", "checkpoints", "report")
_OWN = {"config.toml", ".lock", ".holder.json", *_PARTS}
_VERSIONS = ("numpy", "torch", "transformers", "peft", "tokenizers", "safetensors")
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunFolder:
    """A run's folder. A process that trains in it holds its lock from `create` or `open` until `close`.

    >>> with RunFolder.create("runs/first", config_toml="seed = 0", info={"seed": 0}) as folder:     # doctest: +SKIP
    ...     folder.append_metrics({"step": 1, "phase": "train", "rollout/success": 0.25})
    """

    def __init__(self, path: Path, record: Mapping[str, Any], lock: FileLock | None) -> None:
        self.path = path
        self.created: str = record["created"]
        self.versions: dict[str, str] = record["versions"]
        self.config_sha256: str = record["config_sha256"]
        self.info: dict[str, Any] = record["info"]
        self._lock = lock
        self._metrics: _LineFile | None = None
        self._fresh = False
        """Made by this process."""
        if lock is not None:
            with disk_errors(path):
                for leftover in [*path.glob(".tmp-*"), *path.glob("trajectories/.tmp-*")]:
                    leftover.unlink()  # of a killed `write_atomic`
                self._metrics = _LineFile(self.metrics_path)

    @classmethod
    def create(cls, path: str | Path, *, config_toml: str, info: Mapping[str, Any]) -> Self:
        """Make the folder of a new run and lock it. `info` (seeds, digests, ...) holds JSON values.

        Raises RunFolderError when the path already holds a run or anything else, or cannot be written.
        """
        path = Path(path).resolve()
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            _refuse_taken(path)
            lock = _acquire(path)
        try:
            _refuse_taken(path)  # again under the lock: another process may have been first
            record = {
                "format": _FORMAT,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "versions": versions(),
                "config_sha256": hashlib.sha256(config_toml.encode()).hexdigest(),
                "info": dict(info),
            }
            with disk_errors(path):
                for part in _PARTS:
                    (path / part).mkdir(exist_ok=True)
            write_atomic(path / "config.toml", config_toml)
            # Last: a folder without run.json is no run yet, and a killed `create` can simply be repeated.
            write_atomic(path / "run.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
            folder = cls(path, record, lock)
            folder._fresh = True
            return folder
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | Path, *, lock: bool = True) -> Self:
        """Open an existing run: to go on training, or with `lock=False` only to read (possible while it trains).

        With the lock, a last metrics line torn by a kill is dropped. Raises RunFolderError when there is no run, when
        another process holds it, or when config.toml is not what the run was created with.
        """
        path = Path(path).resolve()
        record = _read_record(path)
        if not lock:
            return cls(path, record, None)
        with disk_errors(path):
            held = _acquire(path)
        try:
            _refuse_changed(path / "config.toml", record["config_sha256"])
            return cls(path, record, held)
        except BaseException:
            held.release()
            raise

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def config_toml(self) -> str:
        return (self.path / "config.toml").read_text(encoding="utf-8")

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Append one record as one whole line, on disk when this returns. It needs an integer "step".

        Non-finite floats are written as "NaN", "Infinity" and "-Infinity", as JSON has none; `read_metrics` undoes it.
        Raises RunFolderError (and leaves the file as it was) when the disk is full.
        """
        if not isinstance(record.get("step"), int):
            raise ValueError(f'a metrics record needs an integer "step", got {record.get("step")!r}')
        line = json.dumps(_finite(dict(record)), ensure_ascii=False, allow_nan=False) + "\n"
        with disk_errors(self.metrics_path):
            self._writer().append(line.encode())

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole records, oldest first. Raises RunFolderError naming a line that is no record."""
        return read_metrics(self.metrics_path)

    def truncate_metrics(self, step: int) -> int:
        """Drop the records of steps after `step`; how many were dropped.

        A run resumed from the checkpoint of `step` then writes them again. So write a step's records before its
        checkpoint: what the checkpoint covers must already be in the file.
        """
        writer = self._writer()
        records = self.read_metrics()
        kept = [r for r in records if r["step"] <= step]
        if len(kept) < len(records):
            lines = (json.dumps(_finite(r), ensure_ascii=False, allow_nan=False) + "\n" for r in kept)
            write_atomic(self.metrics_path, "".join(lines))
            writer.close()
            with disk_errors(self.metrics_path):
                self._metrics = _LineFile(self.metrics_path)
        return len(records) - len(kept)

    def close(self) -> None:
        """Give the lock back."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._lock is not None:
            (self.path / ".holder.json").unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it. A new run that failed before it recorded anything is taken away: its name is free again.

        Anything that cost something (trajectories, the answers of a chat endpoint) keeps it where it is.
        """
        failed = self._fresh and exc[0] is not None
        self.close()
        if failed and not any(_is_worth_keeping(file) for file in self.path.rglob("*") if file.is_file()):
            shutil.rmtree(self.path, ignore_errors=True)

    def _writer(self) -> _LineFile:
        if self._metrics is None:
            raise RunFolderError(f"{self.path} is open for reading only (or closed); open it with its lock to write in it")
        return self._metrics


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write a file so that a reader, a kill or a power cut sees either the old content or the new one.

    Raises RunFolderError when the disk is full or the folder cannot be written; the old content then stays.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    with disk_errors(path):
        temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}-{threading.get_ident()}")
        try:
            with temporary.open("wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable (a rename is on disk only after this)."""
    if sys.platform == "win32":  # folders cannot be opened there; NTFS journals renames itself
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Turn an operating-system error while writing at `path` into a RunFolderError that says what to do."""
    try:
        yield
    except OSError as e:
        if e.errno in _FULL:
            raise full_disk(path, e.strerror) from e
        raise RunFolderError(f"cannot write {path}: {e}") from e


def full_disk(path: Path | str, reason: object) -> RunFolderError:
    """The error for a disk (or quota, or file size limit) that is full."""
    return RunFolderError(
        f"no space left while writing {path} ({reason}); nothing written before is damaged: "
        "free some space or raise the quota, then go on with --resume"
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a metrics file; a last line without its line end (torn, or being written) is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = _infinite(json.loads(line))
            records.append({**record, "step": int(record["step"])})
        except (ValueError, TypeError, KeyError) as e:
            raise RunFolderError(f"{path}, line {number} is no metrics record: {line[:80]!r}") from e
    return records


def comparable(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its wall-clock values: equal for equal runs."""
    return {k: v for k, v in metrics.items() if not k.startswith(CLOCK_PREFIXES)}


def versions() -> dict[str, str]:
    """Versions of python, gongfu and the packages that decide a run's numbers, as far as they are installed."""
    found = {"python": platform.python_version(), "gongfu": __version__}
    for name in _VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class _LineFile:
    """Appends whole lines: what a failed or killed write leaves behind is cut off."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b", buffering=0)
        self._file.seek(0)
        self._size = self._file.read().rfind(b"\n") + 1
        self._file.truncate(self._size)

    def append(self, line: bytes) -> None:
        try:
            written = 0
            while written < len(line):  # an unbuffered write may take only a part
                written += self._file.write(line[written:])
            os.fsync(self._file.fileno())
        except BaseException:
            self._file.truncate(self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        self._file.close()


def _is_worth_keeping(file: Path) -> bool:
    """Whether a file of a run that failed at its start holds more than `create` and an empty bank."""
    if file.name == "metrics.jsonl":
        return file.stat().st_size > 0
    return file.name not in ("config.toml", "run.json", ".lock", ".holder.json") and not file.name.startswith("bank.sqlite")


def _refuse_taken(path: Path) -> None:
    if (path / "run.json").exists():
        raise RunFolderError(f"{path} already holds a run: go on with --resume {path}, choose another name, or remove it")
    foreign = sorted(p.name for p in path.iterdir() if p.name not in _OWN and not p.name.startswith(".tmp-"))
    if foreign:
        raise RunFolderError(f"{path} is not empty and holds no run (it has {foreign[0]!r}); choose another name")


def _refuse_changed(config: Path, sha256: str) -> None:
    if not config.exists() or hashlib.sha256(config.read_bytes()).hexdigest() != sha256:
        raise RunFolderError(
            f"{config} was changed or removed after the run began; a resumed run would not be the same run: "
            "undo the change, or start a run under another name"
        )


def _read_record(path: Path) -> dict[str, Any]:
    file = path / "run.json"
    if not file.exists():
        raise RunFolderError(f"{path} is not a run folder: it has no run.json")
    try:
        record = json.loads(file.read_bytes())
        known = record["format"] == _FORMAT and {"created", "versions", "config_sha256", "info"} <= record.keys()
    except (ValueError, TypeError, KeyError) as e:
        raise RunFolderError(f"{file} is damaged: {e}") from e
    if not known:
        raise RunFolderError(f"{file} has format {record['format']}, this gongfu reads format {_FORMAT}")
    return record


def _acquire(path: Path) -> FileLock:
    # The operating system frees this lock when the process ends, however it ends: a kill leaves nothing to clean.
    lock = FileLock(path / ".lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunFolderError(f"{path} is in use by {_holder(path)}; one process at a time trains in a folder") from None
    try:
        write_atomic(path / ".holder.json", json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    except BaseException:
        lock.release()
        raise
    return lock


def _holder(path: Path) -> str:
    try:
        holder = json.loads((path / ".holder.json").read_bytes())
        return f"process {int(holder['pid'])} on {holder['host']}"
    except (OSError, ValueError, TypeError, KeyError):  # it locked the folder a moment ago and has not signed yet
        return "another process"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if hasattr(value, "item"):  # a number of numpy, or a tensor of one element
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _infinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _infinite(v) for k, v in value.items()}
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
