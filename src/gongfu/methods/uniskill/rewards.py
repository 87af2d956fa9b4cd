"""What a proposal is paid: for its form, its operation and its skill (UniSkill, composite reward of the proposer)."""

from __future__ import annotations

from dataclasses import dataclass

from gongfu.core.errors import ConfigError
from gongfu.methods.uniskill.records import Alignment, Proposal, Rewards, Verdict


@dataclass(frozen=True, slots=True)
class RewardRules:
    """Settings of `reward`; raises ConfigError for one that cannot be used."""

    eta: float = 0.05
    """Size of every part; R_align is clipped to it."""
    malformed_factor: float = 3.0
    """A malformed proposal costs this many η. At 1 it ties with the worst edit that is well written (-η + η - η), so that form
    is not preferred there; above 1 it is strictly the worst."""
    partial_when_critic_missing: bool = True
    """Where the critic had no answer, pay what is known. False: the proposal is not complete, however well it is aligned."""
    partial_when_unscorable: bool = True
    """Where the alignment cannot be measured, pay form and operation. False: the proposal is not complete."""
    coverage: float = 0.8
    """Smallest share of scorable steps in a reference; below it an alignment counts as not measured."""
    duplicate_factor: float = 1.0
    """The skill part of a duplicate is minus this many η; 0 = duplicates are scored like any edit."""
    keep_feedback: bool = True
    """Pay KEEP by how the shown skill aligns against none (R_keep), where that was measured; else its skill part is 0."""
    use_align: bool = True
    """False (ablation): an edit that the critic and the bank let pass has skill part 0."""

    def __post_init__(self) -> None:
        if self.eta <= 0:
            raise ConfigError(f"eta must be positive, got {self.eta}: with it every proposal would be paid the same")
        if self.malformed_factor < 1 or self.duplicate_factor < 0:
            raise ConfigError(
                "malformed_factor must be at least 1 and duplicate_factor not negative, got "
                f"{self.malformed_factor} and {self.duplicate_factor}"
            )
        if not 0 <= self.coverage <= 1:
            raise ConfigError(f"coverage is a share of steps, 0 to 1, got {self.coverage}")


def reward(
    proposal: Proposal,
    verdict: Verdict | None,
    alignment: Alignment | None,
    duplicate: str,
    rules: RewardRules,
    *,
    warm_up: bool = False,
) -> Rewards:
    """The parts of a proposal's reward and which of them it needs.

    `alignment` of an edit: its text against the shown skill; of a KEEP: the shown skill against none. None = not measured.
    `duplicate` names what the text repeats, "" = nothing. In the `warm_up` form alone is paid. A critic that was not asked
    (a part of the verdict is None, without an error) leaves its part out of any proposal and makes none incomplete.
    """
    if proposal.parsed.op is None:
        return Rewards(-rules.malformed_factor * rules.eta)
    if warm_up:
        return Rewards(rules.eta)
    verdict = verdict or Verdict(None, None)
    may_lack_critic = rules.partial_when_critic_missing or not verdict.error
    parts = {"op": (_op(proposal, verdict, rules.eta), may_lack_critic)}
    if proposal.is_edit:
        parts["skill"] = _edit(verdict, alignment, duplicate, rules, may_lack_critic)
    else:
        parts["skill"] = (_keep(alignment, rules), False)
    needed = [name for name, (value, dispensable) in parts.items() if value is not None or not dispensable]
    return Rewards(rules.eta, parts["op"][0], parts["skill"][0], ("format", *needed))


def _op(proposal: Proposal, verdict: Verdict, eta: float) -> float | None:
    ok = verdict.op_ok if proposal.parsed.op in proposal.legal else False
    return None if ok is None else eta if ok else -eta


def _edit(
    verdict: Verdict, alignment: Alignment | None, duplicate: str, rules: RewardRules, may_lack_critic: bool
) -> tuple[float | None, bool]:
    """The skill part of an edit, and whether it is complete without one."""
    if verdict.content_ok is False:
        return -rules.eta, False
    if duplicate and rules.duplicate_factor:
        return -rules.duplicate_factor * rules.eta, False
    if verdict.content_ok is None and not may_lack_critic:
        return None, False
    if not rules.use_align:
        return 0.0, False
    return _clipped(alignment, rules), rules.partial_when_unscorable


def _keep(alignment: Alignment | None, rules: RewardRules) -> float:
    paid = rules.keep_feedback and rules.use_align
    return (_clipped(alignment, rules) if paid else None) or 0.0


def _clipped(alignment: Alignment | None, rules: RewardRules) -> float | None:
    """R_align within ±η, None when it was not measured on enough steps."""
    if alignment is None or alignment.coverage < rules.coverage:
        return None
    return min(max(alignment.r_align, -rules.eta), rules.eta)
