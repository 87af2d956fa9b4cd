"""CPUs as a platform of verl 0.9 (gloo, float32), so that its workers can be tried without an accelerator.

verl imports this module in every process by VERL_USE_EXTERNAL_MODULES, and takes it by VERL_PLATFORM=cpu.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase  # pyright: ignore[reportMissingImports]
from verl.plugin.platform.platform_manager import PlatformRegistry  # pyright: ignore[reportMissingImports]

_NOTHING = ("empty_cache", "reset_peak_memory_stats", "manual_seed", "manual_seed_all", "set_device", "ipc_collect")
_ZERO = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")


class _Device(ModuleType):
    """torch.cpu, and what verl expects of an accelerator's module beside it: memory that is never used."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name in _NOTHING:
            return lambda *args, **kwargs: None
        if name in _ZERO:
            return lambda *args, **kwargs: 0
        known = {
            "mem_get_info": lambda *args: (0, 1),
            "get_rng_state": torch.get_rng_state,
            "set_rng_state": torch.set_rng_state,
            "get_device_name": lambda *args: "CPU",
        }
        if name in known:
            return known[name]
        raise AttributeError(name)


_DEVICE = _Device("gongfu_cpu_device")


@PlatformRegistry.register(platform="cpu")
class CPUPlatform(PlatformBase):
    """One device, "cpu"."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never found by looking, only taken by name

    def current_device(self) -> Any:
        return "cpu"  # verl uses it as torch's device, where 0 would be an accelerator

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "GONGFU_NO_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {}

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


def register_engines() -> None:
    """Let verl's FSDP engines, which it registers for accelerators, run on this platform too."""
    from verl.workers.engine import EngineRegistry  # pyright: ignore[reportMissingImports]

    for kinds in EngineRegistry._engines.values():
        for strategy in ("fsdp", "fsdp2"):
            if "cuda" in kinds.get(strategy, {}):
                kinds[strategy].setdefault("cpu", kinds[strategy]["cuda"])
