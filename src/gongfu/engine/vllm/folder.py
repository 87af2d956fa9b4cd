"""A published adapter as a folder in PEFT's format, which a server reads by its path."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gongfu.engine.protocol import LoraSpec


@dataclass(frozen=True, slots=True)
class Published:
    """An adapter as the servers know it."""

    name: str
    """Never used before, so that no server can take older weights, or what it cached with them, for these."""
    folder: Path
    version: int


def write(folder: Path, adapter: str, version: int, weights: Mapping[str, Tensor], spec: LoraSpec, backbone: str) -> Published:
    """Write `weights` ("layers.0.up_proj.lora_A" -> tensor) into a new folder inside `folder`, visible only when complete."""
    from safetensors.torch import save_file

    name = f"{adapter}@{version}-{secrets.token_hex(4)}"
    place = folder.resolve() / name
    draft = place.with_name(f".{name}.writing")
    draft.mkdir(parents=True)
    settings = {
        "peft_type": "LORA",
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({key.split(".")[-2] for key in weights}),
        "bias": "none",
    }
    (draft / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    named = {f"base_model.model.{backbone}.{key}.weight": value.contiguous() for key, value in weights.items()}
    save_file(named, draft / "adapter_model.safetensors")
    draft.rename(place)
    return Published(name, place, version)


def nothing(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of an adapter, one module whose weights are 0."""
    module = next(iter(weights)).rpartition(".")[0]
    return {key: value * 0 for key, value in weights.items() if key.startswith(f"{module}.")}


def remove(published: Published) -> None:
    shutil.rmtree(published.folder)
