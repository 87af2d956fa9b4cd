"""What the README shows works as it stands there."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from test_commands import gongfu

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.envs.gymnasium import GymnasiumSuite
from gongfu.envs.webshop.generator import make_records
from gongfu.run.folder import read_metrics

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def command(start: str) -> list[str]:
    """The words of the README's command that begins so, without `gongfu`."""
    (line,) = re.findall(rf"^gongfu {re.escape(start)}.*$", README, re.MULTILINE)
    return line.partition("#")[0].split()[1:]


def learns(words: list[str], cwd: Path) -> None:
    """One step of a command, as it stands, with the model that it has by default."""
    done = gongfu(*words, "--run.steps=1", "--run.threads=1", "--eval.tasks=2", cwd=cwd)
    (step,) = [m for m in read_metrics(Path(done.stdout.strip()).parents[1] / "metrics.jsonl") if m["phase"] == "train"]
    assert step["train/tokens"] > 0 and step["rollout/admissible"] == 1


def test_the_example_suite_conforms_and_can_be_played_and_trained_on(tmp_path):
    (code,) = blocks("python")
    assert len(code.splitlines()) < 50
    (tmp_path / "my_suite.py").write_text(code)
    assert gongfu(*command("play --check --suite.name custom"), cwd=tmp_path).stdout.endswith("conforms\n")
    assert "Which number is it?" in gongfu(*command("play --suite.name custom"), cwd=tmp_path).stdout
    learns(command("train --suite.name custom"), tmp_path)


def test_the_gymnasium_example_can_be_played_and_trained_on_and_its_keys_are_told(tmp_path):
    pytest.importorskip("gymnasium", reason="the extra gymnasium is not installed")
    (recipe,) = blocks("toml")
    (tmp_path / "lake.toml").write_text(recipe)
    assert "walk to G" in gongfu(*command("play lake.toml"), cwd=tmp_path).stdout
    learns(command("train lake.toml"), tmp_path)
    told = {
        key
        for row in re.findall(r"^\| (`.*?) \|", README[README.index("| key of") :], re.M)
        for key in re.findall(r"`(\w+)`", row)
    }
    assert told == {*inspect.signature(GymnasiumSuite.__init__).parameters} - {"self"}


def test_every_shipped_recipe_loads():
    recipes = sorted((ROOT / "recipes").rglob("*.toml"))
    assert recipes
    for recipe in recipes:
        load(Recipe, files=[recipe])


def test_the_settings_for_webshops_files_pass_the_check(tmp_path):
    (words,) = re.findall(r"`(--suite\.name webshop --suite\.items [^`]+)`", README)
    items, attributes = make_records(400, seed=0)
    for item in items:
        record = attributes[item["asin"]]
        record |= {"instruction": f"Find me {item['query']}", "instruction_attributes": record["attributes"][:1]}
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(items))
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(attributes))
    done = gongfu("check", *words.split(), "--engine.model=nano", cwd=tmp_path)
    assert "500 tasks in 'test'" in done.stdout + done.stderr


def test_every_file_the_readme_links_is_there():
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
