"""Settings of UniSkill that could not work, or would do nothing, are refused."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.config.uniskill import UniSkillConfig
from gongfu.core.errors import ConfigError

OUTCOME = {"feedback": "outcome", "gate": {"use_align": False}, "reward": {"partial_when_unscorable": False}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"references": 1}, "confident gate needs two references"),
        ({"group_size": 5}, "confident gate needs two references"),
        ({"group_size": 6, "shared_references": True}, "play groups of 6"),
        ({"feedback": "rollout", "shared_references": True}, "for what R_align measures"),
        ({"proposer": {"prefill": True}}, "no opening to prefill"),
        ({"retrieval": {"embedder": "some/model"}}, "uses no embedder"),
        ({"retrieval": {"index": "hnsw"}}, "no vectors to index"),
        ({"retrieval": {"kind": "dense", "index": "hnsw"}}, "give its URL as method.bank"),
        ({"lifecycle": {"withheld": 7}}, "fewer than two"),
        ({"writer": "frozen"}, "frozen writer is not trained"),
        ({"train_actor": False, "train_proposer": False}, "nothing is trained"),
        ({"critic": {"kind": "chat"}}, "endpoint"),
        ({"advantage": "reinforce++"}, "within their groups"),
        ({"calibration": {"alpha": 0.1}, "gate": {"use_align": False}}, "does not use"),
        ({"std": "none", "advantage": "rloo"}, "divide by"),
        ({"anchor": "state"}, "of GiGPO only"),
        ({"feedback": "outcome"}, "before it is used"),
        ({**OUTCOME, "lifecycle": {"withheld": 0}}, "success without it"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        UniSkillConfig(**settings)


def test_another_estimator_drops_what_is_gigpos_in_a_recipe():
    recipes = Path(__file__).resolve().parents[2] / "recipes"
    plain = load(
        Recipe, [recipes / "role_agent" / "household-nano.toml"], ["--method.advantage=grpo", "--method.prediction.horizon=0"]
    )
    assert (plain.config.method.anchor, plain.config.method.std) == ("observation", "none")
    plain = load(Recipe, [recipes / "gigpo" / "webshop-nano.toml"], ["--method.advantage=rloo"])
    assert (plain.config.method.anchor, plain.config.method.std) == ("observation", "unbiased")
    with pytest.raises(ConfigError, match=r"anchor: of GiGPO only; .* or give advantage in a later file"):
        load(Recipe, overrides=["--method.anchor=state", "--method.advantage=grpo"])


def test_what_makes_them_right_is_taken():
    UniSkillConfig(references=1, gate={"kind": "paper"})
    UniSkillConfig(references=1, feedback="rollout")
    UniSkillConfig(references=2)
    UniSkillConfig(**OUTCOME)
    UniSkillConfig(group_size=5, lifecycle={"withheld": 0})
    UniSkillConfig(retrieval={"kind": "dense", "index": "hnsw"}, bank="postgresql://host/bank")
    UniSkillConfig(proposer={"prefill": True, "format": "tagged"}, retrieval={"kind": "dense", "embedder": "some/model"})
