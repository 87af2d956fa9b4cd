"""How a skill text moves the current policy's log-likelihood of recorded actions: R_align = Δ+ - Δ- (UniSkill).

J(τ; s) is the mean over scorable steps of the mean log-prob of the action's payload tokens, teacher-forced under the prompts
that τ would have had with skill s. A step is scorable when its action was well formed and admissible. Old scores (under the
skill that was shown) are known from the sampler; only the counterfactual rows are forwarded, each pair of text and trajectory
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from gongfu.core.records import Call, Row, Trajectory
from gongfu.engine.protocol import Engine
from gongfu.methods.uniskill.records import Alignment, Proposal
from gongfu.rollout.actions import ActionFormat
from gongfu.rollout.context import TextRules
from gongfu.rollout.replay import payload_span, under_skills
from gongfu.rollout.rows import rows_of

StepScores = Mapping[int, float]
"""Turn -> mean log-prob of its payload tokens; scorable turns only."""


@dataclass
class AlignValuer:
    """Values proposals by R_align. Implements `gongfu.methods.uniskill.method.Valuer`."""

    engine: Engine
    adapter: str
    rules: TextRules
    system: str | None
    rows: int = 0
    """Counterfactual rows forwarded so far."""
    reused: int = 0
    """Episodes whose old score the sampler had given already."""

    def value(self, proposals: Sequence[Proposal], step: int) -> list[Alignment | None]:
        """In order: an edit's text against the shown skill; for KEEP the shown skill against none.

        None where a reference has no scorable step.
        """
        scores = Scores(self.engine, self.adapter, self.rules, self.system)
        wanted = [(t, text) for p in proposals for t in _references(p) for text in (_new_text(p), p.target_text)]
        scores.score(wanted, shown={t.id: p.target_text for p in proposals for t in _references(p)})
        self.rows += scores.rows
        self.reused += scores.reused
        return [_alignment(p, scores) for p in proposals]


def _references(proposal: Proposal) -> tuple[Trajectory, ...]:
    return (*proposal.pair.successes, *proposal.pair.failures)


def _new_text(proposal: Proposal) -> str:
    """What is put in place of the shown skill: the edit's text, and nothing to see what a KEEP keeps."""
    return proposal.parsed.text if proposal.is_edit else ""


def _alignment(proposal: Proposal, scores: Scores) -> Alignment | None:
    sign = 1 if proposal.is_edit else -1
    new, old = _new_text(proposal), proposal.target_text
    plus = [scores.delta(t, new, old) for t in proposal.pair.successes]
    minus = [scores.delta(t, new, old) for t in proposal.pair.failures]
    if None in plus or None in minus:
        return None
    coverage = min(scores.coverage(t, new) for t in _references(proposal))
    return Alignment(tuple(sign * d for d in plus if d is not None), tuple(sign * d for d in minus if d is not None), coverage)


@dataclass
class Scores:
    """J of trajectories under skill texts, each pair computed once."""

    engine: Engine
    adapter: str
    rules: TextRules
    system: str | None
    rows: int = 0
    reused: int = 0
    _scores: dict[tuple[str, str], StepScores] = field(default_factory=dict)

    def delta(self, trajectory: Trajectory, new: str, old: str) -> float | None:
        """J(τ; new) - J(τ; old), over the steps that both have; None without any."""
        a, b = self._scores[trajectory.id, new], self._scores[trajectory.id, old]
        steps = [turn for turn in b if turn in a]
        return fmean(a[turn] - b[turn] for turn in steps) if steps else None

    def coverage(self, trajectory: Trajectory, text: str) -> float:
        """Share of the episode's steps that are scored."""
        return len(self._scores[trajectory.id, text]) / len(trajectory.turns)

    def score(self, wanted: Sequence[tuple[Trajectory, str]], *, shown: Mapping[str, str]) -> None:
        """`shown`: trajectory id -> the text that it was played with."""
        rows: list[Row] = []
        owners: list[tuple[str, str]] = []
        for trajectory, text in wanted:
            key = (trajectory.id, text)
            if key in self._scores:
                continue
            spans = payload_spans(trajectory, self.rules.format, self.engine)
            known = sampled_scores(trajectory, spans) if text == shown[trajectory.id] else None
            if known is not None:
                self._scores[key] = known
                self.reused += 1
                continue
            self._scores[key] = {}
            other = under_skills(
                trajectory, [text] if text else [], rules=self.rules, tokenizer=self.engine.tokenizer, system=self.system
            )
            for row in payload_rows(other, spans):
                rows.append(replace(row, id=f"{row.id}|{len(rows)}"))
                owners.append(key)
        self.rows += len(rows)
        if not rows:
            return
        for row, key, values in zip(rows, owners, self.engine.logprobs(rows, adapter=self.adapter), strict=True):
            self._scores[key] = {**self._scores[key], **_means(row, values.tolist())}


def payload_spans(trajectory: Trajectory, format: ActionFormat, engine: Engine) -> dict[int, tuple[int, int]]:
    """Turn -> payload tokens of the response, for the scorable turns (well formed and admissible)."""
    spans = {}
    for number, turn in enumerate(trajectory.turns):
        span = payload_span(trajectory, number, format=format, tokenizer=engine.tokenizer) if turn.validity.ok else None
        if span is not None:
            spans[number] = span
    return spans


def payload_rows(trajectory: Trajectory, spans: Mapping[int, tuple[int, int]]) -> list[Row]:
    """The trajectory's training rows with nothing but payload tokens scored, as raw log-probs.

    A chosen action is scored like a generated one: given its list, a skill that moves the policy to an option that was
    unlikely before would be judged against the wrong total.
    """
    rows = []
    for row in rows_of(trajectory):
        mask = [False] * len(row.tokens)
        kept = []
        for turn, start, _ in row.meta["spans"]:
            if turn in spans:
                low, high = start + spans[turn][0], start + spans[turn][1]
                mask[low:high] = [True] * (high - low)
                kept.append((turn, low, high))
        if kept:
            rows.append(replace(row, mask=tuple(mask), choices=(), meta={**row.meta, "spans": tuple(kept)}))
    return rows


def sampled_scores(trajectory: Trajectory, spans: Mapping[int, tuple[int, int]]) -> StepScores | None:
    """Scores from the sampler's own log-probs; None where it did not say those of generated tokens at the row's temperature."""
    scores = {}
    for turn, (low, high) in spans.items():
        values = _as_generated(trajectory.turns[turn].call)
        if values is None:
            return None
        scores[turn] = fmean(values[low:high])
    return scores


def _as_generated(call: Call | None) -> tuple[float, ...] | None:
    if call is None or call.choice is None:
        return call.logprobs if call else None
    return call.choice.alone if call.temperature == 1.0 else None


def _means(row: Row, values: Sequence[float]) -> dict[int, float]:
    at = {place: k for k, place in enumerate(i for i, scored in enumerate(row.mask) if scored)}
    return {turn: fmean(values[at[low] : at[low] + high - low]) for turn, low, high in row.meta["spans"]}
