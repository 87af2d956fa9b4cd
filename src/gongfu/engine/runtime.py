"""How the process computes on CPU. Imports no torch, so that it can run before torch loads."""

from __future__ import annotations

import os
import sys


def prepare_cpu() -> bool:
    """Let OpenMP threads sleep while they wait, instead of spinning. True if it can still take effect.

    OpenMP reads the setting once, when torch loads. On a shared machine spinning threads steal the cores from each
    other: with two threads a training pass was measured three to four times slower. A value set by the user is kept.
    """
    if "torch" in sys.modules:
        return os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return True
