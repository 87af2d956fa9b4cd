"""Recipes from the command line: files and dotted overrides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gongfu.config.load import Loaded, load
from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError


def load_recipe(arguments: Sequence[str]) -> Loaded[Recipe]:
    """`a.toml @b.toml --method.group-size 16 run.seed=3` as a validated recipe; later ones win."""
    files, overrides = split_arguments(arguments)
    return load(Recipe, files=files, overrides=overrides, environ=os.environ)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files among the arguments, and the rest.

    A file is `@name`, or a word that ends in .toml and is neither `key=value` nor the value of a `--key` before it.
    """
    files: list[str] = []
    overrides: list[str] = []
    is_value = False
    for word in arguments:
        if word.startswith("@"):
            files.append(word[1:])
        elif word.endswith(".toml") and "=" not in word and not is_value:
            files.append(word)
        elif not is_value and "=" not in word and Path(word).is_dir():
            raise ConfigError(f"{word} is a folder; name one recipe in it")
        else:
            overrides.append(word)
        is_value = word.startswith("--") and "=" not in word
    return files, overrides
