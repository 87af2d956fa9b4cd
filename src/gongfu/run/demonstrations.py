"""Scripted transcripts of a suite: what cold starts imitate and what the nano model learns its language from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gongfu.core.errors import ConfigError
from gongfu.core.records import Task, Trajectory
from gongfu.core.seeds import rng_for
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.protocol import Expert, Suite
from gongfu.rollout.actor import ExpertFor, RandomActor, ScriptedActor
from gongfu.rollout.collector import Collector
from gongfu.rollout.tasks import TaskSampler


def expert_for(suite: Suite, seed: int, *, noise: float = 0.0, informed_share: float = 0.0) -> ExpertFor:
    """Fresh experts of the suite, each with its own seeded order of search and noise.

    `informed_share` of them know the habits of the home (suites whose expert takes `habits`).
    """
    make = getattr(suite, "expert", None)
    if make is None:
        raise ConfigError(f"suite {suite.name!r} has no scripted expert; give recorded transcripts (sft.transcripts) instead")

    def expert(task: Task, rollout: int) -> Expert:
        rng = rng_for(seed, purpose="expert", task=task.id, rollout=rollout)
        knows = {"habits": True} if informed_share and rng.random() < informed_share else {}
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
    step: int = 0,
) -> list[Trajectory]:
    """One expert episode of each task (unsuccessful ones included)."""
    actor = ScriptedActor(
        tokenizer, expert_for(suite, seed + step, noise=noise, informed_share=informed_share), format=collector.rules.format
    )
    return collector.collect(actor, tasks, step=step)


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
    chunk: int = 256,
) -> Iterator[Trajectory]:
    """Endless transcripts of the training split, expert and random ones mixed; each epoch is played anew."""
    sampler = TaskSampler(suite.tasks("train"), seed)
    step = 0
    while True:
        tasks = sampler.draw(step, chunk)
        played = demonstrate(
            collector, suite, tokenizer, tasks, seed=seed, noise=noise, informed_share=informed_share, step=step
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
