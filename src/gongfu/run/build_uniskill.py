"""From a recipe to UniSkill with its bank, retriever, critic and gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gongfu.config.schema import Recipe
from gongfu.config.uniskill import RetrievalConfig, UniSkillConfig
from gongfu.core.errors import ConfigError, EnvError
from gongfu.core.records import Task
from gongfu.credit.losses import PolicyLossConfig
from gongfu.engine.chat import ChatClient
from gongfu.engine.protocol import Engine
from gongfu.envs.protocol import Suite
from gongfu.methods.uniskill.align import AlignValuer
from gongfu.methods.uniskill.conformal import Calibration
from gongfu.methods.uniskill.critics import BaseCritic, ChatCritic, Critic, NoCritic, RuleCritic
from gongfu.methods.uniskill.delayed import OutcomeValuer
from gongfu.methods.uniskill.gate import GateRules
from gongfu.methods.uniskill.learning import ProposalLoss
from gongfu.methods.uniskill.library import Library
from gongfu.methods.uniskill.lifecycle import Canary, LifecycleRules
from gongfu.methods.uniskill.method import UniSkill, Valuer
from gongfu.methods.uniskill.proposing import Proposer
from gongfu.methods.uniskill.rewards import RewardRules
from gongfu.methods.uniskill.trials import RolloutValuer, Trials
from gongfu.rollout.collector import Collector
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import ACTOR, build_actor, optim_params, proposer_rules, schedule
from gongfu.skills.bank import SkillBank
from gongfu.skills.dense import DenseRetriever
from gongfu.skills.lexical import LexicalRetriever
from gongfu.skills.retrieve import Retriever

BANK = "bank.sqlite"


def build_uniskill(
    recipe: Recipe, s: UniSkillConfig, engine: Engine, collector: Collector, suite: Suite, folder: Path
) -> UniSkill:
    tasks = suite.tasks("train")
    kept_out = s.canary.tasks if s.canary.every else 0
    if len(tasks) < kept_out + s.tasks:
        raise ConfigError(f"the canary keeps {kept_out} of {len(tasks)} training tasks, which leaves too few for a step")
    held_out = tasks[len(tasks) - kept_out :]
    bank = SkillBank.open(s.bank or folder / BANK)
    concurrency = recipe.rollout.concurrency
    probes = build_actor(recipe, engine, purpose="probe", temperature=recipe.rollout.temperature)
    trials = Trials(collector, probes, concurrency, held_out)
    return UniSkill(
        engine=engine,
        collector=collector,
        actor=build_actor(recipe, engine, purpose="train", temperature=recipe.rollout.temperature),
        tasks=TaskSampler(tasks[: len(tasks) - kept_out], recipe.run.seed),
        library=build_library(s, bank, collector),
        proposer=_proposer(recipe, s, engine, suite),
        critic=build_critic(s, engine, folder),
        valuer=_valuer(s, engine, collector, trials, bank),
        trials=trials,
        calibration=Calibration(s.calibration.decay),
        canary=Canary(s.canary.errors, s.canary.tasks),
        settings=s,
        rewards=RewardRules(**s.reward.model_dump()),
        gate=GateRules(**s.gate.model_dump()),
        proposal_loss=_proposal_loss(s),
        optim=optim_params(recipe, recipe.optim.lr),
        schedule=schedule(recipe),
        seed=recipe.run.seed,
        adapter=ACTOR,
        concurrency=concurrency,
    )


def build_library(s: UniSkillConfig, bank: SkillBank, collector: Collector) -> Library:
    rules = LifecycleRules(**s.lifecycle.model_dump(exclude={"withheld"}))
    return Library(bank, build_retriever(s.retrieval, bank), rules, _asker(s, collector))


def skills_at(
    s: UniSkillConfig, folder: Path, commit: str, collector: Collector, tasks: Sequence[Task]
) -> list[dict[str, str]]:
    """What the bank of a run showed with each of these tasks at a commit (skill id -> text)."""
    with SkillBank.open(s.bank or folder / BANK, create=False) as bank:
        library = build_library(s, bank, collector)
        chosen = library.choose(tasks, bank.at(commit))
    return [{chosen[t.id].id: chosen[t.id].text} if t.id in chosen else {} for t in tasks]


def build_retriever(r: RetrievalConfig, bank: SkillBank) -> Retriever:
    if r.kind == "lexical":
        return LexicalRetriever(floor=r.floor, per_kind=r.per_kind, relative_to=r.relative_to)
    from gongfu.engine.models import resolve_model
    from gongfu.skills.transformers_embedder import TransformersEmbedder, minilm

    embedder = TransformersEmbedder(resolve_model(r.embedder)) if r.embedder else minilm()
    return DenseRetriever(embedder, bank, floor=r.floor, per_kind=r.per_kind, index=r.index)


def build_critic(s: UniSkillConfig, engine: Engine, folder: Path) -> Critic:
    match s.critic.kind:
        case "rules":
            return RuleCritic()
        case "base":
            return BaseCritic(engine, engine.tokenizer, observations=s.critic.observations)
        case "chat":
            assert s.critic.chat is not None
            return ChatCritic(ChatClient(s.critic.chat, folder / "critic.sqlite"), s.critic.observations)
    return NoCritic()


def _valuer(s: UniSkillConfig, engine: Engine, collector: Collector, trials: Trials, bank: SkillBank) -> Valuer:
    match s.feedback:
        case "rollout":
            return RolloutValuer(trials, s.feedback_rollouts)
        case "outcome":
            return OutcomeValuer(bank, s.feedback_rollouts, s.feedback_patience, s.reward.eta)
    return AlignValuer(engine, ACTOR, collector.rules, collector.rules.system(collector.instructions))


def _proposer(recipe: Recipe, s: UniSkillConfig, engine: Engine, suite: Suite) -> Proposer:
    lessons = getattr(suite, "lessons", None) if s.proposer.mode == "choose" else None
    return Proposer(
        engine,
        ACTOR if s.writer == "policy" else None,
        proposer_rules(s.proposer),
        recipe.run.seed,
        references=s.references,
        shared_references=s.shared_references,
        sources=s.sources,
        temperature=s.proposer.temperature,
        max_prompt=s.proposer.max_prompt,
        max_response=s.proposer.max_response,
        lessons=lessons,
    )


def _proposal_loss(s: UniSkillConfig) -> ProposalLoss:
    policy = PolicyLossConfig(
        clip_low=s.clip_low, clip_high=s.clip_high, dual_clip=s.dual_clip, aggregation="seq-mean-token-mean"
    )
    return ProposalLoss(policy, s.proposal_weight, s.proposal_kl, s.support.weight, s.support.p_min, s.proposal_scale)


def _asker(s: UniSkillConfig, collector: Collector) -> Callable[[Sequence[Task]], list[str]]:
    if s.retrieval.query == "goal":
        return lambda tasks: [task.goal for task in tasks]

    def look(tasks: Sequence[Task]) -> list[str]:
        """The words of each task's first observation, each once: how often a thing is listed says nothing of what fits."""
        found = collector.runner.reset({task.id: task for task in tasks})
        collector.runner.release(list(found))
        asked = []
        for task in tasks:
            seen = found[task.id]
            text = task.goal if isinstance(seen, EnvError) else f"{seen.text} {task.goal}"
            asked.append(" ".join(dict.fromkeys(text.split())))
        return asked

    return look
