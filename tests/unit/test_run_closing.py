"""What was started is closed when the next thing does not start."""

from __future__ import annotations

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import EnvError
from gongfu.engine.local.engine import LocalEngine
from gongfu.run import evaluate, sft, train
from toy import TOY_RECIPE, tiny_agent


def test_the_engine_is_closed_when_the_environments_do_not_start(tmp_path, monkeypatch):
    agent = tiny_agent(tmp_path / "agent")
    settings = [*TOY_RECIPE, f"--engine.model={agent}", f"--run.folder={tmp_path}", "--run.steps=1"]

    def recipe(name: str) -> Recipe:
        return load(Recipe, files=[], overrides=[*settings, f"--run.name={name}"]).config

    train.train_run(recipe("whole"))
    closed = []
    monkeypatch.setattr(LocalEngine, "close", lambda engine: closed.append(engine))

    def broken(*_: object) -> None:
        raise EnvError("no environment here")

    for module in (train, sft, evaluate):
        monkeypatch.setattr(module, "build_runner", broken)
    starts = (
        lambda: train.train_run(recipe("a")),
        lambda: sft.sft_run(recipe("b")),
        lambda: evaluate.evaluate_runs([str(tmp_path / "whole")], split=None, tasks=2, rollouts=1, temperature=None),
    )
    for number, start in enumerate(starts, 1):
        with pytest.raises(EnvError, match="no environment here"):
            start()
        assert len(closed) == number
