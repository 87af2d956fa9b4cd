"""World-In-Agent: after each action the model says what it will see next, and is paid for being right where it succeeds.

R_t = R_task(t) (1 + Σ_h γ^(h-1) r_{t,h}), where r_{t,h} is how alike the prediction for h steps ahead and the observation that
really came are (Role-Agent, arXiv 2606.10917, World-In-Agent). A failed episode has R_task = 0: prediction alone earns nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gongfu.config.role_agent import PredictionConfig
from gongfu.core.errors import EngineError
from gongfu.core.records import Trajectory
from gongfu.core.seeds import seed_for
from gongfu.credit.similarity import similarity
from gongfu.engine.protocol import Engine, Sample, SampleRequest
from gongfu.rollout.collector import wait
from gongfu.rollout.context import REMINDER, TextRules, conversation_gap, reminder, without_reminder

Predictions = Mapping[str, Sequence[Sequence[str]]]
"""Trajectory id -> for each turn the predicted observations 1, 2, ... steps ahead; "" = no prediction that could be read."""

_QUESTION = (
    "Before the environment answers: predict what you will observe after this action{more}. Write the text of the observation "
    "as the environment would{blocks}, and nothing else."
)
_BLOCK = re.compile(r'<predict h="(\d+)">(.*?)(?:</predict>|\Z)', re.DOTALL)


def horizon_of(settings: PredictionConfig, max_steps: int) -> int:
    """H: the share of the longest episode, at least one step; 0 = nothing is predicted.

    >>> [horizon_of(PredictionConfig(horizon=0.05), n) for n in (50, 15, 4)]
    [2, 1, 1]
    """
    return max(1, round(settings.horizon * max_steps)) if settings.horizon else 0


@dataclass
class WorldInAgent:
    """The policy in the world's role."""

    engine: Engine
    adapter: str
    rules: TextRules
    system: str | None
    settings: PredictionConfig
    horizon: int
    seed: int
    concurrency: int
    """Turns asked about at once."""
    cut: int = 0
    """Answers of the last `predict` that the length limit cut."""
    unanswered: int = 0
    """Questions that the engine failed to answer."""

    def predict(self, trajectories: Sequence[Trajectory], step: int) -> Predictions:
        """What each turn of these episodes was followed by, as the model sees it at that turn.

        Only observations that the episode had are asked for: none beyond its end. Depends on seed, step and episodes only.
        """
        asked = [
            _Asked(t, number, self._start(t, number), _followed(t)[number : number + self.horizon])
            for t in trajectories
            for number in range(len(t.turns))
        ]
        self.cut = self.unanswered = 0
        speak = self._ask if self.settings.mode == "ask" else self._go_on
        # Last turns first: the prompt of each earlier turn begins what its episode's attention cache holds already. And a few
        # at a time: looking further ahead goes on from there, before the cache has moved on to other turns.
        asked.sort(key=lambda one: -one.number)
        for first in range(0, len(asked), self.concurrency):
            speak(asked[first : first + self.concurrency], step)
        asked.sort(key=lambda one: one.number)
        found: dict[str, list[Sequence[str]]] = {t.id: [] for t in trajectories}
        for one in asked:
            found[one.trajectory.id].append(tuple(one.texts))
        return found

    def _start(self, trajectory: Trajectory, number: int) -> list[int]:
        """The conversation up to and with the action of a turn, closed."""
        call = trajectory.turns[number].call
        if call is None:
            raise EngineError(f"{trajectory.id}, turn {number}: no model acted here, so it has nothing to predict from")
        stop = self.engine.tokenizer.stop_ids
        ends = bool(call.response) and call.response[-1] in stop
        return [*call.prompt, *call.response, *(() if ends else stop[:1])]

    def _ask(self, asked: Sequence[_Asked], step: int) -> None:
        """One question for all steps ahead."""
        before, after = conversation_gap(self.engine.tokenizer, self.system)
        for one in asked:
            one.ids += self.engine.tokenizer.encode(before + _question(len(one.real)) + after)
            blocks = (f'<predict h="{h}">{text}</predict>' for h, text in enumerate(one.real, 1))
            one.draft = (*self.engine.tokenizer.encode("\n".join(blocks)), *self.engine.tokenizer.stop_ids[:1])
        for one, answer in zip(asked, self._sample(asked, "predict", step), strict=True):
            text = "" if answer is None else self._text(answer)
            one.texts = _read(text, len(one.real))

    def _go_on(self, asked: Sequence[_Asked], step: int) -> None:
        """The model plays on by itself: it writes the environment's message, then its own next action, and so on."""
        before, after = conversation_gap(self.engine.tokenizer, self.system)
        encode = self.engine.tokenizer.encode
        until = tuple(encode(f"\n{REMINDER}")) if self.rules.remind else ()
        for h in range(self.horizon):
            live = [one for one in asked if len(one.real) > h]
            if h:
                for one in live:
                    one.ids += encode(after)
                    call = one.trajectory.turns[one.number + h].call
                    one.draft = call.response if call else ()
                for one, answer in zip(live, self._sample(live, f"act {h}", step), strict=True):
                    one.ids += self._closed(answer)
            for one in live:
                one.ids += encode(before)
                one.draft = (*encode(one.real[h]), *(until or self.engine.tokenizer.stop_ids[:1]))
            for one, answer in zip(live, self._sample(live, f"predict {h}", step, until), strict=True):
                text = "" if answer is None else self._text(answer)
                one.texts.append(without_reminder(text) if self.rules.remind else text)
                # What it reminds of is known: the next step is foreseen with the episode's own task in mind.
                rest = f"\n{reminder(one.trajectory.task)}" if self.rules.remind else ""
                one.ids += encode(one.texts[-1] + rest)

    def _closed(self, answer: Sample | None) -> tuple[int, ...]:
        stop = self.engine.tokenizer.stop_ids
        tokens = answer.tokens if answer else ()
        return tokens if tokens and tokens[-1] in stop else (*tokens, stop[0])

    def _sample(self, asked: Sequence[_Asked], purpose: str, step: int, until: tuple[int, ...] = ()) -> list[Sample | None]:
        # A greedy answer follows from its prompt: episodes of a task that began alike share it.
        drawn = self.settings.temperature > 0
        first: dict[tuple[int, ...] | int, _Asked] = {}
        keys = [i if drawn else tuple(one.ids) for i, one in enumerate(asked)]
        for key, one in zip(keys, asked, strict=True):
            first.setdefault(key, one)
        requests = [
            SampleRequest(
                prompt=tuple(one.ids),
                adapter=self.adapter,
                seed=seed_for(
                    self.seed, purpose=f"world in agent/{purpose}", step=step, task=f"{one.trajectory.id}/{one.number}"
                ),
                max_tokens=self.settings.max_response * (len(one.real) if self.settings.mode == "ask" else 1),
                temperature=self.settings.temperature,
                session=one.trajectory.id if self.rules.context == "append" else None,
                draft=one.draft,
                until=until,
            )
            for one in first.values()
        ]
        answers = dict(zip(first, wait(self.engine.sample(requests)) if requests else [], strict=True))
        found = [None if isinstance(answer := answers[key], EngineError) else answer[0] for key in keys]
        self.unanswered += sum(answer is None for answer in found)
        self.cut += sum(answer is not None and answer.stop == "length" for answer in found)
        return found

    def _text(self, answer: Sample) -> str:
        tokenizer = self.engine.tokenizer
        ends = bool(answer.tokens) and answer.tokens[-1] in tokenizer.stop_ids
        return tokenizer.decode(answer.tokens[:-1] if ends else answer.tokens).strip()


@dataclass
class _Asked:
    """One turn that predictions are wanted for."""

    trajectory: Trajectory
    number: int
    ids: list[int]
    real: Sequence[str]
    """What came in the steps that are predicted."""
    draft: tuple[int, ...] = ()
    """Of the next answer: what really came, which only makes it sooner."""
    texts: list[str] = field(default_factory=list)


def _question(ahead: int) -> str:
    more = f", and in the {ahead - 1} steps after it" if ahead > 1 else ""
    return _QUESTION.format(more=more, blocks=', each in its own <predict h="number of the step, from 1"> </predict>')


def _read(text: str, ahead: int) -> list[str]:
    """The predictions by their numbers; the last one counts as far as it goes when the length limit cut it."""
    blocks = {int(h): found.strip() for h, found in _BLOCK.findall(text)}
    return [blocks.get(h, "") for h in range(1, ahead + 1)]


def _followed(trajectory: Trajectory) -> list[str]:
    """What each turn was followed by."""
    return [*(turn.observation for turn in trajectory.turns[1:]), trajectory.final_observation]


def similarities(trajectory: Trajectory, predicted: Sequence[Sequence[str]]) -> list[list[float]]:
    """r_{t,h} for every turn and step ahead; 0 for a prediction that is missing."""
    seen = _followed(trajectory)
    return [
        [similarity(text, real) if text else 0.0 for text, real in zip(texts, seen[number:], strict=False)]
        for number, texts in enumerate(predicted)
    ]


def prediction_rewards(alike: Sequence[Sequence[float]], gamma: float) -> list[float]:
    """R_pre(t) = Σ_h γ^(h-1) r_{t,h}, one a turn.

    >>> prediction_rewards([[0.5, 0.2], [1.0]], 0.5)
    [0.6, 1.0]
    """
    return [sum(gamma**h * r for h, r in enumerate(row)) for row in alike]


def factors(alike: Sequence[Sequence[float]], settings: PredictionConfig, gamma: float) -> list[float]:
    """What the score of each step is multiplied by: 1 + weight R_pre(t).

    "reward" (the public code) scales the reward itself, which comes with the last step, and so all returns alike.
    """
    paid = [1.0 + settings.weight * r for r in prediction_rewards(alike, gamma)]
    return paid if settings.scales == "returns" else [paid[-1]] * len(paid)
