"""The methods, chosen by `method.name`, with the settings of the small ones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gongfu.config.role_agent import RoleAgentConfig
from gongfu.config.section import Positive, Section
from gongfu.config.uniskill import UniSkillConfig
from gongfu.config.update import ActionConfig, UpdateConfig


class GRPOConfig(ActionConfig):
    """GRPO (arXiv 2402.03300), Dr.GRPO, RLOO, REINFORCE++, GiGPO: actions only, no skill bank."""

    name: Literal["grpo"] = "grpo"
    dynamic_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling (DAPO, arXiv 2503.14476): at most so many further rounds of tasks, until `tasks` groups hold different
    scores; what is beyond that number is not trained on. 0 = off."""
    one_step_off: bool = False
    """Play the next step's rollouts with the weights of before this step's update, beside it where the engine can do both;
    truncated importance ratios make up for their age."""
    importance_cap: float = Field(default=2.0, gt=0)
    """Where the ratio of the trainer's policy to that of the rollouts is cut off; with `one_step_off`."""

    @model_validator(mode="after")
    def _is_late(self) -> GRPOConfig:
        if self.importance_cap != type(self).model_fields["importance_cap"].default and not self.one_step_off:
            raise ValueError("importance_cap does nothing without one_step_off")
        return self


class CriticTrainingConfig(Section):
    """PPO's critic: an adapter of its own that is asked whether the episode will succeed."""

    lr: float = Field(default=1e-3, gt=0)
    epochs: Positive = 1
    minibatches: Positive = 1
    warmup: int = Field(default=0, ge=0)
    """Steps in which the critic alone is trained."""


class PPOConfig(UpdateConfig):
    """PPO (arXiv 1707.06347) with generalised advantage estimation over the turns of an episode (arXiv 1506.02438)."""

    name: Literal["ppo"] = "ppo"
    gae_lambda: float = Field(default=1.0, ge=0, le=1)
    """λ of GAE; 1 = the return less the value, 0 = the one-step error."""
    critic: CriticTrainingConfig = CriticTrainingConfig()

    @model_validator(mode="after")
    def _is_plain(self) -> PPOConfig:
        if self.kl.place == "reward":
            raise ValueError('kl.place = "reward" is defined for reinforce++ only; use "loss"')
        return self


MethodConfig = Annotated[GRPOConfig | UniSkillConfig | RoleAgentConfig | PPOConfig, Field(discriminator="name")]
