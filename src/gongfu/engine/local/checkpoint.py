"""Saving adapters with their optimiser: safetensors and a manifest of digests, visible only when complete."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gongfu.core.errors import CheckpointError, EngineError
from gongfu.engine.local.adapters import Adapters, AdapterState
from gongfu.engine.local.base import BaseModel
from gongfu.engine.protocol import LoraSpec

_FORMAT = 1
_MANIFEST = "manifest.json"


def save(folder: Path, base: BaseModel, adapters: Adapters, version: int) -> None:
    """Write all adapters, their AdamW states and `version` into `folder`, replacing it when it exists.

    Raises EngineError while an adapter holds gradients that no step has used: they are not part of a checkpoint.
    """
    from safetensors.torch import save_file

    waiting = [a.name for a in adapters if any(p.grad is not None for p in a.parameters.values())]
    if waiting:
        raise EngineError(f"adapter {waiting[0]!r} holds gradients that no optim_step has used; save between steps")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}.writing"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    manifest: dict[str, Any] = {"format": _FORMAT, "version": version, "base": fingerprint(base), "adapters": {}, "files": {}}
    for adapter in adapters:
        state = adapter.state()
        save_file(state.weights, draft / f"{adapter.name}.weights.safetensors")
        save_file(state.moments, draft / f"{adapter.name}.optimizer.safetensors")
        manifest["adapters"][adapter.name] = {"spec": asdict(adapter.spec), "steps": state.steps}
    for path in sorted(draft.iterdir()):
        manifest["files"][path.name] = _sha256(path)
        _flush(path)
    (draft / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _flush(draft / _MANIFEST)
    _flush(draft)
    old = folder.parent / f".{folder.name}.replaced"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, base: BaseModel, adapters: Adapters, *, weights_only: bool = False) -> int:
    """Restore what `save` wrote, creating adapters that are missing and leaving others alone; returns the version.

    Everything is verified before anything changes. Raises CheckpointError for a checkpoint that is missing, torn,
    tampered with, or made with another base model or other adapter shapes.
    """
    from safetensors.torch import load_file

    manifest = _verified(folder)
    if manifest["base"] != fingerprint(base):
        raise CheckpointError(
            f"{folder} belongs to another base model than {base.folder}; load it with the model it was trained on"
        )
    specs = {name: _spec(entry["spec"]) for name, entry in manifest["adapters"].items()}
    for name, spec in specs.items():
        if name in adapters and _shape(adapters[name].spec) != _shape(spec):
            raise CheckpointError(f"{folder}: adapter {name!r} was saved as {spec}, but here it is {adapters[name].spec}")
    states = {name: [load_file(folder / f"{name}.{part}.safetensors") for part in ("weights", "optimizer")] for name in specs}
    for name, spec in specs.items():
        adapter = adapters[name] if name in adapters else adapters.create(name, spec)
        weights, moments = states[name]
        if set(weights) != set(adapter.parameters):
            raise CheckpointError(f"{folder}: the weights of adapter {name!r} do not fit this model's modules")
        steps = manifest["adapters"][name]["steps"]
        adapter.restore(AdapterState(weights, {}, 0) if weights_only else AdapterState(weights, moments, steps))
        adapter.publish()
    return manifest["version"]


def fingerprint(base: BaseModel) -> str:
    """Digest that tells base models apart: all names and shapes, and some of the weights (the same in every precision)."""
    digest = hashlib.sha256()
    for name, p in base.model.named_parameters():
        if ".lora_" not in name:
            name = name.replace(".base_layer", "")
            sample = p.detach().flatten()[:64].float().cpu()
            digest.update(f"{name}{tuple(p.shape)}".encode() + struct.pack(f"{len(sample)}f", *sample.tolist()))
    return digest.hexdigest()


def _verified(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a complete checkpoint (no {_MANIFEST}); use an earlier one")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != _FORMAT:
            raise CheckpointError(f"{path}: format {manifest['format']}, but this gongfu reads format {_FORMAT}")
        files: dict[str, str] = manifest["files"]
        wanted = {f"{name}.{part}.safetensors" for name in manifest["adapters"] for part in ("weights", "optimizer")}
    except (ValueError, KeyError, TypeError) as e:
        raise CheckpointError(f"{path} is damaged ({e}); use an earlier checkpoint") from e
    if wanted != set(files):
        raise CheckpointError(f"{path} is damaged: its adapters and files do not match; use an earlier checkpoint")
    for name, digest in files.items():
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing; use an earlier checkpoint")
        if _sha256(folder / name) != digest:
            raise CheckpointError(f"{folder / name} is torn or was changed (sha256 differs); use an earlier checkpoint")
    return manifest


def _spec(data: dict[str, Any]) -> LoraSpec:
    return LoraSpec(**{**data, "targets": tuple(data["targets"])})


def _shape(spec: LoraSpec) -> tuple[Any, ...]:
    return spec.rank, spec.alpha, frozenset(spec.targets)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
