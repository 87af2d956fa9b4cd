"""The local engine: transformers, PEFT and torch in one process."""

from gongfu.engine.runtime import prepare_cpu

prepare_cpu()  # before torch loads

from gongfu.engine.local.engine import LocalEngine  # noqa: E402

__all__ = ["LocalEngine"]
