"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from test_commands import gongfu

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.envs.check import check
from toy import tiny_agent

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_example_suite_conforms_and_can_be_trained_on(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.splitlines()) < 50
    (tmp_path / "my_suite.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_suite import Guess  # type: ignore[import-not-found]

    check(Guess())
    sys.modules.pop("my_suite")
    options = ["--run.steps=1", "--eval.tasks=2", "--method.tasks=1", "--method.group-size=4", "--run.threads=1"]
    agent = tiny_agent(tmp_path / "agent")
    arguments = ["train", "--suite.name=custom", "--suite.object=my_suite:Guess", "--eval.split=test", *options]
    done = gongfu(*arguments, f"--engine.model={agent}", "--rollout.max-context=400", cwd=tmp_path)
    assert Path(done.stdout.strip()).name == "report.md"


def test_every_shipped_recipe_loads():
    recipes = sorted((ROOT / "recipes").rglob("*.toml"))
    assert recipes
    for recipe in recipes:
        load(Recipe, files=[recipe])


def test_every_file_the_readme_links_is_there():
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
