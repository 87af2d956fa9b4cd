"""The nano model's pieces, and a short real pretraining."""

from __future__ import annotations

import itertools

import pytest
import torch

from gongfu.config.schema import CustomSuiteConfig, PretrainConfig, Recipe, RolloutConfig
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.engine.words import vocabulary, write_tokenizer
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.envs.runner import InlineRunner
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules
from gongfu.run.demonstrations import demonstrate, random_walks, texts
from gongfu.run.muon import Muon, orthogonalise
from gongfu.run.nano import pretrain_run
from gongfu.run.pretrain import WeightedRow, batches, weighted_row


def test_orthogonalise_brings_singular_values_near_one():
    torch.manual_seed(0)
    for shape in [(3, 8, 20), (2, 20, 8), (1, 16, 16)]:
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert values.min() > 0.5 and values.max() < 1.3


def test_muon_moves_along_the_orthogonalised_gradient_and_refuses_vectors():
    weight = torch.nn.Parameter(torch.zeros(4, 6))
    gradient = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    weight.grad = gradient.clone()
    Muon([weight], lr=0.1, momentum=0.0).step()
    assert torch.allclose(weight.detach(), -0.1 * orthogonalise(gradient[None])[0], atol=1e-6)
    with pytest.raises(ValueError, match="matrices"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1)


def test_batches_keep_to_their_tokens_and_lose_no_row():
    rows = [WeightedRow((1,) * n, (0.0,) * n) for n in [5, 9, 3, 7, 7, 2, 8, 4] * 40]
    seen = list(itertools.islice(batches(iter(rows), 30, pool=2), 12))
    assert all(len(b) * max(len(r.tokens) for r in b) <= 30 for b in seen)
    assert len({len(b) for b in seen}) > 1


@pytest.fixture(scope="module")
def household(tmp_path_factory):
    suite = HouseholdSuite(sizes={"train": 30, "seen": 10, "unseen": 10})
    folder = tmp_path_factory.mktemp("words")
    write_tokenizer(folder, vocabulary(texts(suite, episodes=5, seed=0)))
    tokenizer = HFTokenizer(folder)
    return suite, tokenizer, Collector(InlineRunner(suite), tokenizer, TextRules(), suite.instructions(), 30, 2000)


def test_expert_actions_weigh_one_random_ones_nothing(household):
    suite, tokenizer, collector = household
    tasks = suite.tasks("train")[:6]
    noisy = demonstrate(collector, suite, tokenizer, tasks, seed=0, noise=0.5)
    roles = {turn.call.role for t in noisy for turn in t.turns}
    assert roles == {"expert", "noise"}
    for t in [*noisy, *random_walks(collector, tokenizer, tasks, seed=0, step=0)]:
        row = weighted_row(t, 0.25, {})
        assert row.weights[0] == 0 and len(row.weights) == len(row.tokens)
        for turn in t.turns:
            start, end = len(turn.call.prompt), len(turn.call.prompt) + len(turn.call.response)
            assert set(row.weights[start:end]) == {1.0 if turn.call.role == "expert" else 0.0}
        assert set(row.weights[1 : len(t.turns[0].call.prompt)]) == {0.25}


@pytest.mark.parametrize(
    "text", ["go to fridge 12", "You see nothing.\n\nLook: a 功夫 (wörld)\t!", "", "<|user|>open it<|end|>"]
)
def test_words_are_lossless(household, text):
    _, tokenizer, _ = household
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_known_word_is_one_token(household):
    _, tokenizer, _ = household
    assert len(tokenizer.encode("You arrive at countertop 1.")) == 6


def test_the_vocabulary_is_bounded_and_a_model_that_goes_on_keeps_its_shape(tmp_path):
    assert vocabulary(["a b", "b c", "b"], size=2) == ["b", " b"]
    with pytest.raises(ValueError, match="hidden, vocabulary are those of the model"):
        PretrainConfig(start_from=str(tmp_path), hidden=32, vocabulary=10)


def test_pretraining_learns_and_repeats_itself(tmp_path):
    settings = PretrainConfig(
        hidden=32, layers=2, heads=2, mlp=64, steps=80, batch_tokens=800, positions=512, out=str(tmp_path / "a")
    )
    recipe = Recipe(
        suite=CustomSuiteConfig(object="toy:ToySuite"),
        rollout=RolloutConfig(max_context=400),
        pretrain=settings,
        run={"threads": 1},
    )
    losses = []
    out = pretrain_run(recipe, report=lambda step, metrics: losses.append(metrics["loss"]))
    assert losses[-1] < 0.75 * losses[0]
    again = recipe.model_copy(update={"pretrain": settings.model_copy(update={"out": str(tmp_path / "b")})})
    other = pretrain_run(again, report=lambda step, metrics: None)
    assert (out / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert (out / "recipe.toml").is_file()
    settings = PretrainConfig(start_from=str(out), out=str(tmp_path / "c"), steps=20, decay=0.5, batch_tokens=800)
    more: list[float] = []
    further = pretrain_run(
        recipe.model_copy(update={"pretrain": settings}), report=lambda step, metrics: more.append(metrics["loss"])
    )
    assert more[0] < losses[0] and (further / "tokenizer.json").read_bytes() == (out / "tokenizer.json").read_bytes()


def test_informed_experts_search_less(household):
    suite, tokenizer, collector = household
    turns = [
        sum(
            len(t.turns)
            for t in demonstrate(collector, suite, tokenizer, suite.tasks("train"), seed=0, noise=0.0, informed_share=share)
        )
        for share in (0.0, 1.0)
    ]
    assert turns[1] < 0.8 * turns[0]
