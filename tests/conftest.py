"""Shared by all tests: quiet CPU threads, no network, one tiny model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that no test may change."""
    from support import tiny_model

    return tiny_model(tmp_path_factory.mktemp("tiny"))
