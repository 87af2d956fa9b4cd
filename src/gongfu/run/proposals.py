"""Scripted proposals of skill edits: what a policy imitates before it can learn which of its own are worth something.

A teacher reads two episodes of one task with different outcomes and writes an edit. Some of its edits are bad on purpose: the
policy's own will then be of all kinds, and there is something to learn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from gongfu.config.schema import Recipe, SkillMixConfig
from gongfu.config.uniskill import UniSkillConfig
from gongfu.core.errors import ConfigError
from gongfu.core.records import Row, Task, Trajectory, Turn, Validity
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.protocol import Tokenizer
from gongfu.envs.protocol import Advice, Suite
from gongfu.methods.uniskill.answers import write_proposal
from gongfu.methods.uniskill.prompt import ProposerRules, body, proposer_prompt
from gongfu.methods.uniskill.records import Op
from gongfu.rollout.actor import ScriptedActor
from gongfu.rollout.collector import Collector, lost
from gongfu.rollout.tasks import TaskSampler
from gongfu.run.build import proposer_rules
from gongfu.run.demonstrations import advice_for, expert_for, shown
from gongfu.run.writers import Lesson, ScriptedWriter, Writer

_ROLLOUTS = 3
_SHOWN = 0.6
_TEXTS = {"good": 0.6, "wrong": 0.15, "vague": 0.15, "instance": 0.1}
_CHOICES: dict[str, dict[Op, float]] = {
    "none": {"ADD": 0.85, "KEEP": 0.15},
    "agrees": {"KEEP": 0.7, "UPDATE": 0.1, "ADD": 0.2},
    "differs": {"UPDATE": 0.6, "ADD": 0.2, "KEEP": 0.2},
}
"""How often the teacher chooses each operation: no skill shown; one that says what the success shows; any other."""


PROPOSAL_NOISE = 0.15
"""Chance of a random action in the episodes that proposals are written about: some must fail."""


def taught_rules(recipe: Recipe) -> ProposerRules:
    """How the recipe's method asks for proposals. Raises ConfigError for a method that never does."""
    method = recipe.method
    if not isinstance(method, UniSkillConfig):
        raise ConfigError('teaching proposals needs a method that asks for them: set method.name = "uniskill"')
    return proposer_rules(method.proposer)


def scripted_proposals(
    collector: Collector,
    suite: Suite,
    tokenizer: Tokenizer,
    rules: ProposerRules,
    tasks: Sequence[Task],
    *,
    writer: Writer,
    seed: int,
    noise: float,
    step: int = 0,
) -> Iterator[Row]:
    """One row for each task whose episodes ended differently: the proposer's prompt, and the teacher's answer scored.

    The operation is decided by the suite's teacher, who knows what is true; the text is the writer's.
    """
    if getattr(suite, "advise", None) is None:
        raise ConfigError(f"suite {suite.name!r} has no scripted teacher (advise); leave skills.proposals at 0")
    advice = advice_for(suite, SkillMixConfig(share=_SHOWN), tasks, seed=seed, step=step)
    experts = expert_for(suite, seed + step, noise=noise, informed_share=0.3, advice=advice)
    actor = ScriptedActor(tokenizer, experts, format=collector.rules.format)
    played = collector.collect(actor, tasks, step=step, group_size=_ROLLOUTS, skills=shown(tasks, advice))
    asked: list[tuple[Op, Trajectory, Trajectory, Lesson]] = []
    for k, task in enumerate(tasks):
        group = [t for t in played[k * _ROLLOUTS : (k + 1) * _ROLLOUTS] if not lost(t) and t.turns]
        wins, losses = [t for t in group if t.success], [t for t in group if not t.success]
        if not wins or not losses:
            continue
        rng = rng_for(seed, purpose="scripted proposal", step=step, task=task.id)
        source, opposite = (wins[0], losses[0]) if rng.random() < 0.5 else (losses[0], wins[0])
        skill = advice.get(task.id)
        op, quality = _decide(suite, task, wins[0], skill, rng)
        asked.append((op, source, opposite, Lesson(task, wins[0], losses[0], skill.text if skill else "", quality, rng)))
    texts = iter(writer.write([lesson for op, _, _, lesson in asked if op != "KEEP"]))
    for op, source, opposite, lesson in asked:
        text = "" if op == "KEEP" else next(texts)
        if text or op == "KEEP":
            yield _row(f"{step}/{lesson.task.id}", rules, tokenizer, source, opposite, lesson.shown, op, text)


def proposal_stream(
    collector: Collector,
    suite: Suite,
    tokenizer: Tokenizer,
    rules: ProposerRules,
    *,
    writer: Writer | None = None,
    seed: int,
    noise: float,
    chunk: int = 128,
) -> Iterator[Row]:
    """Endless proposals of the training split, their texts by `writer` (default: the suite's teacher)."""
    sampler = TaskSampler(suite.tasks("train"), seed_for(seed, purpose="proposal tasks"))
    for step in itertools.count():
        yield from scripted_proposals(
            collector,
            suite,
            tokenizer,
            rules,
            sampler.draw(step, chunk),
            writer=writer or ScriptedWriter(suite),
            seed=seed,
            noise=noise,
            step=step,
        )


def skill_texts(suite: Suite, rules: ProposerRules, *, episodes: int, seed: int) -> Iterator[str]:
    """Texts of skills and of proposals, for a vocabulary."""
    fake = Turn("", None, None, "look", Validity(True, True), 0.0)
    for task in TaskSampler(suite.tasks("train"), seed).draw(0, episodes):
        rng = rng_for(seed, purpose="skill texts", task=task.id)
        for quality in SkillMixConfig().weights:
            yield suite.advise(task, quality, rng).text  # type: ignore[attr-defined]
        for outcome in ("success", "failure"):
            episode = Trajectory("", task, "", (), (fake, fake), "", outcome, 0.0, "terminated")
            yield body(rules, episode, episode, "")
            yield body(rules, episode, episode, "some")
        yield from (write_proposal(rules.format, op, "text") for op in ("ADD", "UPDATE", "KEEP"))


def _decide(suite: Suite, task: Task, win: Trajectory, skill: Advice | None, rng: random.Random) -> tuple[Op, str]:
    truth = suite.advise(task, "good", rng, seen=[turn.action for turn in win.turns])  # type: ignore[attr-defined]
    state = "none" if skill is None else "agrees" if skill.text == truth.text else "differs"
    options = _CHOICES[state]
    op: Op = rng.choices(list(options), list(options.values()))[0]
    (quality,) = rng.choices([*_TEXTS], [*_TEXTS.values()])
    return op, quality


def _row(
    id: str,
    rules: ProposerRules,
    tokenizer: Tokenizer,
    source: Trajectory,
    opposite: Trajectory,
    skill_text: str,
    op: Op,
    text: str,
) -> Row:
    prompt = proposer_prompt(rules, tokenizer, source, opposite, skill_text)
    answer = (*tokenizer.encode(write_proposal(rules.format, op, text)), tokenizer.stop_ids[0])
    return Row(id, prompt + answer, (False,) * len(prompt) + (True,) * len(answer))
