"""Settings of Role-Agent."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from gongfu.config.section import Positive, Section, Share, drop_hint
from gongfu.config.update import ActionConfig


class PredictionConfig(Section):
    """World-In-Agent: what the agent is asked to foresee, and what that is worth (Role-Agent, arXiv 2606.10917)."""

    idle: ClassVar = {
        "horizon": lambda horizon: () if horizon else ("mode", "of", "weight", "scales", "temperature", "max_response")
    }
    horizon: Share = 0.05
    """Steps ahead that are predicted, as a share of the longest episode (at least one step); 0 = nothing is predicted."""
    mode: Literal["ask", "continue"] = "ask"
    """ask: one question, answered in blocks. continue: the model writes the environment's next message itself, and for further
    steps its own next action too (small models that learned whole conversations)."""
    of: Literal["all", "successes"] = "all"
    """Episodes that predictions are made for. A failed one earns nothing from them: "successes" trains the same and costs less,
    "all" shows how prediction and outcome go together."""
    weight: float = Field(default=1.0, gt=0)
    """Of the prediction reward in 1 + weight R_pre. Of a state's actions it favours the one whose outcome is foreseen best:
    where the end is foreseen worse than other steps (`prediction/factor_last` below `prediction/factor`), putting it off
    pays, less so with a low `method.gamma`."""
    scales: Literal["returns", "reward"] = "returns"
    """returns: the discounted return of every step by its own predictions. reward: the final reward by the last step's (public
    code), so that prediction counts in the episode term too, and no step is favoured for being predictable."""
    temperature: float = Field(default=1.0, ge=0)
    max_response: Positive = 128
    """Tokens of one predicted observation."""

    @model_validator(mode="after")
    def _predicts(self) -> PredictionConfig:
        if vain := self.in_vain("horizon"):
            raise ValueError(f"{', '.join(vain)}: nothing is predicted (horizon = 0); {drop_hint('horizon')}")
        return self


_OF_READING = (
    *("writer", "temperature", "max_response", "retrieval", "every", "modes", "per_mode", "shortlist", "capacity"),
    *("focus", "decay", "floor", "solved_after"),
)


class FailureConfig(Section):
    """Agent-In-World: the agent reads its failures, and training returns to what it fails at (Role-Agent)."""

    idle: ClassVar = {"share": lambda share: () if share else _OF_READING}
    share: Share = 0.3
    """Share of each step's tasks that is drawn from those that failures point to; 0 = failures are not read at all."""
    writer: Literal["tagged", "choose", "measured"] = "tagged"
    """Who says why an episode failed. tagged: the policy writes a reflection. choose: the policy picks a failure mode of the
    suite's list (small models). measured: the suite's own diagnosis."""
    temperature: float = Field(default=0.5, ge=0)
    """Of the writer (tagged and choose)."""
    max_response: Positive = 256
    """Tokens of a reflection."""
    retrieval: Literal["model", "similarity"] = "model"
    """Who finds earlier failures like those of now: the policy, from a list, or the likeness of what was written."""
    every: Positive = 5
    """Steps between two looks at the failures."""
    modes: Positive = 3
    """Most frequent failure modes that are looked at each time."""
    per_mode: Positive = 8
    """Tasks that each of them brings, at most."""
    shortlist: Positive = 64
    """Earlier failures they are picked from, newest first, those of the mode first."""
    capacity: Positive = 4096
    """Failures that are remembered; the oldest of the most frequent mode goes first."""
    focus: float = Field(default=1.0, gt=0)
    """Temperature of the modes: a task weighs (share of its mode among the failures)^(1 / focus)."""
    decay: Share = 0.5
    """Factor on the weights of tasks picked earlier, each time new ones come."""
    floor: float = Field(default=0.01, gt=0)
    """Weight below which a task is dropped."""
    solved_after: Positive = 2
    """Groups in a row without a failure after which a task is dropped."""

    @model_validator(mode="after")
    def _reads(self) -> FailureConfig:
        if vain := self.in_vain("share"):
            raise ValueError(f"{', '.join(vain)}: failures are not read (share = 0); {drop_hint('share')}")
        return self


class RoleAgentConfig(ActionConfig):
    """Role-Agent (arXiv 2606.10917) on GiGPO: predictions scale the returns, failures steer the tasks."""

    name: Literal["role_agent"] = "role_agent"
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++_baseline", "gigpo"] = "gigpo"
    anchor_scope: Literal["group", "batch"] = "batch"
    gamma: float = Field(default=0.95, gt=0, le=1)
    prediction: PredictionConfig = PredictionConfig()
    failures: FailureConfig = FailureConfig()

    @model_validator(mode="after")
    def _is_stepwise(self) -> RoleAgentConfig:
        if self.prediction.horizon and self.advantage != "gigpo":
            raise ValueError(
                f"predictions scale the returns of single steps, which {self.advantage} is not made for: set "
                'advantage = "gigpo", or prediction.horizon = 0'
            )
        if self.prediction.horizon and self.prediction.scales == "returns" and not self.step_weight:
            raise ValueError("predictions scale the returns of the step term, whose weight is 0: raise step_weight")
        if not self.prediction.horizon and not self.failures.share:
            raise ValueError('nothing of Role-Agent is left: raise prediction.horizon or failures.share, or set name = "grpo"')
        return self
