"""Role-Agent by the real commands: the CPU recipe twice, the papers' recipe with a tiny model of the family."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gongfu.run.folder import comparable, read_metrics
from support import tiny_model

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
RECIPES = ROOT / "recipes" / "role_agent"


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "gongfu", *arguments], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(folder: Path, name: str, recipe: str, *more: str) -> list[dict]:
    run("train", f"@{RECIPES / recipe}", f"--run.folder={folder}", f"--run.name={name}", "--run.threads=1", *more)
    return [comparable(m) for m in read_metrics(folder / name / "metrics.jsonl") if m["phase"] == "train"]


SMALL = ("--method.tasks=3", "--suite.train=60", "--eval.every=0", "--eval.tasks=4", "--method.failures.every=1")
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} \n {{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s> assistant \n ' }}{% endif %}"
)
"""As Qwen2.5's: nothing stands between a message and its end."""


def test_nano_foresees_and_fails_to_good_use(tmp_path):
    small = (*SMALL, "--method.failures.share=0.9", "--run.steps=3")
    steps = train(tmp_path, "nano", "household-nano.toml", *small)
    assert max(m["prediction/similarity"] for m in steps) > 0.5, "nano learned whole conversations, so it foresees"
    assert all(m["failures/agreement"] <= 1 for m in steps if "failures/agreement" in m)
    assert sum(m["tasks/from_failures"] for m in steps) > 0, "failures choose some of the tasks"
    assert train(tmp_path, "again", "household-nano.toml", *small) == steps


def test_the_papers_recipe_runs_with_a_tiny_model_of_the_same_family(tmp_path):
    model = tiny_model(tmp_path / "model", family="Qwen2", max_position_embeddings=4096)
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    words = [
        *(f"--engine.model={model}", "--engine.device=cpu", "--run.steps=2", "--method.tasks=2", "--method.group-size=4"),
        *("--eval.tasks=2", "--eval.every=0", "--rollout.max-response=24", "--suite.max-steps=3", "--method.minibatches=2"),
        *("--suite.source=generated", "--eval.split=seen", "--suite.train=20", "--method.failures.max-response=16"),
        *("--method.failures.every=1", "--method.prediction.max-response=16"),
    ]
    assert "2 tasks x 4 rollouts" in run("check", f"@{RECIPES / 'alfworld-qwen2.5-1.5b.toml'}", *words)
    steps = train(tmp_path, "dry", "alfworld-qwen2.5-1.5b.toml", *words)
    assert len(steps) == 2 and all(m["rollout/episodes"] == 8 for m in steps)
    assert all(m["prediction/count"] > 0 and m["failures/read"] == 8 for m in steps)
