"""Trajectories on disk: one compressed file per step and phase, one episode a line, read back exactly as they were.

    trajectories/step-000012-train.jsonl.gz

A line is what `gongfu.rollout.pack` makes of an episode. Equal content gives equal bytes (same Python and zlib).
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

from gongfu.core.errors import RunFolderError
from gongfu.core.records import Trajectory
from gongfu.rollout.pack import pack, unpack
from gongfu.run.folder import disk_errors, write_atomic

_NAME = re.compile(r"step-(\d{6,})-([A-Za-z0-9_.-]+)\.jsonl\.gz")


class TrajectoryStore:
    """The trajectory files of a run (`RunFolder.trajectories`)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, step: int, phase: str) -> Path:
        """Where the trajectories of one step and phase ("train", "eval-valid_unseen", ...) lie."""
        path = self.folder / f"step-{step:06d}-{phase}.jsonl.gz"
        if not _NAME.fullmatch(path.name):
            raise ValueError(f"step {step}, phase {phase!r}: steps are not negative, phases made of letters, digits, _ . -")
        return path

    def write(self, step: int, phase: str, trajectories: Iterable[Trajectory]) -> Path:
        """Write (or replace) one file, whole or not at all. Raises RunFolderError when the disk is full."""
        path = self.path(step, phase)
        with disk_errors(path):
            self.folder.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(pack(t), separators=(",", ":")) + "\n" for t in trajectories)
        # mtime=0: the time of writing would make equal content differ
        write_atomic(path, gzip.compress("".join(lines).encode(), compresslevel=6, mtime=0))
        return path

    def read(self, step: int, phase: str) -> list[Trajectory]:
        """The trajectories as they were written. Raises RunFolderError when the file is missing or damaged."""
        return read_trajectories(self.path(step, phase))

    def list(self) -> list[tuple[int, str]]:
        """(step, phase) of every file, in order."""
        if not self.folder.exists():
            return []
        matches = (_NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted((int(m[1]), m[2]) for m in matches if m)

    def truncate(self, step: int) -> int:
        """Delete the files of steps after `step`, as a run resumed from there plays them again; how many."""
        later = [self.path(s, phase) for s, phase in self.list() if s > step]
        with disk_errors(self.folder):
            for path in later:
                path.unlink()
        return len(later)


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """The trajectories of one file. Raises RunFolderError naming the file, and the line if one is no trajectory."""
    path = Path(path)
    try:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    except FileNotFoundError:
        raise RunFolderError(f"no trajectories at {path}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
        raise RunFolderError(f"{path} is damaged: {e}") from e
    trajectories = []
    for number, line in enumerate(lines, 1):
        try:
            trajectories.append(unpack(json.loads(line)))
        except (ValueError, TypeError, KeyError) as e:
            raise RunFolderError(f"{path}, line {number} is no trajectory: {e}") from e
    return trajectories
