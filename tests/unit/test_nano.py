"""The shipped nano models are those that their digests name, and they speak their worlds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.engine.models import resolve_model
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.run.build import build_suite

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"nano": "2-frequencies.toml", "nano-webshop": "webshop.toml"}


@pytest.mark.parametrize("name", RECIPES)
def test_files_are_those_of_the_digests(name):
    folder = resolve_model(name)
    lines = (folder / "SHA256SUMS").read_text().split("\n")
    sums = dict(reversed(line.split("  ")) for line in lines if line)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(sums)
    for file, digest in sums.items():
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest, file


@pytest.mark.parametrize("name", RECIPES)
def test_its_recipe_is_the_one_in_the_repository(name):
    shipped = load(Recipe, files=[resolve_model(name) / "recipe.toml"]).config
    assert shipped == load(Recipe, files=[ROOT / "recipes" / "nano" / RECIPES[name]]).config


def test_a_household_word_is_one_token():
    tokenizer = HFTokenizer(resolve_model("nano"))
    assert len(tokenizer.encode("You pick up the tomato 2 from the fridge 1.")) == 11
    assert tokenizer.decode(tokenizer.encode("Grüße, 功夫!")) == "Grüße, 功夫!"


def test_a_product_of_its_shop_is_one_word():
    tokenizer = HFTokenizer(resolve_model("nano-webshop"))
    recipe = load(Recipe, files=[ROOT / "recipes" / "grpo" / "webshop-nano.toml"]).config
    wanted = {task.payload["asin"].lower() for task in build_suite(recipe.suite).tasks("train")}
    known = sum(len(tokenizer.encode(f"click[{asin}]")) == 5 for asin in wanted)
    assert known > 0.9 * len(wanted), "the recipes' shop is not the one that it was pretrained in"
