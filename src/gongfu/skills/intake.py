"""Reads folders and archives that somebody else made, without trusting them: nothing is unpacked, followed or executed."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from gongfu.skills.errors import FolderError

MAX_BYTES = 10 * 2**20
"""Of all files together, unpacked."""
_MAX_ENTRIES = 50_000
_MAX_DEPTH = 16
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def read_files(path: str | Path, wanted: Callable[[str], bool], max_bytes: int = MAX_BYTES) -> dict[str, bytes]:
    """Relative path -> content of the `wanted` files of a folder, a .zip, a .tar or a .tar.gz, sorted.

    Names that begin with a dot are passed over in folders. Raises FolderError for links, devices, paths that lead out,
    double entries, and more than `max_bytes` in all (wanted or not).
    """
    path = Path(path)
    try:
        source = _folder(path) if path.is_dir() else _archive(path, max_bytes)
        found: dict[str, bytes] = {}
        names: set[str] = set()
        left = max_bytes
        for name, size, content in source:
            if len(names) >= _MAX_ENTRIES:
                raise FolderError(f"{path} holds more than {_MAX_ENTRIES} files")
            if name in names:
                raise FolderError(f"{path} holds {name!r} twice")
            names.add(name)
            if size <= left and wanted(name):
                with content() as file:
                    found[name] = file.read(left + 1)
                size = max(size, len(found[name]))  # an archive may lie about it
            left -= size
            if left < 0:
                raise _too_large(path, max_bytes)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as e:
        raise FolderError(f"{path} cannot be read: {e}") from e
    return dict(sorted(found.items()))


Source = tuple[str, int, Callable[[], IO[bytes]]]
"""Relative path, size as it is claimed, and how to open it."""


def _folder(root: Path) -> Iterator[Source]:
    def walk(folder: Path, depth: int) -> Iterator[Source]:
        if depth > _MAX_DEPTH:
            raise FolderError(f"{folder} lies more than {_MAX_DEPTH} folders deep")
        for item in sorted(os.scandir(folder), key=lambda item: item.name):
            if item.name.startswith("."):
                continue
            path, kind = Path(item.path), item.stat(follow_symlinks=False)
            if stat.S_ISDIR(kind.st_mode):
                yield from walk(path, depth + 1)
            elif stat.S_ISREG(kind.st_mode):
                yield path.relative_to(root).as_posix(), kind.st_size, lambda path=path: _open_regular(path)
            else:
                raise FolderError(f"{path} is a link or a device; only plain files and folders are read")

    return walk(root, 0)


def _open_regular(path: Path) -> IO[bytes]:
    file = os.fdopen(os.open(path, _OPEN_FLAGS), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was exchanged a moment ago
        file.close()
        raise FolderError(f"{path} is a link or a device; only plain files and folders are read")
    return file


def _archive(path: Path, max_bytes: int) -> Iterator[Source]:
    if not path.is_file():
        raise FolderError(f"there is no folder or archive {path}")
    if path.stat().st_size > 2 * max_bytes:
        raise _too_large(path, max_bytes)
    if zipfile.is_zipfile(path):
        return _zip(path)
    return _tar(path, max_bytes)


def _zip(path: Path) -> Iterator[Source]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            mode = member.external_attr >> 16
            if member.is_dir():
                continue
            if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
                raise FolderError(f"{path} holds {member.filename!r}, a link or a device; only plain files are read")
            yield _inside(path, member.filename), member.file_size, lambda member=member: archive.open(member)


def _tar(path: Path, max_bytes: int) -> Iterator[Source]:
    # Headers count too: a header may ask for any amount of memory, so all that is ever unpacked is bounded first.
    bound = 2 * max_bytes + 2**20
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = zlib.decompressobj(wbits=31).decompress(raw, bound + 1)
    if len(raw) > bound:
        raise _too_large(path, max_bytes)
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        for member in archive:
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise FolderError(f"{path} holds {member.name!r}, a link or a device; only plain files are read")
            content = archive.extractfile(member)
            assert content is not None  # it is a regular file
            yield _inside(path, member.name), member.size, lambda content=content: content


def _too_large(path: Path, max_bytes: int) -> FolderError:
    return FolderError(f"{path} holds more than {max_bytes / 2**20:g} MiB; allow more if you trust it")


def _inside(archive: Path, name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0] or "\0" in name:
        raise FolderError(f"{archive} holds {name!r}, which leads out of it")
    if len(parts) > _MAX_DEPTH:
        raise FolderError(f"{archive} holds {name[:80]!r}, more than {_MAX_DEPTH} folders deep")
    return "/".join(parts)
