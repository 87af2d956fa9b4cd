"""Which edits enter the bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import variance
from typing import Literal

from gongfu.core.errors import ConfigError
from gongfu.methods.uniskill.records import Alignment, Decision, Judged, Proposal
from gongfu.methods.uniskill.shelf import Shelf, same

BankTexts = Mapping[str, Mapping[str, str]]
"""Task kind -> skill id -> text."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """Settings of the gate; raises ConfigError for one that cannot be used."""

    kind: Literal["paper", "confident"] = "confident"
    """paper: Δ+ > 0 and R_align > 0. confident: also R_align - z SE > 0, and nothing passes where no spread is known: when no
    proposal of the step has two references of one outcome (one reference each, or groups of 4)."""
    z: float = 1.0
    delta_plus: bool = True
    """Whether Δ+ > 0 is asked for too. Where a success holds a search, the right hint makes its wrong turns less likely and Δ+
    negative, though less so than Δ-."""
    missing_critic: Literal["refuse", "accept"] = "accept"
    """What becomes of an edit whose critic had no answer; a critic that was not asked refuses nothing."""
    coverage: float = 0.8
    """Smallest share of scorable steps in a reference; below it an alignment counts as not measured."""
    near_duplicate: float = 0.8
    """Similarity from which a text repeats another; 0 = only the same text does (and an UPDATE only that of its target)."""
    max_adds_per_group: int = 1
    """The best so many of a group's ADDs enter; 0 = all."""
    by_kind: bool = True
    """Whether texts are compared within their kind of task only."""
    use_align: bool = True
    """False (ablation): whatever the critic and the duplicates let pass enters."""

    def __post_init__(self) -> None:
        if self.z < 0 or self.max_adds_per_group < 0:
            raise ConfigError(f"z and max_adds_per_group cannot be negative, got {self.z} and {self.max_adds_per_group}")
        for name in ("coverage", "near_duplicate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")


def decide(
    judged: Judged,
    rules: GateRules,
    *,
    pooled: float | None = None,
    threshold: float | None = None,
    warm_up: bool = False,
) -> Decision:
    """Whether one proposal, looked at alone, may enter the bank.

    `pooled` is the variance (`pooled_variance`) that a side with a single reference is given. `threshold` is a calibrated
    bound that R_align must exceed (`Calibration.threshold`); None = not calibrated, the other rules hold alone.
    """
    reason = _refused(judged, rules, pooled, threshold, warm_up)
    return Decision(not reason, reason or "accepted")


def choose_edits(
    judged: Sequence[Judged],
    rules: GateRules,
    *,
    bank: BankTexts,
    pooled: float | None = None,
    threshold: float | None = None,
    warm_up: bool = False,
) -> list[tuple[Judged, Decision]]:
    """A decision on every proposal of a step, in their order.

    Those that pass alone compete: ADDs first, by decreasing R_align (ties by id), each unless it repeats a text of `bank` or
    one accepted before it, or its group has its ADDs already; then the best UPDATE of every target that repeats no other
    skill. `pooled` defaults to the variance within the references of this step.
    """
    if pooled is None:
        pooled = pooled_variance(j.alignment for j in judged if j.alignment is not None and j.proposal.is_edit)
    decisions = [decide(j, rules, pooled=pooled, threshold=threshold, warm_up=warm_up) for j in judged]
    texts = _Texts(bank, rules)
    adds: Counter[str] = Counter()
    updated: set[str] = set()
    for i in sorted((i for i, d in enumerate(decisions) if d.accepted), key=lambda i: _rank(judged[i])):
        proposal = judged[i].proposal
        group, is_add = proposal.pair.source.group, proposal.parsed.op == "ADD"
        if not is_add and proposal.target in updated:
            decisions[i] = Decision(False, "superseded")
        elif texts.repeated_by(proposal):
            decisions[i] = Decision(False, "duplicate")
        elif is_add and rules.max_adds_per_group and adds[group] >= rules.max_adds_per_group:
            decisions[i] = Decision(False, "superseded")
        else:
            texts.put(proposal)
            if is_add:
                adds[group] += 1
            else:
                updated.add(proposal.target)
    return list(zip(judged, decisions, strict=True))


def find_duplicates(proposals: Sequence[Proposal], bank: BankTexts, rules: GateRules) -> dict[str, str]:
    """Id of every edit that repeats something -> what it repeats: a skill of the bank or an earlier ADD (their ids).

    Among the proposals only the same text counts, since which of two near ones is better is not known yet.
    """
    texts = _Texts(bank, rules)
    first: dict[tuple[str, str], str] = {}
    found = {}
    for proposal in proposals:
        if not proposal.is_edit:
            continue
        repeated = texts.repeated_by(proposal)
        if not repeated and proposal.parsed.op == "ADD":
            earlier = first.setdefault((texts.shelf(proposal), same(proposal.parsed.text)), proposal.id)
            repeated = "" if earlier == proposal.id else earlier
        if repeated:
            found[proposal.id] = repeated
    return found


def pooled_variance(alignments: Iterable[Alignment]) -> float | None:
    """Variance of Δ within the references of one outcome, over all proposals; None when no side has two references."""
    sides = [side for a in alignments for side in (a.plus, a.minus) if len(side) > 1]
    freedom = sum(len(side) - 1 for side in sides)
    return sum((len(side) - 1) * variance(side) for side in sides) / freedom if freedom else None


def standard_error(alignment: Alignment, pooled: float | None) -> float | None:
    """Of R_align: sqrt(s+² / n+ + s-² / n-), a side with one reference taking `pooled` for its s²; None if that is None."""
    total = 0.0
    for side in (alignment.plus, alignment.minus):
        spread = variance(side) if len(side) > 1 else pooled
        if spread is None:
            return None
        total += spread / len(side)
    return sqrt(total)


def _refused(judged: Judged, rules: GateRules, pooled: float | None, threshold: float | None, warm_up: bool) -> str:
    """Why it may not enter, "" = it may."""
    proposal, verdict, alignment = judged.proposal, judged.verdict, judged.alignment
    if not proposal.is_edit:
        return "malformed" if proposal.parsed.op is None else "keep"
    if warm_up:
        return "warm-up"
    if proposal.parsed.op not in proposal.legal:
        return "critic"
    if verdict is not None and False in (verdict.op_ok, verdict.content_ok):
        return "critic"
    if verdict is not None and verdict.error and rules.missing_critic == "refuse":
        return "missing"
    if judged.duplicate_of:
        return "duplicate"
    if not rules.use_align:
        return ""
    if alignment is None or alignment.coverage < rules.coverage:
        return "missing"
    if rules.delta_plus and alignment.delta_plus <= 0:
        return "delta_plus"
    if alignment.r_align <= 0:
        return "r_align"
    if rules.kind == "confident":
        error = standard_error(alignment, pooled)
        if error is None or alignment.r_align - rules.z * error <= 0:
            return "confidence"
    return "calibration" if threshold is not None and alignment.r_align <= threshold else ""


def _rank(judged: Judged) -> tuple[bool, float, str]:
    score = judged.alignment.r_align if judged.alignment is not None else 0.0
    return judged.proposal.parsed.op != "ADD", -score, judged.proposal.id


class _Texts:
    """Texts of the bank, shelf by shelf, and of the edits accepted so far."""

    def __init__(self, bank: BankTexts, rules: GateRules) -> None:
        self._rules = rules
        texts: dict[str, dict[str, str]] = {}
        for kind, some in bank.items():
            texts.setdefault(kind if rules.by_kind else "", {}).update(some)
        self._shelves = {name: Shelf(some, rules.near_duplicate) for name, some in texts.items()}

    def shelf(self, proposal: Proposal) -> str:
        return proposal.task.kind if self._rules.by_kind else ""

    def put(self, proposal: Proposal) -> None:
        key = proposal.id if proposal.parsed.op == "ADD" else proposal.target
        self._shelves.setdefault(self.shelf(proposal), Shelf({}, self._rules.near_duplicate)).put(key, proposal.parsed.text)

    def repeated_by(self, proposal: Proposal) -> str:
        """Id of what the text repeats, "" = nothing. An UPDATE may stay near its own target, but not the same."""
        text, target = proposal.parsed.text, ""
        if proposal.parsed.op == "UPDATE":
            if same(text) == same(proposal.target_text):
                return proposal.target
            if not self._rules.near_duplicate:
                return ""
            target = proposal.target
        shelf = self._shelves.get(self.shelf(proposal))
        return shelf.repeated_by(text, other_than=target) if shelf else ""
