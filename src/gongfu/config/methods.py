"""Settings of the methods."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gongfu.config.chat import ChatConfig
from gongfu.config.section import Positive, Section, Share


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


class ActionConfig(UpdateConfig):
    """Group-relative policy optimisation of actions and its relatives, one named estimator each."""

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

    @model_validator(mode="after")
    def _fits(self) -> ActionConfig:
        if self.group_size == 1 and self.advantage in ("grpo", "dr_grpo", "rloo", "reinforce++_baseline", "gigpo"):
            raise ValueError(f"group_size 1 gives every advantage 0 under {self.advantage}; use at least 2, or reinforce++")
        if self.kl.place == "reward" and self.advantage != "reinforce++":
            raise ValueError('kl.place = "reward" is defined for reinforce++ only; use "loss"')
        if self.advantage == "reinforce++" and self.kl.place == "loss" and self.kl.coefficient:
            raise ValueError('reinforce++ takes its KL in the reward; set kl.place = "reward"')
        if self.std != "unbiased" and self.advantage not in ("grpo", "gigpo"):
            raise ValueError(f"std is what GRPO and GiGPO divide by; {self.advantage} does not: leave it out")
        of_gigpo = ("step_weight", "episode_weight", "anchor_scope", "anchor", "anchor_similarity")
        fields = type(self).model_fields
        changed = [name for name in of_gigpo if getattr(self, name) != fields[name].default]
        if changed and self.advantage != "gigpo":
            raise ValueError(f'{", ".join(changed)}: of GiGPO only; set advantage = "gigpo", or leave them out')
        if self.advantage == "gigpo" and not (self.step_weight or self.episode_weight):
            raise ValueError("step_weight and episode_weight are both 0: every advantage would be 0")
        if self.shaped and self.advantage == "reinforce++":
            raise ValueError(
                "gamma, invalid_penalty, format_score, cap_invalid and overlong are not used by reinforce++; leave them out"
            )
        return self


class GRPOConfig(ActionConfig):
    """GRPO (arXiv 2402.03300), Dr.GRPO, RLOO, REINFORCE++, GiGPO: actions only, no skill bank."""

    name: Literal["grpo"] = "grpo"
    dynamic_rounds: int = Field(default=0, ge=0)
    """Dynamic sampling (DAPO, arXiv 2503.14476): at most so many further rounds of tasks, until `tasks` groups hold different
    scores; what is beyond that number is not trained on. 0 = off."""


class ProposerConfig(Section):
    """How the policy is asked for skill edits."""

    mode: Literal["generate", "choose"] = "generate"
    """generate: it writes its answer. choose: the operation first, then the text among those that the suite lists for a task
    (`lessons`), right and wrong ones: for models too small to write a sentence, as `rollout.mode` has it for actions."""
    format: Literal["plain", "tagged"] = "plain"
    """plain: one word for the operation, then the text (small models). tagged: <op> and <skill> blocks."""
    instructions: bool = True
    """Explain the job in a system message."""
    observations: bool = False
    """Show what the agent saw in the source episode, step by step, and not its actions alone."""
    updates: bool = True
    """False: the bank is append-only; UPDATE is not offered, and refused."""
    prefill: bool = False
    """End the prompt with the opening tag, so that the operation is the first sampled token."""
    max_prompt: Positive = 1024
    """Tokens; a proposal whose prompt is longer is not asked for, and counted."""
    max_response: Positive = 96
    temperature: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _fits(self) -> ProposerConfig:
        if self.prefill and self.format == "plain":
            raise ValueError('a plain answer has no opening to prefill; set format = "tagged"')
        if self.mode == "choose" and self.format != "plain":
            raise ValueError('proposals are chosen in plain answers only: set format = "plain", or mode = "generate"')
        return self


class RetrievalConfig(Section):
    """Which skill a task is shown."""

    kind: Literal["lexical", "dense"] = "lexical"
    """lexical: BM25. dense: cosine of embeddings."""
    embedder: str = ""
    """dense: folder or hub id of an embedding model; empty = the small one of the extra "embed"."""
    floor: Share = 0.0
    """Similarity below which no skill is shown."""
    relative_to: Literal["query", "skill"] = "query"
    """lexical: similarity as a share of what the best text could have (query), or of what the skill has to say (skill: does all
    of it apply here? A high floor then shows no skill about something else)."""
    per_kind: bool = True
    """Look only among the skills of the task's kind."""
    query: Literal["goal", "observation"] = "goal"
    """What is looked for: the goal's words, or those of the whole first observation."""

    @model_validator(mode="after")
    def _fits(self) -> RetrievalConfig:
        if self.embedder and self.kind == "lexical":
            raise ValueError('lexical retrieval uses no embedder; set kind = "dense", or leave embedder empty')
        if self.relative_to != "query" and self.kind == "dense":
            raise ValueError('a cosine is relative to nothing: leave relative_to out, or set kind = "lexical"')
        return self


class CriticConfig(Section):
    """Who judges a proposal's operation and content before it is measured."""

    kind: Literal["rules", "base", "chat", "none"] = "rules"
    """rules: local. base: the frozen base model. chat: the endpoint of `method.critic.chat`."""
    chat: ChatConfig | None = None
    observations: bool = True
    """Show base and chat what the agent saw, and not its actions alone."""

    @model_validator(mode="after")
    def _fits(self) -> CriticConfig:
        if (self.kind == "chat") != (self.chat is not None):
            raise ValueError('an endpoint in method.critic.chat goes with kind = "chat", and that with an endpoint')
        return self


class RewardConfig(Section):
    """What a proposal is paid; see `gongfu.methods.uniskill.rewards`."""

    eta: float = Field(default=0.05, gt=0)
    malformed_factor: float = Field(default=3.0, ge=1)
    partial_when_critic_missing: bool = True
    partial_when_unscorable: bool = True
    coverage: Share = 0.8
    duplicate_factor: float = Field(default=1.0, ge=0)
    keep_feedback: bool = True
    use_align: bool = True


class GateConfig(Section):
    """Which edits enter the bank; see `gongfu.methods.uniskill.gate`."""

    kind: Literal["paper", "confident"] = "confident"
    z: float = Field(default=1.0, ge=0)
    delta_plus: bool = True
    missing_critic: Literal["refuse", "accept"] = "accept"
    coverage: Share = 0.8
    near_duplicate: Share = 0.8
    max_adds_per_group: int = Field(default=1, ge=0)
    by_kind: bool = True
    use_align: bool = True


class SupportConfig(Section):
    """The floor under the probability of every legal operation."""

    weight: float = Field(default=0.01, ge=0)
    """0 = off."""
    p_min: float = Field(default=0.1, gt=0, lt=0.34)


class LifecycleConfig(Section):
    """What happens to skills by the evidence of their use."""

    withheld: int = Field(default=1, ge=0)
    """Rollouts of every group that play without the group's skill, so that its worth is always being measured; 0 = off."""
    probation: Positive = 16
    """Uses before a candidate becomes active, or anything is decided by success."""
    retire_harmful: bool = True
    unused_for: int = Field(default=0, ge=0)


class CalibrationConfig(Section):
    """Probes a few proposals by rollouts, so that the gate's threshold bounds the risk of harmful edits."""

    alpha: float = Field(default=0.0, ge=0, lt=1)
    """Largest risk that the next edit is admitted and harmful; 0 = off."""
    every: Positive = 5
    """Steps between probes."""
    proposals: Positive = 2
    """Edits probed each time, drawn at random."""
    rollouts: Positive = 8
    """Episodes with the edit, and as many without it."""
    decay: float = Field(default=0.98, gt=0, le=1)


class CanaryConfig(Section):
    """Plays held-out tasks with the bank as it is and as it was, and goes back when it has become worse."""

    every: int = Field(default=0, ge=0)
    """Steps between comparisons; 0 = off."""
    tasks: Positive = 32
    """Tasks kept out of training for it."""
    errors: float = Field(default=2.0, ge=0)
    """Standard errors below the former success at which the bank is set back."""


class UniSkillConfig(ActionConfig):
    """UniSkill (arXiv 2610.10164): actions are credited as the settings of `ActionConfig` say, proposals as these."""

    name: Literal["uniskill"] = "uniskill"
    bank: str = ""
    """File or URL of the skill bank; empty = bank.sqlite in the run folder."""
    warmup: int = Field(default=0, ge=0)
    """Steps in which proposals are paid for their form only and none enters the bank."""
    train_actor: bool = True
    train_proposer: bool = True
    writer: Literal["policy", "frozen"] = "policy"
    """Who writes proposals: the policy as it is trained, or the weights it started from."""
    feedback: Literal["align", "rollout", "outcome"] = "align"
    """How a proposal is measured: by R_align, by extra rollouts (as Evolving-RL does), or later by the success of the episodes
    that are shown its skill, less that of those from which it is withheld."""
    feedback_rollouts: Positive = 16
    """rollout: episodes with a proposal and as many without it. outcome: episodes with its skill before it is valued."""
    feedback_patience: Positive = 20
    """outcome: steps after which a proposal whose skill was not used so often is given up."""
    references: int = Field(default=0, ge=0)
    """References of each outcome that an edit is measured on; 0 = all that are left of the group, 1 = the paper."""
    shared_references: bool = False
    """All edits of a group are measured on the same references (0 of them = half of the group), and made from its other
    rollouts: cheaper where sources lead to the same texts, and comparable within the group. False: drawn for every source."""
    sources: int = Field(default=0, ge=0)
    """Most proposals of a group; 0 = one for every rollout."""
    proposal_weight: float = Field(default=0.5, gt=0)
    """Weight of the proposals' loss beside that of the actions."""
    proposal_scale: Literal["per_step", "per_update"] = "per_step"
    """per_step: a full mean in every optimiser step. per_update: one mean over all of them together (the public code)."""
    proposal_kl: float = Field(default=0.0, ge=0)
    """KL of the proposals to the base model (k3, mean over the tokens of all proposals)."""
    proposer: ProposerConfig = ProposerConfig()
    retrieval: RetrievalConfig = RetrievalConfig()
    critic: CriticConfig = CriticConfig()
    reward: RewardConfig = RewardConfig()
    gate: GateConfig = GateConfig()
    support: SupportConfig = SupportConfig()
    lifecycle: LifecycleConfig = LifecycleConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    canary: CanaryConfig = CanaryConfig()

    @model_validator(mode="after")
    def _agrees(self) -> UniSkillConfig:
        if self.advantage == "reinforce++":
            raise ValueError("reinforce++ whitens all actions as one batch; uniskill credits actions within their groups")
        if self.lifecycle.withheld > self.group_size - 2:
            raise ValueError(
                f"lifecycle.withheld = {self.lifecycle.withheld} leaves fewer than two of {self.group_size} rollouts a skill"
            )
        if self.writer == "frozen" and self.train_proposer:
            raise ValueError("a frozen writer is not trained: set train_proposer = false")
        measured = self.gate.kind == "confident" and self.gate.use_align and self.feedback == "align"
        if measured and (self.references == 1 or self.group_size - self.lifecycle.withheld < 5):
            raise ValueError(
                "a confident gate needs two references of one outcome, else it knows no spread and lets nothing pass: set "
                'references to 0, or more than 1, and play groups of 5 with a skill; or set gate.kind = "paper"'
            )
        if self.feedback == "outcome" and (
            self.gate.use_align or self.reward.partial_when_unscorable or not self.lifecycle.withheld
        ):
            raise ValueError(
                'with feedback = "outcome" nothing is known of an edit before it is used: set gate.use_align = false and '
                "reward.partial_when_unscorable = false, and lifecycle.withheld to 1 or more (success without it)"
            )
        if self.calibration.alpha and not (self.gate.use_align and self.feedback == "align"):
            raise ValueError("calibration sets the gate's threshold on R_align, which this gate does not use: leave alpha at 0")
        if not (self.train_actor or self.train_proposer):
            raise ValueError("nothing is trained: set train_actor or train_proposer")
        return self


class PredictionConfig(Section):
    """World-In-Agent: what the agent is asked to foresee, and what that is worth (Role-Agent, arXiv 2606.10917)."""

    horizon: Share = 0.05
    """Steps ahead that are predicted, as a share of the longest episode (at least one step); 0 = nothing is predicted."""
    mode: Literal["ask", "continue"] = "ask"
    """ask: one question, answered in blocks. continue: the model writes the environment's next message itself, and for further
    steps its own next action too (small models that learned whole conversations)."""
    of: Literal["all", "successes"] = "all"
    """Episodes that predictions are made for. A failed one earns nothing from them: "successes" trains the same and costs less,
    "all" shows how prediction and outcome go together."""
    weight: float = Field(default=1.0, gt=0)
    """Of the prediction reward in 1 + weight R_pre."""
    scales: Literal["returns", "reward"] = "returns"
    """returns: the discounted return of every step by its own predictions. reward: the final reward by the last step's (public
    code), so that prediction counts in the episode term too."""
    temperature: float = Field(default=1.0, ge=0)
    max_response: Positive = 128
    """Tokens of one predicted observation."""


class FailureConfig(Section):
    """Agent-In-World: the agent reads its failures, and training returns to what it fails at (Role-Agent)."""

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
