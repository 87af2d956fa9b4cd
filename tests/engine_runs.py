"""What the tests of engines in environments of their own have in common."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


def needs(package: str) -> pytest.MarkDecorator:
    """Skips a module's tests where the package is not installed; under `make test-engines` they fail then."""
    absent = find_spec(package) is None and os.environ.get("GONGFU_ENGINES") != "needed"
    return pytest.mark.skipif(absent, reason=f"{package} has an environment of its own: make test-engines")


def gongfu(*arguments: str, cwd: Path, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """Run a command; what it said on stderr."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", "gongfu", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == code, done.stderr
    return done.stderr
