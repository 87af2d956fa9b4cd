"""WebShop by the real commands: the recipes for GPUs are checked, and played with a tiny model of the same family."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.envs.webshop import WebShopSuite
from gongfu.run.folder import read_metrics
from support import tiny_model
from webshop_records import write_files

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
RECIPES = sorted((ROOT / "recipes").glob("*/webshop-qwen2.5-*.toml"))
TINY = (
    *("--engine.device=cpu", "--run.steps=2", "--run.threads=1", "--method.tasks=2", "--method.group-size=4"),
    *("--method.minibatches=2", "--rollout.max-response=24", "--suite.max-steps=3", "--eval.tasks=2", "--eval.every=0"),
)
GENERATED = (
    *("--suite.items=", "--suite.products=96", "--suite.train=20", "--suite.seen=5", "--suite.results-per-page=2"),
    "--eval.split=seen",
)


def run(*arguments: str) -> str:
    words = (sys.executable, "-m", "gongfu", *arguments)
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_there_is_a_recipe_for_each_method_and_size():
    names = [f"{path.parent.name} {path.stem.removeprefix('webshop-qwen2.5-')}" for path in RECIPES]
    assert names == ["gigpo 1.5b", "gigpo 7b", "grpo 1.5b", "grpo 7b", "role_agent 1.5b", "role_agent 7b", "uniskill 7b"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recipes_pass_the_check_with_their_own_model_and_official_files(recipe, tmp_path):
    files = write_files(tmp_path)
    words = [f"--suite.{name}={files[name]}" for name in ("items", "attributes")]
    said = run("check", f"@{recipe}", *words, "--suite.test=2", "--eval.tasks=2")
    assert "Instruct: on the Hugging Face hub" in said and "3 tasks in 'train', 2 tasks in 'test'" in said
    assert "16 tasks x 8 rollouts = 128 episodes of at most 15 turns" in said


@pytest.mark.parametrize("method", ["gigpo", "uniskill"])
def test_the_7b_recipes_run_with_a_tiny_model_of_the_same_family(method, tmp_path):
    model = tiny_model(tmp_path / "model", family="Qwen2", max_position_embeddings=4096)
    recipe = ROOT / "recipes" / method / "webshop-qwen2.5-7b.toml"
    own = ["--method.proposer.max-response=24", "--method.retrieval.kind=lexical", "--method.retrieval.embedder="]
    words = [f"@{recipe}", f"--engine.model={model}", *TINY, *GENERATED, *(own if method == "uniskill" else [])]
    assert "2 tasks x 4 rollouts" in run("check", *words)
    run("train", *words, f"--run.folder={tmp_path}", "--run.name=dry")
    steps = [m for m in read_metrics(tmp_path / "dry" / "metrics.jsonl") if m["phase"] == "train"]
    assert len(steps) == 2 and all(m["rollout/episodes"] == 8 for m in steps)


def test_role_agent_has_room_to_predict_a_page():
    recipe = load(Recipe, files=[ROOT / "recipes" / "role_agent" / "webshop-qwen2.5-1.5b.toml"]).config
    suite = WebShopSuite(products=96, sizes={"train": 5})
    pages = []
    for task in suite.tasks("train"):
        env, expert = suite.make(task), suite.expert(task, random.Random(0))
        seen = env.reset()
        for _ in range(3):
            seen = env.step(expert.act(seen)).observation
            pages.append(seen.text)
    assert max(map(len, pages)) < 3 * recipe.method.prediction.max_response


def test_a_cold_start_imitates_the_scripted_buyer(tmp_path):
    """With the shipped nano model, which knows none of the words and spells them."""
    words = ["--engine.model=nano", "--suite.name=webshop", "--suite.products=96", "--suite.train=20", "--suite.seen=5"]
    words += ["--suite.observation=brief", "--suite.results-per-page=2", "--suite.queries=2", "--rollout.instructions=false"]
    words += ["--sft.demonstrations=8", "--sft.batch=4", "--eval.tasks=2", "--run.threads=1", f"--run.folder={tmp_path}"]
    run("sft", *words, "--rollout.mode=choose", "--run.name=cold")
    metrics = read_metrics(tmp_path / "cold" / "metrics.jsonl")
    losses = [m["sft/nll"] for m in metrics if m["phase"] == "train"]
    assert len(losses) == 2 and losses[1] < losses[0]
    assert metrics[-1]["phase"] == "eval" and metrics[-1]["lost"] == 0
