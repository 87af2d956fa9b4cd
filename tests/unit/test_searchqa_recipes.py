"""What else a run needs of the new suites: recipes that pass the check, demonstrations to imitate, words for a small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.config.suites import SearchQAConfig
from gongfu.core.errors import TaskError
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.engine.words import vocabulary, write_tokenizer
from gongfu.envs.runner import InlineRunner
from gongfu.envs.searchqa import SearchQASuite
from gongfu.envs.sokoban import SokobanSuite
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules
from gongfu.run.demonstrations import demonstrate, texts
from gongfu.run.preflight import preflight

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "searchqa"
NAMES = [f"{method}-qwen2.5-{size}" for method in ("grpo", "gigpo") for size in ("3b", "7b")] + ["role-agent-qwen2.5-3b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qa")
    for split in ("train", "hotpotqa"):
        rows = [{"id": f"{split}{i}", "question": f"who is {i}?", "golden_answers": [str(i)]} for i in range(600)]
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_recipes_pass_the_check(name: str, folder: Path) -> None:
    recipe = load(Recipe, files=[RECIPES / f"{name}.toml"], overrides=[f"--suite.source={folder}"]).config
    said = "\n".join(preflight(recipe))
    assert f"model Qwen/Qwen2.5-{name[-2]}B-Instruct" in said
    assert "256 tasks x 5 rollouts = 1280 episodes of at most 4 turns" in said and "0 admissible actions" in said
    assert recipe.run.name.startswith(name.split("-")[0])
    assert recipe.method.name == "role_agent" or recipe.method.advantage == name.split("-")[0]
    assert recipe.rollout.window == recipe.suite.max_steps == 4, "all turns are seen"
    assert isinstance(recipe.suite, SearchQAConfig) and recipe.suite.score == "em"


def test_the_check_says_what_a_recipe_lacks(folder: Path) -> None:
    """By the command: without a server the questions, which bring no passages, need a corpus."""
    words = [f"@{RECIPES / NAMES[1]}.toml", f"--suite.source={folder}", "--suite.retriever=bm25", "--suite.url="]
    command = [sys.executable, "-m", "gongfu", "check"]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert done.returncode and "set suite.corpus to a file" in " ".join((done.stdout + done.stderr).split())
    (folder / "wiki").mkdir()
    (folder / "wiki" / "corpus.jsonl").write_text('{"contents": "\\"Seven\\"\\nSeven is 7."}')
    done = subprocess.run(
        [*command, *words, f"--suite.corpus={folder / 'wiki' / 'corpus.jsonl'}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("suite", "words", "tokens"),
    [
        (SearchQASuite(max_steps=6, sizes={"train": 40}), 900, 700),
        (SokobanSuite(sizes={"train": 40}), 120, 1100),
    ],
    ids=["searchqa", "sokoban"],
)
def test_demonstrations_that_a_small_model_can_read(
    suite: SearchQASuite | SokobanSuite, words: int, tokens: int, tmp_path: Path
) -> None:
    pieces = vocabulary(texts(suite, episodes=40, seed=0))
    assert len(pieces) < words
    write_tokenizer(tmp_path, pieces)
    tokenizer = HFTokenizer(tmp_path)
    collector = Collector(InlineRunner(suite), tokenizer, TextRules(), suite.instructions(), suite.max_steps, 4000)
    played = demonstrate(collector, suite, tokenizer, suite.tasks("train"), seed=0, noise=0.0)
    assert all(t.success and t.score == 1 for t in played)
    assert all(turn.validity.ok for t in played for turn in t.turns)
    longest = max(len(call.prompt) + len(call.response) for t in played if (call := t.turns[-1].call))
    assert longest < tokens
    noisy = demonstrate(collector, suite, tokenizer, suite.tasks("train"), seed=0, noise=0.3)
    roles = {turn.call.role for t in noisy for turn in t.turns if turn.call}
    assert roles == {"expert", "noise"} and sum(t.success for t in noisy) > 20


def test_a_split_that_is_no_file(folder: Path) -> None:
    with pytest.raises(TaskError, match="no split 'nq'"):
        SearchQASuite(folder, retriever="server", url="http://search.test").tasks("nq")
