"""Reading GGUF files (llama.cpp): metadata, and tensors dequantised to float32.

A file is untrusted input: each read is checked against its length.
Layout of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gongfu.core.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major, as in torch; `kind` is the ggml type number."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    """From the beginning of the file, in bytes."""


class _Cursor:
    """Little-endian reads that never leave the file."""

    def __init__(self, data: mmap.mmap, where: Path) -> None:
        self.data, self.where, self.at = data, where, 0

    def need(self, size: int, what: str) -> None:
        if size > len(self.data) - self.at:
            raise ModelError(
                f"{self.where} is truncated or damaged: {what} at byte {self.at} needs {size} bytes, "
                f"{len(self.data) - self.at} are left; download the file again"
            )

    def take(self, layout: str, what: str) -> tuple[Any, ...]:
        layout = "<" + layout
        size = struct.calcsize(layout)
        self.need(size, what)
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += size
        return values

    def string(self, what: str) -> str:
        (size,) = self.take("Q", what)
        self.need(size, what)
        raw = self.data[self.at : self.at + size]
        self.at += size
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise ModelError(f"{self.where} is damaged: {what} is not UTF-8 ({e})") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            item, count = self.take("IQ", key)
            if item == _STRING:
                self.need(8 * count, key)
                return [self.string(key) for _ in range(count)]
            if item in _SCALARS:
                self.need(count * struct.calcsize("<" + _SCALARS[item]), key)
                return list(self.take(f"{count}{_SCALARS[item]}", key))
            raise ModelError(f"{self.where}: metadata {key!r} is an array of unknown type {item}")
        if kind in _SCALARS:
            return self.take(_SCALARS[kind], key)[0]
        raise ModelError(f"{self.where}: metadata {key!r} has unknown type {kind}")


class GGUFFile:
    """An open GGUF file: `metadata`, `tensors` by name, and `tensor(name)` dequantised to float32.

    Raises ModelError if the header is not a complete GGUF header (version 2 or 3). Use it as a context manager.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as e:  # ValueError: an empty file cannot be mapped
            raise ModelError(f"cannot read {path}: {e}") from None
        try:
            self.metadata: dict[str, Any] = {}
            self.tensors: dict[str, TensorInfo] = {}
            self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> None:
        cursor = _Cursor(self._data, self.path)
        magic, version, tensor_count, key_count = cursor.take("4sIQQ", "the header")
        if magic != b"GGUF" or version not in (2, 3):
            raise ModelError(f"{self.path} is not a GGUF file of version 2 or 3 (it begins with {magic!r}, version {version})")
        for _ in range(key_count):
            key = cursor.string("a metadata key")
            (kind,) = cursor.take("I", key)
            self.metadata[key] = cursor.value(kind, key)
        found: list[TensorInfo] = []
        for _ in range(tensor_count):
            name = cursor.string("a tensor name")
            (rank,) = cursor.take("I", name)
            if not 1 <= rank <= 4:
                raise ModelError(f"{self.path}: tensor {name!r} has {rank} dimensions")
            shape = cursor.take(f"{rank}Q", name)[::-1]
            kind, offset = cursor.take("IQ", name)
            found.append(TensorInfo(name, shape, kind, offset))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self.path}: general.alignment is {alignment!r}, expected a positive number")
        base = -(-cursor.at // alignment) * alignment
        for info in found:
            if info.name in self.tensors:
                raise ModelError(f"{self.path} holds tensor {info.name!r} twice")
            self.tensors[info.name] = TensorInfo(info.name, info.shape, info.kind, base + info.offset)

    def tensor(self, name: str) -> np.ndarray:
        """The tensor as float32, row-major. Raises ModelError if its bytes are not all there or its type is unknown."""
        import numpy as np

        quants, _ = ggml()
        info = self.tensors[name]
        kind, per_block, block_bytes = self._blocks(info)
        if info.shape[-1] % per_block or not math.prod(info.shape):
            raise ModelError(f"{self.path}: tensor {name!r} of shape {info.shape} does not consist of whole {kind.name} blocks")
        size = math.prod(info.shape) // per_block * block_bytes
        raw = self._data[info.offset : info.offset + size]
        if len(raw) != size:
            raise ModelError(
                f"{self.path} is truncated: tensor {name!r} ends at byte {info.offset + size}, the file has {len(self._data)}; "
                "download the file again"
            )
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(*info.shape[:-1], info.shape[-1] // per_block * block_bytes)
        try:
            values = quants.dequantize(rows, kind)
        except NotImplementedError:
            raise ModelError(f"{self.path}: gguf cannot dequantise {kind.name} (tensor {name!r})") from None
        return np.array(values, dtype=np.float32).reshape(info.shape)

    def bits_per_weight(self, name: str) -> float:
        _, per_block, block_bytes = self._blocks(self.tensors[name])
        return 8 * block_bytes / per_block

    def _blocks(self, info: TensorInfo) -> tuple[Any, int, int]:
        """The tensor's ggml type, weights per block, bytes per block."""
        _, sizes = ggml()
        for kind, (per_block, block_bytes) in sizes.items():
            if int(kind) == info.kind:
                return kind, per_block, block_bytes
        raise ModelError(f"{self.path}: tensor {info.name!r} has unknown ggml type {info.kind}")

    def close(self) -> None:
        self._data.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ggml() -> tuple[Any, Mapping[Any, tuple[int, int]]]:
    """gguf's dequantisation and its table of block sizes. Raises MissingExtra without gguf."""
    try:
        from gguf import GGML_QUANT_SIZES, quants
    except ImportError:
        raise MissingExtra("reading a GGUF file", "smollm2") from None
    return quants, GGML_QUANT_SIZES
