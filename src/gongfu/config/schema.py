"""Every setting of a recipe, typed and strict: an unknown key is an error. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gongfu.config.chat import ChatConfig as ChatConfig
from gongfu.config.engines import EngineConfigs
from gongfu.config.engines import LocalEngineConfig as LocalEngineConfig
from gongfu.config.engines import TinkerEngineConfig as TinkerEngineConfig
from gongfu.config.engines import VerlEngineConfig as VerlEngineConfig
from gongfu.config.methods import GRPOConfig as GRPOConfig
from gongfu.config.methods import MethodConfig, PPOConfig
from gongfu.config.role_agent import RoleAgentConfig
from gongfu.config.section import Positive, Section, Share
from gongfu.config.suites import CustomSuiteConfig as CustomSuiteConfig
from gongfu.config.suites import HouseholdConfig as HouseholdConfig
from gongfu.config.suites import SuiteConfig as SuiteConfig
from gongfu.config.suites import WebShopConfig as WebShopConfig
from gongfu.config.uniskill import UniSkillConfig


class RunConfig(Section):
    name: str = "run"
    """Name of the run; its folder is `folder`/`name`."""
    folder: str = "runs"
    seed: int = 0
    steps: Positive = 40
    """Training steps (each: rollouts, credit, update)."""
    start_from: str = ""
    """A run folder or checkpoint whose adapters training starts from (a cold start). Empty: fresh adapters."""
    checkpoint_every: Positive = 10
    keep_last: Positive = 2
    """Checkpoints kept besides the best one."""
    trajectories_every: Positive = 1
    """Write the trajectories of every n-th step to the run folder."""
    tensorboard: bool = False
    threads: int = Field(default=0, ge=0)
    """CPU threads of torch; 0 = all cores."""


class LoraConfig(Section):
    rank: Positive = 16
    alpha: float = Field(default=32.0, gt=0)
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class WorkersConfig(Section):
    """Workers for suites that block or crash, or need more machines."""

    count: int = Field(default=0, ge=0)
    """Episodes at a time, each in a worker of its own; 0 = play in this process."""
    kind: Literal["process", "ray"] = "process"
    """process: of this machine. ray: actors of a Ray cluster (extra `ray`)."""
    ray_address: str = ""
    """A Ray cluster to join ("auto": this machine's). Empty: that of the engine, else one that is started here."""
    reset_timeout: float = Field(default=60.0, gt=0)
    """Seconds."""
    step_timeout: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _fits(self) -> WorkersConfig:
        if self.kind == "ray" and not self.count:
            raise ValueError('rollout.workers.kind = "ray" needs a number of workers: set rollout.workers.count')
        if self.ray_address and self.kind != "ray":
            raise ValueError('rollout.workers.ray_address is for kind = "ray" only')
        return self


class RolloutConfig(Section):
    context: Literal["append", "window"] = "append"
    """append: one growing conversation, one training row an episode. window: the papers' prompt, one row a turn."""
    window: int = Field(default=2, ge=0)
    """Turns of history in a window prompt."""
    format: Literal["plain", "tagged"] = "plain"
    """plain: the response is the action. tagged: <think>..</think><action>..</action>."""
    instructions: bool = True
    """Put the suite's instructions into a system message."""
    list_actions: bool = False
    """Show the admissible actions with every observation."""
    remind: bool = False
    """End every observation of an appended conversation with the task: small models then need not look far back."""
    mode: Literal["generate", "choose"] = "generate"
    """choose: sample among the admissible actions by their log-probs; trained by log p(action | the list), see
    docs/decisions/0005."""
    temperature: float = Field(default=1.0, ge=0)
    max_response: Positive = 32
    """Longest response, tokens."""
    max_context: Positive = 2048
    """An episode whose prompt reaches this length stops."""
    concurrency: Positive = 128
    """Episodes in flight, and turns that Role-Agent predicts from at once."""
    schedule: Literal["together", "apart"] = "together"
    """together: the episodes take their turns together, their prompts are one batch. apart: each goes on as soon as it has its
    answer, for servers that batch what comes and for slow environments; a local engine's batches then depend on the clock."""
    retries: int = Field(default=1, ge=0)
    """Times that an episode whose environment failed is begun anew, from its seed."""
    episode_timeout: float = Field(default=0.0, ge=0)
    """Seconds that an episode may take, with its new beginnings; then it is lost. 0 = no limit."""
    workers: WorkersConfig = WorkersConfig()


class OptimConfig(Section):
    lr: float = Field(default=1e-4, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    decay: Share = 0.0
    """Share of the steps, at the end, over which the learning rate falls linearly to a tenth."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    """Decay of AdamW's first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, ge=0)
    """Bound of the gradient norm; 0 = none."""


class EvalConfig(Section):
    split: str = "seen"
    """Split of the evaluations during training."""
    every: int = Field(default=10, ge=0)
    """Evaluate every n steps, and before the first and after the last; 0 = only these two."""
    tasks: Positive = 100
    """The first n tasks of the split, always the same."""
    temperature: float = Field(default=0.0, ge=0)


class SkillMixConfig(Section):
    """Skills that a scripted teacher puts into the prompts of a cold start: an actor must have met good and bad ones."""

    share: Share = 0.0
    """Share of episodes that show a skill; the expert trusts it, and searches on where it fails."""
    good: float = Field(default=0.5, ge=0)
    """Weights of the qualities among them (see the suite's teacher)."""
    wrong: float = Field(default=0.2, ge=0)
    vague: float = Field(default=0.1, ge=0)
    instance: float = Field(default=0.05, ge=0)
    irrelevant: float = Field(default=0.15, ge=0)
    proposals: float = Field(default=0.0, ge=0, lt=1)
    """Share of training rows that are proposals of a skill edit in place of episodes, written by the teacher."""

    @property
    def weights(self) -> dict[str, float]:
        return self.model_dump(include={"good", "wrong", "vague", "instance", "irrelevant"})

    @model_validator(mode="after")
    def _fits(self) -> SkillMixConfig:
        if self.share and not sum(self.weights.values()):
            raise ValueError("a share of episodes shows skills, but no quality has a weight above 0")
        return self


class SFTConfig(Section):
    """Cold start: imitate demonstrations."""

    split: str = "train"
    demonstrations: Positive = 400
    """Successful expert episodes."""
    transcripts: str = ""
    """A file of recorded trajectories to imitate in place of the scripted expert's."""
    noise: Share = 0.0
    """Chance that the expert takes a random action at a step (it recovers)."""
    epochs: Positive = 1
    batch: Positive = 16
    """Episodes per optimiser step."""
    lr: float = Field(default=5e-4, gt=0)
    skills: SkillMixConfig = SkillMixConfig()
    teacher: ChatConfig | None = None
    """Endpoint of a chat model that writes the texts of the proposals in place of the scripted teacher."""

    @model_validator(mode="after")
    def _fits(self) -> SFTConfig:
        if self.teacher and not self.skills.proposals:
            raise ValueError("sft.teacher writes proposals, but none are taught: set sft.skills.proposals above 0")
        return self


class PretrainConfig(Section):
    """The nano model: a small Llama trained from scratch on the suite's own transcripts."""

    hidden: Positive = 128
    layers: Positive = 4
    heads: Positive = 2
    mlp: Positive = 384
    positions: Positive = 2048
    vocabulary: Positive = 4096
    """Most words of the tokenizer, the frequent ones; the others are spelled."""
    rope_theta: float = Field(default=5e5, gt=0)
    """Base of the rotary embedding: a goal must be matched over hundreds of tokens, so most dimensions should turn slowly."""
    steps: Positive = 2000
    batch_tokens: Positive = 3200
    lr: float = Field(default=3e-3, gt=0)
    """Peak learning rate of embeddings and norms (AdamW)."""
    matrix_lr: float = Field(default=0.02, gt=0)
    """Peak learning rate of the blocks' matrices (Muon)."""
    observation_weight: Share = 0.1
    """Weight of observation tokens in the loss, against 1 for action tokens."""
    balance_verbs: bool = True
    """Let every kind of action (by its first word) weigh the same in all, rare ones up to ten times."""
    noise: Share = 0.05
    """Chance that the expert takes a random action at a step; these are not imitated."""
    informed_share: Share = 0.0
    """Share of transcripts whose expert knows where the home keeps things: less search, more decisions a token."""
    random_share: Share = 0.05
    """Share of transcripts played at random (their actions are not imitated)."""
    decay: Share = 0.0
    """Share of the steps, at the end, over which the learning rates fall to a tenth."""
    skills: SkillMixConfig = SkillMixConfig()
    start_from: str = ""
    """A model folder whose tokenizer and weights are trained further; empty = a new tokenizer and fresh weights."""
    out: str = "nano"
    """Folder that receives the weights."""

    @model_validator(mode="after")
    def _goes_on(self) -> PretrainConfig:
        shape = ("hidden", "layers", "heads", "mlp", "positions", "rope_theta", "vocabulary")
        changed = [key for key in shape if getattr(self, key) != type(self).model_fields[key].default]
        if self.start_from and changed:
            raise ValueError(f"{', '.join(changed)} are those of the model in pretrain.start_from: leave them out")
        return self


class Recipe(Section):
    """A whole experiment."""

    run: RunConfig = RunConfig()
    engine: EngineConfigs = LocalEngineConfig()
    lora: LoraConfig = LoraConfig()
    suite: SuiteConfig = HouseholdConfig()
    rollout: RolloutConfig = RolloutConfig()
    method: MethodConfig = GRPOConfig()
    optim: OptimConfig = OptimConfig()
    eval: EvalConfig = EvalConfig()
    sft: SFTConfig = SFTConfig()
    pretrain: PretrainConfig = PretrainConfig()

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if self.rollout.max_response >= self.rollout.max_context:
            raise ValueError(
                f"rollout.max_response ({self.rollout.max_response}) must be smaller than rollout.max_context "
                f"({self.rollout.max_context})"
            )
        if self.rollout.mode == "choose" and isinstance(self.suite, WebShopConfig) and not self.suite.queries:
            raise ValueError('rollout.mode = "choose" writes no search of its own: set suite.queries above 0')
        address = self.rollout.workers.ray_address
        if address and isinstance(self.engine, VerlEngineConfig) and address != self.engine.ray_address:
            raise ValueError(
                "a run has one Ray: leave rollout.workers.ray_address out, the engine's is used (engine.ray_address)"
            )
        predicts = self.method.prediction if isinstance(self.method, RoleAgentConfig) else None
        bare = self.rollout.context == "append" and not self.rollout.list_actions
        if predicts and predicts.horizon and predicts.mode == "continue" and not bare:
            raise ValueError(
                'method.prediction.mode = "continue" goes on with a conversation whose messages must be bare observations: set '
                'it to "ask", or rollout.context = "append" and list_actions = false'
            )
        if isinstance(self.engine, VerlEngineConfig) and isinstance(self.method, PPOConfig):
            raise ValueError('engine.name = "verl" holds one adapter, but ppo trains two; use "local"')
        if isinstance(self.engine, VerlEngineConfig) and self.lora.alpha != int(self.lora.alpha):
            raise ValueError(f"verl takes a whole number for lora.alpha, got {self.lora.alpha}")
        if isinstance(self.engine, VerlEngineConfig) and self.engine.samplers:
            hot = [f"{name} = {value}" for name, value in self._heats().items() if value > 2]
            if hot:
                raise ValueError(f"vLLM samples at temperatures up to 2, not at {', '.join(hot)}")
        if isinstance(self.engine, TinkerEngineConfig):
            self._fits_the_tinker_api()
        if self.rollout.temperature == 0:
            raise ValueError("rollout.temperature 0 samples greedily: rollouts of a group would be equal and cannot be trained")
        return self

    def _heats(self) -> dict[str, float]:
        """The temperatures that an engine is asked for, but for greedy evaluations."""
        method, heats = self.method, {"rollout.temperature": self.rollout.temperature}
        if self.rollout.mode == "generate" and self.eval.temperature:
            heats["eval.temperature"] = self.eval.temperature
        if isinstance(method, UniSkillConfig) and method.proposer.mode == "generate":
            heats["method.proposer.temperature"] = method.proposer.temperature
        if isinstance(method, RoleAgentConfig):
            heats["method.prediction.temperature"] = method.prediction.temperature
            if method.failures.writer == "tagged":
                heats["method.failures.temperature"] = method.failures.temperature
        return heats

    def _fits_the_tinker_api(self) -> None:
        wrong = {name: 1 for name, value in self._heats().items() if value != 1}
        wrong |= {"optim.clip": 0} if self.optim.clip else {}
        wrong |= {"lora.alpha": 32} if self.lora.alpha != 32 else {}
        if wrong:
            raise ValueError("the Tinker API can do no other than " + ", ".join(f"{k} = {v}" for k, v in wrong.items()))
        if set(self.lora.targets) != set(LoraConfig().targets):
            raise ValueError("the Tinker API trains all linear modules: leave lora.targets out")
