"""Settings of how a policy is updated, which the methods share."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from gongfu.config.section import Positive, Section, drop_hint


class KLConfig(Section):
    coefficient: float = Field(default=0.0, ge=0)
    estimator: Literal["k1", "k2", "k3"] = "k3"
    place: Literal["loss", "reward"] = "loss"


class UpdateConfig(Section):
    """What a step plays, how its actions are paid, and the clipped update: shared by all methods that train actions."""

    tasks: Positive = 8
    """Tasks a step."""
    group_size: Positive = 8
    """Rollouts of each task."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of step returns; 1 = every step is paid the episode's score. GiGPO discounts its step term only."""
    invalid_penalty: float = Field(default=0.0, ge=0)
    """Taken off the return of every step whose action was invalid."""
    invalid: Literal["inadmissible", "malformed"] = "inadmissible"
    """What `invalid_penalty` and `cap_invalid` call invalid. inadmissible: an action that is not in the list of actions, or a
    wrong format. malformed: a wrong format only (the public code of GiGPO)."""
    format_score: float | None = None
    """Return of a step whose answer had a wrong format, in place of all it would have earned; None = as `invalid_penalty`."""
    cap_invalid: bool = False
    """Never let an invalid action have a positive advantage."""
    overlong_from: int = Field(default=0, ge=0)
    """Tokens of a response beyond which its step's return falls, linearly, by 1 at `overlong_to` (DAPO's soft punishment)."""
    overlong_to: int = Field(default=0, ge=0)
    """0 = off."""
    epochs: Positive = 1
    minibatches: Positive = 1
    """Optimiser steps per epoch."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.2, gt=0)
    ratio: Literal["token", "sequence"] = "token"
    """What is clipped: the ratio of every token, or that of the row, the geometric mean of its tokens' (GSPO, arXiv 2507.18071;
    its clips are some 3e-4 and 4e-4, with aggregation seq-mean-token-mean)."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Bound c > 1 on the ratio for negative advantages; 0 = off."""
    aggregation: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"] = "token-mean"
    norm_length: Positive = 1024
    """Constant of seq-mean-token-sum-norm (Dr.GRPO), tokens."""
    kl: KLConfig = KLConfig()
    max_gap: float = Field(default=0.5, gt=0)
    """Largest mean |log-prob of the trainer - of the sampler| on fresh samples; beyond it the run stops."""

    @model_validator(mode="after")
    def _clips(self) -> UpdateConfig:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be above 1 or 0 (off), got {self.dual_clip}")
        if self.ratio == "sequence" and (self.dual_clip or self.aggregation != "seq-mean-token-mean"):
            raise ValueError('ratio = "sequence" needs dual_clip = 0 and aggregation = "seq-mean-token-mean"')
        if self.overlong_to and self.overlong_from >= self.overlong_to:
            raise ValueError(f"overlong_from ({self.overlong_from}) must be smaller than overlong_to ({self.overlong_to})")
        if self.overlong_from and not self.overlong_to:
            raise ValueError("overlong_from does nothing without overlong_to")
        return self

    @property
    def shaped(self) -> bool:
        """Whether a step's return is more than the episode's score."""
        return bool(
            self.overlong_to or self.gamma != 1 or self.invalid_penalty or self.format_score is not None or self.cap_invalid
        )


_OF_GIGPO = ("step_weight", "episode_weight", "anchor_scope", "anchor", "anchor_similarity")


def _idle_beside(advantage: Any) -> tuple[str, ...]:
    return () if advantage == "gigpo" else _OF_GIGPO if advantage == "grpo" else (*_OF_GIGPO, "std")


class ActionConfig(UpdateConfig):
    """Group-relative policy optimisation of actions and its relatives, one named estimator each."""

    idle: ClassVar = {"advantage": _idle_beside}

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline", "gigpo"] = "grpo"
    std: Literal["unbiased", "population", "none"] = "unbiased"
    """Deviation that GRPO and GiGPO divide by."""
    step_weight: float = Field(default=1.0, ge=0)
    """GiGPO's ω: weight of the step term beside the episode term."""
    episode_weight: float = Field(default=1.0, ge=0)
    """Role-Agent's α: weight of GiGPO's episode term."""
    anchor_scope: Literal["group", "batch"] = "group"
    """GiGPO compares the steps of a task's rollouts, Role-Agent those of the whole batch."""
    anchor: Literal["observation", "state"] = "observation"
    """GiGPO: which steps are compared. observation: those that saw the same text. state: and had the same admissible actions,
    so that "Nothing happens." in two places is not one state."""
    anchor_similarity: float = Field(default=1.0, gt=0, le=1)
    """GiGPO: how alike the texts of two steps must be to be one state; 1 = equal."""
    statistics: Literal["trajectory", "step"] = "trajectory"
    """Unit over which group mean and deviation are taken: each episode once, or once per step it took."""
    rewards: Literal["score", "steps"] = "score"
    """What an episode earns: its score at the end, or what the environment paid with each step (Sokoban, Gymnasium)."""
    penalties: Literal["local", "discounted"] = "local"
    """Penalties and `format_score` count for their own step (taken off after discounting), or are rewards like others, so that
    they reach the steps before, too (before discounting)."""

    @model_validator(mode="after")
    def _fits(self) -> ActionConfig:
        if self.group_size == 1 and self.advantage in ("grpo", "dr_grpo", "rloo", "reinforce++_baseline", "gigpo"):
            raise ValueError(f"group_size 1 gives every advantage 0 under {self.advantage}; use at least 2, or reinforce++")
        if self.kl.place == "reward" and self.advantage != "reinforce++":
            raise ValueError('kl.place = "reward" is defined for reinforce++ only; use "loss"')
        if self.advantage == "reinforce++" and self.kl.place == "loss" and self.kl.coefficient:
            raise ValueError('reinforce++ takes its KL in the reward; set kl.place = "reward"')
        changed = self.in_vain("advantage")
        if "std" in changed:
            raise ValueError(f"std is what GRPO and GiGPO divide by; {self.advantage} does not: leave it out")
        if changed:
            raise ValueError(f'{", ".join(changed)}: of GiGPO only; set advantage = "gigpo", or {drop_hint("advantage")}')
        if self.advantage == "gigpo" and not (self.step_weight or self.episode_weight):
            raise ValueError("step_weight and episode_weight are both 0: every advantage would be 0")
        if (self.shaped or self.rewards == "steps") and self.advantage == "reinforce++":
            raise ValueError(
                "gamma, invalid_penalty, format_score, cap_invalid, overlong and rewards are not used by reinforce++; leave "
                'them out, or set gamma = 1, invalid_penalty = 0, format_score = "none", cap_invalid = false, '
                'overlong_to = 0 and rewards = "score"'
            )
        if self.penalties == "discounted" and not (self.invalid_penalty or self.overlong_to or self.format_score is not None):
            raise ValueError('penalties = "discounted" does nothing without invalid_penalty, format_score or overlong_to')
        return self
