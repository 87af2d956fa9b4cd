"""The shipped nano model is the one its digests name, and it speaks the household."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.engine.models import resolve_model
from gongfu.engine.tokenizer import HFTokenizer

ROOT = Path(__file__).resolve().parents[2]


def test_files_are_those_of_the_digests():
    folder = resolve_model("nano")
    lines = (folder / "SHA256SUMS").read_text().split("\n")
    sums = dict(reversed(line.split("  ")) for line in lines if line)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(sums)
    for name, digest in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


def test_its_recipe_is_the_one_in_the_repository():
    shipped = load(Recipe, files=[resolve_model("nano") / "recipe.toml"]).config
    assert shipped == load(Recipe, files=[ROOT / "recipes" / "nano" / "2-frequencies.toml"]).config


def test_a_household_word_is_one_token():
    tokenizer = HFTokenizer(resolve_model("nano"))
    assert len(tokenizer.encode("You pick up the tomato 2 from the fridge 1.")) == 11
    assert tokenizer.decode(tokenizer.encode("Grüße, 功夫!")) == "Grüße, 功夫!"
