"""Scripted transcripts of a suite: what cold starts imitate and what the nano model learns its language from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gongfu.config.schema import SkillMixConfig
from gongfu.core.errors import ConfigError
from gongfu.core.records import Task, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.protocol import Advice, Expert, Suite
from gongfu.rollout.actor import ExpertFor, RandomActor, ScriptedActor
from gongfu.rollout.collector import Collector
from gongfu.rollout.tasks import TaskSampler


def advice_for(suite: Suite, mix: SkillMixConfig, tasks: Sequence[Task], *, seed: int, step: int) -> dict[str, Advice]:
    """Task id -> the skill that its prompt shows, for a share of the tasks. Raises ConfigError if the suite has no teacher."""
    if not mix.share:
        return {}
    teach = getattr(suite, "advise", None)
    if teach is None:
        raise ConfigError(f"suite {suite.name!r} has no scripted teacher (advise); leave skills.share at 0")
    shown = {}
    for task in tasks:
        rng = rng_for(seed, purpose="advice", step=step, task=task.id)
        if rng.random() < mix.share:
            (quality,) = rng.choices([*mix.weights], [*mix.weights.values()])
            shown[task.id] = teach(task, quality, rng)
    return shown


def expert_for(
    suite: Suite, seed: int, *, noise: float = 0.0, informed_share: float = 0.0, advice: Mapping[str, Advice] | None = None
) -> ExpertFor:
    """Fresh experts of the suite, each with its own seeded order of search and noise.

    `informed_share` of them know the habits of the home (suites whose expert takes `habits`); those who are shown advice
    (task id -> advice) that says something believe that instead.
    """
    make = getattr(suite, "expert", None)
    if make is None:
        raise ConfigError(f"suite {suite.name!r} has no scripted expert; give recorded transcripts (sft.transcripts) instead")
    advice = advice or {}

    def expert(task: Task, rollout: int) -> Expert:
        rng = rng_for(seed, purpose="expert", task=task.id, rollout=rollout)
        knows: dict[str, Any] = {"habits": True} if informed_share and rng.random() < informed_share else {}
        if task.id in advice and advice[task.id].belief:
            knows = {"habits": advice[task.id].belief}
        return make(task, rng, noise=noise, **knows)

    return expert


def demonstrate(
    collector: Collector,
    suite: Suite,
    tokenizer: Tokenizer,
    tasks: Sequence[Task],
    *,
    seed: int,
    noise: float,
    informed_share: float = 0.0,
    skills: SkillMixConfig | None = None,
    step: int = 0,
) -> list[Trajectory]:
    """One expert episode of each task (unsuccessful ones included), a share of them with a skill in the prompt."""
    advice = advice_for(suite, skills or SkillMixConfig(), tasks, seed=seed, step=step)
    experts = expert_for(suite, seed + step, noise=noise, informed_share=informed_share, advice=advice)
    actor = ScriptedActor(tokenizer, experts, format=collector.rules.format)
    return collector.collect(actor, tasks, step=step, skills=shown(tasks, advice))


def shown(tasks: Sequence[Task], advice: Mapping[str, Advice]) -> list[dict[str, str]]:
    """Advice (by task id) as the collector takes it: skill id -> text, for each task."""
    found = [advice.get(task.id) for task in tasks]
    return [{f"teacher/{a.quality}": a.text} if a else {} for a in found]


def random_walks(
    collector: Collector, tokenizer: Tokenizer, tasks: Sequence[Task], *, seed: int, step: int
) -> list[Trajectory]:
    """One episode of random admissible actions of each task."""
    actor = ScriptedActor(
        tokenizer, lambda task, rollout: RandomActor(task, rollout, seed + step), role="random", format=collector.rules.format
    )
    return collector.collect(actor, tasks, step=step)


def transcripts(
    collector: Collector,
    suite: Suite,
    tokenizer: Tokenizer,
    *,
    seed: int,
    noise: float,
    random_share: float,
    informed_share: float = 0.0,
    skills: SkillMixConfig | None = None,
    chunk: int = 256,
) -> Iterator[Trajectory]:
    """Endless transcripts of the training split, expert and random ones mixed; each epoch is played anew."""
    sampler = TaskSampler(suite.tasks("train"), seed)
    step = 0
    while True:
        tasks = sampler.draw(step, chunk)
        played = demonstrate(
            collector, suite, tokenizer, tasks, seed=seed, noise=noise, informed_share=informed_share, skills=skills, step=step
        )
        walks = round(chunk * random_share)
        played[:walks] = random_walks(collector, tokenizer, tasks[:walks], seed=seed, step=step)
        rng_for(seed, purpose="transcript order", step=step).shuffle(played)
        yield from (t for t in played if t.turns)
        step += 1


def texts(suite: Suite, *, episodes: int, seed: int) -> Iterator[str]:
    """Texts of the suite as an agent meets them: instructions, observations, actions, admissible commands."""
    yield suite.instructions()
    experts = expert_for(suite, seed, noise=0.3)
    for task in TaskSampler(suite.tasks("train"), seed).draw(0, episodes):
        env, expert = suite.make(task), experts(task, 0)
        observation = env.reset()
        for _ in range(suite.max_steps):
            yield observation.text
            yield from observation.actions or ()
            answer = env.step(expert.act(observation))
            observation = answer.observation
            if answer.terminated or answer.truncated:
                break
        yield observation.text
        env.close()
