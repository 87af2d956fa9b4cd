"""Recipes from the command line: @files and dotted overrides."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gongfu.config.load import Loaded, load
from gongfu.config.schema import Recipe


def load_recipe(arguments: Sequence[str]) -> Loaded[Recipe]:
    """`@a.toml @b.toml --method.group-size 16 run.seed=3` as a validated recipe; later ones win."""
    files = [a[1:] for a in arguments if a.startswith("@")]
    return load(Recipe, files=files, overrides=[a for a in arguments if not a.startswith("@")], environ=os.environ)
