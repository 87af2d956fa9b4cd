"""What engines that train elsewhere cannot do is refused before anything starts, and how rows are sent to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gongfu.config.load import load
from gongfu.config.schema import Recipe, TinkerEngineConfig, VerlEngineConfig
from gongfu.core.errors import ConfigError, MissingExtra
from gongfu.core.records import Row
from gongfu.engine.tinker.dialect import scoring_data, training_data
from gongfu.run import build_engine, preflight

URL = "--engine.url=http://127.0.0.1:1"
RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def recipe(name, *overrides):
    return load(Recipe, files=[RECIPES / name], overrides=list(overrides)).config


def test_a_recipe_changes_its_engine_by_its_engine_section_alone():
    name = "uniskill-household-nano.toml"
    there = recipe(name, "--engine.name=verl", "--engine.workers=4")
    assert isinstance(there.engine, VerlEngineConfig) and there.engine.workers == 4 and there.engine.model == "nano"
    assert there.method == recipe(name).method
    assert there.engine.samplers == ()
    urls = '["http://10.0.0.1:8000", "https://gpu-2:8000/"]'
    samplers = recipe(name, "--engine.name=verl", f"--engine.samplers={urls}", "--engine.sampler-adapters=/shared").engine
    assert isinstance(samplers, VerlEngineConfig) and samplers.samplers == ("http://10.0.0.1:8000", "https://gpu-2:8000")
    server = recipe(name, "--engine.name=tinker", "--engine.url=http://127.0.0.1:1", "--optim.clip=0")
    assert isinstance(server.engine, TinkerEngineConfig) and server.engine.dialect == "skyrl"


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        ("ppo/household-nano.toml", ["--engine.name=verl"], "ppo trains two"),
        ("grpo/household-nano.toml", ["--engine.name=verl", "--lora.alpha=8.5"], "whole number for lora.alpha"),
        ("grpo/household-nano.toml", ["--engine.name=verl", '--engine.samplers=["10.0.0.1:8000"]'], "engine.samplers"),
        ("grpo/household-nano.toml", ["--engine.name=verl", '--engine.samplers=["http://10.0.0.1/v1"]'], "without /v1"),
        (
            "grpo/household-nano.toml",
            ["--engine.name=verl", '--engine.samplers=["http://a:1", "http://a:1/"]'],
            "server twice",
        ),
        (
            "grpo/household-nano.toml",
            ["--engine.name=verl", "--engine.sampler-adapters=/shared"],
            "without samplers",
        ),
        (
            "grpo/household-nano.toml",
            ["--engine.name=verl", '--engine.samplers=["http://10.0.0.1"]', "--rollout.temperature=2.5"],
            "up to 2, not at rollout.temperature = 2.5",
        ),
        ("grpo/household-nano.toml", ["--engine.name=tinker", URL], "optim.clip = 0"),
        ("grpo/household-nano.toml", ["--engine.name=tinker", "--optim.clip=0"], "give engine.url"),
        (
            "role_agent/alfworld-qwen2.5-1.5b.toml",
            ["--engine.name=tinker", URL, "--optim.clip=0"],
            "method.failures.temperature",
        ),
        ("grpo/household-nano.toml", ["--engine.name=tinker", URL, "--optim.clip=0", "--lora.alpha=16"], "lora.alpha = 32"),
        (
            "grpo/household-nano.toml",
            ["--engine.name=tinker", URL, "--optim.clip=0", '--lora.targets=["q_proj"]'],
            "lora.targets",
        ),
        (
            "grpo/household-nano.toml",
            ["--engine.name=tinker", URL, "--optim.clip=0", "--rollout.mode=generate", "--rollout.temperature=0.7"],
            "rollout.temperature = 1",
        ),
        ("grpo/household-nano.toml", ["--engine.name=tinker", URL, "--optim.clip=0", "--engine.fast=false"], "engine.fast"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(name, overrides, said):
    with pytest.raises(ConfigError, match=said):
        recipe(name, *overrides)


RAY = ["--rollout.workers.kind=ray", "--rollout.workers.count=2"]


@pytest.mark.parametrize("engine", ["verl", "tinker"])
def test_missing_packages_are_named(engine, monkeypatch):
    url = [URL] if engine == "tinker" else []
    monkeypatch.setattr(build_engine, "find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=rf"gongfu\[{engine}\]"):
        build_engine.require_engine_extra(recipe("grpo/household-nano.toml", f"--engine.name={engine}", "--optim.clip=0", *url))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["--rollout.workers.kind=ray"], "needs a number of workers"),
        (["--rollout.workers.count=2", "--rollout.workers.ray-address=auto"], 'for kind = "ray" only'),
        (
            ["--engine.name=verl", *RAY, "--rollout.workers.ray-address=127.0.0.1:6379"],
            "a run has one Ray",
        ),
    ],
)
def test_settings_of_workers_that_would_do_nothing_are_refused(overrides, said):
    with pytest.raises(ConfigError, match=said):
        recipe("grpo/household-nano.toml", *overrides)


def test_ray_is_missed_before_anything_starts(monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda package: None if package == "ray" else True)
    with pytest.raises(MissingExtra, match=r"gongfu\[ray\]"):
        preflight.preflight(recipe("grpo/household-nano.toml", *RAY))


TYPES = SimpleNamespace(
    Datum=lambda model_input, loss_fn_inputs: (model_input, loss_fn_inputs), ModelInput=SimpleNamespace(from_ints=list)
)
ROWS = [Row("a", (1, 2, 3, 4), (False, True, False, True)), Row("b", (5, 6), (False, True))]
COEFFICIENTS = [torch.tensor([0.5, -0.25]), torch.tensor([2.0])]
LOGPROBS = [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])]


def test_scoring_asks_for_the_scored_tokens():
    assert scoring_data(TYPES, ROWS)[0] == ([1, 2, 3], {"target_tokens": [2, 3, 4], "weights": [1.0, 0.0, 1.0]})


def test_the_service_sums_weights_times_minus_log_p():
    name, data = training_data(TYPES, "tinker", ROWS, COEFFICIENTS, LOGPROBS)
    assert name == "cross_entropy" and data[0][1]["weights"] == [-0.5, 0.0, 0.25] and data[1][1]["weights"] == [-2.0]


def test_skyrl_divides_by_tokens_and_rows_so_both_are_multiplied():
    name, data = training_data(TYPES, "skyrl", ROWS, COEFFICIENTS, LOGPROBS)
    assert name == "importance_sampling"
    assert data[0][1]["advantages"] == [-0.5 * 2 * 2, 0.0, 0.25 * 2 * 2] and data[1][1]["advantages"] == [-2.0 * 1 * 2]
    assert data[0][1]["logprobs"] == [-1.0, 0.0, -2.0] and data[0][1]["weights"] == [1.0, 0.0, 1.0]
