"""Agent-In-World: the same model, in the environment's place, says why episodes failed and which earlier ones failed likewise.

What is written steers which tasks are drawn; nothing here is trained (Role-Agent, arXiv 2606.10917).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Protocol

from gongfu.config.role_agent import FailureConfig
from gongfu.core.errors import EngineError
from gongfu.core.records import Trajectory
from gongfu.core.seeds import rng_for, seed_for
from gongfu.credit.similarity import similarity
from gongfu.engine.protocol import Engine, Sample, SampleRequest
from gongfu.methods.role_agent.curriculum import Failure
from gongfu.rollout.collector import wait

FIELDS = ("failure_mode", "detail", "critical_step", "lesson", "query")
"""What a reflection holds: the dominant failure mode, what happened, the step of no return, what carries over, and words to
find similar failures by."""

_JOB = (
    "You watched an agent fail at a task. Say why, inside one <reflection> block with these lines:\n"
    "failure_mode: one of {modes}\ndetail: what went wrong, in one sentence\ncritical_step: number of the step after which "
    "success was out of reach\nlesson: what to do better, so that it helps with other tasks too\nquery: a few words by which "
    "failures like this one can be found"
)
_SELECT = (
    "Below are failures of the mode {mode} that an agent shows now, and a numbered list of earlier failures. Choose at most "
    "{most} earlier ones whose tasks would train what goes wrong now. Answer with one <selected_tasks> block, a line for each: "
    "its number, a colon, and the reason in one sentence.\nNow:\n{now}\nEarlier:\n{earlier}"
)
_BLOCK = re.compile(r"<reflection>(.*?)</reflection>", re.DOTALL)
_SELECTED = re.compile(r"<selected_tasks>(.*?)</selected_tasks>", re.DOTALL)
_SHOWN_NOW = 4
"""New failures of a mode that the model is shown when it looks for similar ones."""


class Diagnoses(Protocol):
    """What a suite offers for Agent-In-World: names of its failure modes, and its own diagnosis of an episode."""

    failure_modes: Sequence[str]

    def diagnose(self, trajectory: Trajectory) -> str:
        """The failure mode of a failed episode, measured."""
        ...


@dataclass(frozen=True)
class Reflection:
    """What a failed episode was made of; fields that could not be read are empty."""

    mode: str
    detail: str = ""
    critical_step: str = ""
    lesson: str = ""
    query: str = ""


@dataclass(frozen=True)
class AgentInWorld:
    """The policy in the role of the one who looks on."""

    engine: Engine
    adapter: str
    settings: FailureConfig
    modes: Sequence[str]
    seed: int
    diagnose: Diagnoses | None = None
    """The suite, where it can tell failure modes itself."""
    critical_step: Callable[[Trajectory], int | None] | None = None
    """The step after which no expert could have helped, where the suite has one; None = it cannot be told."""

    def read(self, failed: Sequence[Trajectory], step: int) -> tuple[list[Failure], dict[str, float]]:
        """A failure for every failed episode, and how often what was written can be read and is what the suite measures."""
        measured = [self.diagnose.diagnose(t) if self.diagnose else "" for t in failed]
        by_suite = self.settings.writer == "measured"
        written = [Reflection(mode) for mode in measured] if by_suite else self._write(failed, step)
        failures = [
            Failure(
                t.task.id,
                t.task.kind,
                t.task.goal,
                r.mode,
                r.query or f"{r.mode} {t.task.goal}",
                step,
                r.detail,
                r.critical_step,
                r.lesson,
            )
            for t, r in zip(failed, written, strict=True)
        ]
        count = max(1, len(failed))
        metrics = {
            "failures/read": float(len(failed)),
            "failures/unreadable": sum(not r.mode for r in written) / count,
            **{f"failures/mode/{mode}": sum(r.mode == mode for r in written) / count for mode in self.modes},
        }
        if self.diagnose and not by_suite:
            right = sum(r.mode == m for r, m in zip(written, measured, strict=True))
            metrics["failures/agreement"] = right / count
            metrics |= {f"failures/measured/{mode}": measured.count(mode) / count for mode in self.modes}
        if self.critical_step and self.settings.writer == "tagged":
            metrics |= _points(written, [self.critical_step(t) for t in failed])
        return failures, metrics

    def select(self, mode: str, now: Sequence[Failure], earlier: Sequence[Failure], most: int) -> list[Failure]:
        """Those of `earlier` that are like the failures of now, at most one a task. Implements `curriculum.Select`."""
        if self.settings.retrieval == "similarity" or not earlier:
            alike = sorted(earlier, key=lambda f: -max(similarity(f.query, n.query) for n in now))
            return _one_a_task(alike, most)
        text = _SELECT.format(
            mode=mode,
            most=most,
            now="\n".join(f"- {_told(f)}" for f in now[-_SHOWN_NOW:]),
            earlier="\n".join(f"{i}. {_told(f)}" for i, f in enumerate(earlier, 1)),
        )
        (answer,) = self._sample([text], "select", now[-1].step, [mode])
        return _one_a_task(_selected("" if answer is None else self._text(answer), earlier), most)

    def _write(self, failed: Sequence[Trajectory], step: int) -> list[Reflection]:
        names = [t.id for t in failed]
        if self.settings.writer == "choose":
            return self._choose(failed, names, step)
        asked = [f"{_JOB.format(modes=', '.join(self.modes))}\n{_story(t)}" for t in failed]
        answers = self._sample(asked, "reflect", step, names)
        return [parse_reflection("" if a is None else self._text(a), self.modes) for a in answers]

    def _choose(self, failed: Sequence[Trajectory], names: Sequence[str], step: int) -> list[Reflection]:
        """A mode for each, by how much its story makes the mode's name likelier than no story does.

        By likelihood alone the shortest name would always win.
        """
        question = f"What went wrong: {', '.join(self.modes)}?"
        asked = [question, *(f"{_story(t)}\n{question}" for t in failed)]
        prior, *answers = self._sample(asked, "reflect", step, ["no story", *names], choices=self.modes)
        if prior is None or prior.choice_logprobs is None:
            return [Reflection("")] * len(failed)
        found = []
        for name, answer in zip(names, answers, strict=True):
            if answer is None or answer.choice_logprobs is None:
                found.append(Reflection(""))
                continue
            gains = [lp - before for lp, before in zip(answer.choice_logprobs, prior.choice_logprobs, strict=True)]
            best = max(gains)
            warmth = max(self.settings.temperature, 1e-6)
            weights = [exp((gain - best) / warmth) for gain in gains]
            rng = rng_for(self.seed, purpose="agent in world/mode", step=step, task=name)
            found.append(Reflection(rng.choices(list(self.modes), weights)[0]))
        return found

    def _sample(
        self, texts: Sequence[str], purpose: str, step: int, names: Sequence[str], choices: Sequence[str] = ()
    ) -> list[Sample | None]:
        tokenizer = self.engine.tokenizer
        listed = tuple((*tokenizer.encode(c), tokenizer.stop_ids[0]) for c in choices) or None
        requests = [
            SampleRequest(
                prompt=tuple(tokenizer.encode(tokenizer.render([{"role": "user", "content": text}], generation=True))),
                adapter=self.adapter,
                seed=seed_for(self.seed, purpose=f"agent in world/{purpose}", step=step, task=name),
                max_tokens=self.settings.max_response,
                temperature=self.settings.temperature,
                choices=listed,
            )
            for text, name in zip(texts, names, strict=True)
        ]
        answers = wait(self.engine.sample(requests)) if requests else []
        return [None if isinstance(answer, EngineError) else answer[0] for answer in answers]

    def _text(self, answer: Sample) -> str:
        stop = self.engine.tokenizer.stop_ids
        return self.engine.tokenizer.decode([token for token in answer.tokens if token not in stop])


def parse_reflection(text: str, modes: Sequence[str]) -> Reflection:
    """Read a reflection. One without a block, or with a failure mode that is not listed, has mode "".

    >>> parse_reflection("<reflection>failure_mode: looped\\nlesson: read the goal</reflection>", ["looped"])
    Reflection(mode='looped', detail='', critical_step='', lesson='read the goal', query='')
    """
    block = _BLOCK.search(text)
    found: Mapping[str, str] = {}
    if block:
        pairs = (line.partition(":") for line in block[1].splitlines() if ":" in line)
        found = {name.strip().lower(): value.strip() for name, _, value in pairs}
    mode = found.get("failure_mode", "")
    return Reflection(mode if mode in modes else "", *(found.get(name, "") for name in FIELDS[1:]))


def _points(written: Sequence[Reflection], measured: Sequence[int | None]) -> dict[str, float]:
    """How often the step of no return that was written is the measured one, give or take one."""
    known = [(re.search(r"\d+", r.critical_step), step) for r, step in zip(written, measured, strict=True) if step is not None]
    right = sum(said is not None and abs(int(said[0]) - step) <= 1 for said, step in known)
    return {
        "failures/critical_step": sum(step for _, step in known) / max(1, len(known)),
        "failures/critical_step_known": len(known) / max(1, len(measured)),
        "failures/critical_step_agreement": right / max(1, len(known)),
    }


def _selected(text: str, earlier: Sequence[Failure]) -> list[Failure]:
    block = _SELECTED.search(text)
    numbers = re.findall(r"^\s*(\d+)\s*[.:]", block[1], re.MULTILINE) if block else []
    return [earlier[int(n) - 1] for n in numbers if 1 <= int(n) <= len(earlier)]


def _told(failure: Failure) -> str:
    """A failure in one line: the task and what was written about it."""
    parts = (failure.goal, failure.mode, failure.query, failure.detail, failure.lesson)
    return ": ".join(" ".join(part.split()) for part in parts if part)


def _one_a_task(failures: Sequence[Failure], most: int) -> list[Failure]:
    by_task: dict[str, Failure] = {}
    for failure in failures:
        by_task.setdefault(failure.task, failure)
    return list(by_task.values())[:most]


def _story(trajectory: Trajectory) -> str:
    seen = [turn.observation for turn in trajectory.turns[1:]] + [trajectory.final_observation]
    lines = [trajectory.turns[0].observation, f"Task: {trajectory.task.goal}."]
    lines += [f"{n}. {turn.action}: {after}" for n, (turn, after) in enumerate(zip(trajectory.turns, seen, strict=True), 1)]
    return "\n".join([*lines, "Outcome: failure."])
