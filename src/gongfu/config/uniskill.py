"""Settings of UniSkill and its peers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gongfu.config.chat import ChatConfig
from gongfu.config.section import Positive, Section, Share
from gongfu.config.update import ActionConfig


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
    index: Literal["exact", "hnsw"] = "exact"
    """dense: exact looks at all vectors, by pgvector where the bank's PostgreSQL has it, else by NumPy. hnsw lets pgvector's
    approximate index pick the candidates, for banks of 100,000 skills (decision 0009)."""
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
        if self.index != "exact" and self.kind == "lexical":
            raise ValueError('lexical retrieval has no vectors to index; set kind = "dense", or leave index out')
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
    """Most proposals of a group; 0 = one for every rollout (but the shared references)."""
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
        if self.retrieval.index == "hnsw" and not self.bank.startswith("postgresql"):
            raise ValueError('retrieval.index = "hnsw" is PostgreSQL\'s: give its URL as method.bank, or set index = "exact"')
        if self.writer == "frozen" and self.train_proposer:
            raise ValueError("a frozen writer is not trained: set train_proposer = false")
        measured = self.gate.kind == "confident" and self.gate.use_align and self.feedback == "align"
        if self.shared_references and not (self.feedback == "align" and (self.gate.use_align or self.reward.use_align)):
            raise ValueError(
                "shared_references are for what R_align measures: set shared_references = false, then all rollouts are sources"
            )
        least = 6 if self.shared_references and not self.references else 5
        if measured and (self.references == 1 or self.group_size - self.lifecycle.withheld < least):
            raise ValueError(
                "a confident gate needs two references of one outcome, else it knows no spread and lets nothing pass: set "
                f'references to 0, or more than 1, and play groups of {least} with a skill; or set gate.kind = "paper"'
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
