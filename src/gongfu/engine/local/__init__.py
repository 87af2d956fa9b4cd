"""The local engine: transformers, PEFT and torch in one process."""

from gongfu.engine.local.engine import LocalEngine

__all__ = ["LocalEngine"]
