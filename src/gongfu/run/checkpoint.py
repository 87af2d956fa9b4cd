"""Checkpoints that are whole or not there: written aside, hashed, made durable, then renamed into view.

    checkpoints/step-000120/manifest.json      sha256 and size of every file, and the JSON state of the run
                step-000120/...                what the engine, the bank, ... wrote
                best.json                      {"step": 120, ...}

A kill at any moment leaves the earlier checkpoints and at most a `.tmp-...` folder, which the next save removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gongfu.core.errors import CheckpointError, RunFolderError
from gongfu.run.folder import disk_errors, full_disk, sync_folder, write_atomic

_NAME = re.compile(r"step-(\d{6,})")
_MANIFEST = "manifest.json"
_BEST = "best.json"
_FORMAT = 1
_FULL_DISK = ("no space left on device", "os error 28", "disk quota exceeded", "file too large")

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on, and which newer checkpoints could not be used."""

    step: int
    path: Path
    state: State
    refused: tuple[str, ...] = ()
    """Why each newer checkpoint was passed over, newest first."""


class CheckpointStore:
    """The checkpoints of a run (`RunFolder.checkpoints`).

    Only the process that holds the run's lock may call `save`, `mark_best`, `resume_point` and `discard_after`; the others
    read, and are safe beside a running training.

    After a save there remain: the newest `keep_last` checkpoints, every one whose step is a multiple of `keep_every` (0:
    none for that reason), and the best. A `ref` is a step, "latest", "best" or a folder's name ("step-000120").
    """

    def __init__(self, folder: str | Path, *, keep_last: int = 2, keep_every: int = 0) -> None:
        if keep_last < 1 or keep_every < 0:
            raise ValueError(f"keep_last must be at least 1 and keep_every not negative, got {keep_last} and {keep_every}")
        self.folder = Path(folder)
        self.keep_last = keep_last
        self.keep_every = keep_every

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def save(self, step: int, write: Callable[[Path], State]) -> Path:
        """Let `write` fill a folder and return the run's state; the checkpoint is visible when both are on disk.

        The state is plain JSON (dicts with text keys, lists, text, numbers, None) and names files relative to the folder,
        which is renamed afterwards. A checkpoint of the same step is replaced. Raises RunFolderError when the disk is
        full and CheckpointError for a state that would not come back as it was; nothing is left behind then.
        """
        final, aside = self.path(step), self.folder / f".tmp-{self.path(step).name}"
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
        try:
            with disk_errors(final), _full_disk_told_in_words(final):
                aside.mkdir()
                state = write(aside)
                if not isinstance(state, dict):
                    raise CheckpointError(f"the state of a checkpoint is a dict, got {type(state).__name__}")
                _refuse_unfaithful(state, str(aside))
                _write_manifest(aside, step, state)
                if final.exists():
                    final.replace(self._old(step))
                aside.replace(final)
                sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        with disk_errors(self.folder):
            self._sweep()
            self._prune()
        return final

    def list(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        if not self.folder.exists():
            return []
        matches = (_NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(m[1]) for m in matches if m)

    def latest(self) -> int | None:
        """Newest step, not verified; None when there is no checkpoint."""
        return max(self.list(), default=None)

    def mark_best(self, step: int, **why: float | str) -> None:
        """Point "best" at a checkpoint; `why` (say success=0.61) is kept beside it. The best is never pruned."""
        if step not in self.list():
            raise CheckpointError(f"step {step} cannot be the best: {self._have()}")
        write_atomic(self.folder / _BEST, json.dumps({**why, "step": step}) + "\n")

    def best(self) -> dict[str, Any] | None:
        """{"step": ..., and what `mark_best` was told}; None when none was marked."""
        file = self.folder / _BEST
        try:
            best = json.loads(file.read_bytes())
            return {**best, "step": int(best["step"])}
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as e:
            raise CheckpointError(f"{file} is damaged ({e}); delete it, or mark a checkpoint as best again") from e

    def verify(self, ref: int | str) -> None:
        """Check every file of a checkpoint. Raises CheckpointError naming the file and the last good checkpoint."""
        self.load(ref)

    def load(self, ref: int | str) -> tuple[Path, State]:
        """Folder and state of a checkpoint, verified. Raises CheckpointError as `verify` does."""
        step = self._resolve(ref)
        try:
            return self.path(step), _verified(self.path(step), step)
        except CheckpointError as e:
            good = next((s for s in reversed(self.list()) if s != step and self._is_good(s)), None)
            advice = "no other checkpoint is good" if good is None else f"the last good one is {self.path(good).name}"
            raise CheckpointError(f"{e}; {advice}") from None

    def resume_point(self) -> ResumePoint | None:
        """The newest checkpoint that verifies; None when there is none at all.

        Raises CheckpointError when there are checkpoints, but none is good. Removes what a killed save has left.
        """
        if self.folder.exists():
            with disk_errors(self.folder):
                self._sweep()
        refused = []
        for step in reversed(self.list()):
            try:
                return ResumePoint(step, self.path(step), _verified(self.path(step), step), tuple(refused))
            except CheckpointError as e:
                refused.append(str(e))
        if refused:
            raise CheckpointError(f"no checkpoint in {self.folder} is good: " + "; ".join(refused))
        return None

    def discard_after(self, step: int) -> list[int]:
        """Delete the checkpoints after `step` (a run resumed there writes its own); the steps deleted."""
        later = [s for s in self.list() if s > step]
        best = self.best()
        with disk_errors(self.folder):
            self._sweep()
            if best is not None and best["step"] > step:
                (self.folder / _BEST).unlink()
            for s in later:
                self._delete(s)
        return later

    def _resolve(self, ref: int | str) -> int:
        steps = self.list()
        if ref == "latest":
            step = max(steps, default=None)
        elif ref == "best":
            best = self.best()
            step = None if best is None else best["step"]
        elif isinstance(ref, str):
            match = _NAME.fullmatch(ref)
            step = int(match[1]) if match else None
        else:
            step = ref
        if step is None or step not in steps:
            raise CheckpointError(f"there is no checkpoint {ref!r} in {self.folder}: {self._have()}")
        return step

    def _have(self) -> str:
        steps = self.list()
        return f"it has the steps {', '.join(map(str, steps))}" if steps else "it has none"

    def _is_good(self, step: int) -> bool:
        try:
            _verified(self.path(step), step)
        except CheckpointError:
            return False
        return True

    def _old(self, step: int) -> Path:
        return self.folder / f".old-{self.path(step).name}"

    def _prune(self) -> None:
        steps = self.list()
        best = self.best()
        keep = {*steps[-self.keep_last :], *([] if best is None else [best["step"]])}
        keep.update(s for s in steps if self.keep_every and s % self.keep_every == 0)
        for step in steps:
            if step not in keep:
                self._delete(step)

    def _delete(self, step: int) -> None:
        doomed = self.folder / f".tmp-delete-{self.path(step).name}"
        self.path(step).replace(doomed)  # out of sight first: a half-deleted checkpoint must not be found
        shutil.rmtree(doomed)

    def _sweep(self) -> None:
        """Remove what killed saves have left, and put back a checkpoint that was being replaced."""
        for path in list(self.folder.iterdir()):
            if path.name.startswith(".old-"):
                final = self.folder / path.name.removeprefix(".old-")
                if final.exists():
                    shutil.rmtree(path)
                else:
                    path.replace(final)
            elif path.name.startswith(".tmp-"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write_manifest(folder: Path, step: int, state: State) -> None:
    files = {}
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if name == _MANIFEST:
            raise CheckpointError(f"a checkpoint's {_MANIFEST} is written by the store; give that file another name")
        with path.open("rb+") as file:
            files[name] = {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": file.tell()}
            os.fsync(file.fileno())
    for inner in [p for p in folder.rglob("*") if p.is_dir()]:
        sync_folder(inner)
    body = {"format": _FORMAT, "step": step, "files": files, "state": state}
    manifest = {"sha256": _digest(body), **body}
    write_atomic(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _verified(folder: Path, step: int) -> State:
    """The state of a checkpoint whose every file is as it was written. Raises CheckpointError naming the first bad file."""
    file = folder / _MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
        claimed = manifest.pop("sha256")
        if _digest(manifest) != claimed:
            raise ValueError("its contents do not match its own digest")
        if manifest["format"] != _FORMAT:
            raise ValueError(f"it has format {manifest['format']}, this gongfu reads format {_FORMAT}")
        if manifest["step"] != step:
            raise ValueError(f"it belongs to step {manifest['step']}")
        files, state = manifest["files"], manifest["state"]
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise CheckpointError(f"{file} is damaged: {e}") from e
    present = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    present.pop(_MANIFEST)
    for name, expected in files.items():
        path = present.pop(name, None)
        if path is None:
            raise CheckpointError(f"{folder / name} is missing")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes, it was written with {expected['bytes']}")
        with path.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != expected["sha256"]:
                raise CheckpointError(f"{path} was changed after it was written (sha256 differs)")
    if present:
        raise CheckpointError(f"{min(present.values())} is not part of the checkpoint; remove it")
    return state


def _files(folder: Path) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a symbolic link; a checkpoint holds plain files only")
        if path.is_file():
            found.append(path)
    return found


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _refuse_unfaithful(value: Any, aside: str, where: str = "state") -> None:
    """A state that JSON would change in silence (tuples, number keys) or that names the temporary folder is a defect."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise CheckpointError(f"{where} has the key {key!r}; JSON keys are text")
            _refuse_unfaithful(inner, aside, f"{where}[{key!r}]")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _refuse_unfaithful(inner, aside, f"{where}[{i}]")
    elif type(value) not in (str, int, float, bool, type(None)):
        raise CheckpointError(f"{where} is a {type(value).__name__}; a state holds dicts, lists, text, numbers and None")
    elif isinstance(value, str) and aside in value:
        raise CheckpointError(f"{where} names the temporary folder; name files relative to the checkpoint's folder")


@contextlib.contextmanager
def _full_disk_told_in_words(path: Path) -> Iterator[None]:
    """Writers in other languages (safetensors) report a full disk by text only."""
    try:
        yield
    except (RunFolderError, CheckpointError, OSError):
        raise
    except Exception as e:
        if any(sign in str(e).lower() for sign in _FULL_DISK):
            raise full_disk(path, e) from e
        raise
