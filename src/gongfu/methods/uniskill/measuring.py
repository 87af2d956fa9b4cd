"""Numbers of a step's proposals: from what was asked for to what entered the bank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from gongfu.methods.uniskill.records import Decision, Judged

_REASONS = (
    "malformed",
    "keep",
    "critic",
    "missing",
    "duplicate",
    "delta_plus",
    "r_align",
    "confidence",
    "calibration",
    "superseded",
    "warm-up",
)


def funnel(decided: Sequence[tuple[Judged, Decision]]) -> dict[str, float]:
    """Counts of proposals, of every operation, of every reason not to accept one; means of rewards and scores."""
    metrics = {"proposals/count": float(len(decided))}
    if not decided:
        return metrics
    ops = Counter(j.proposal.parsed.op or "malformed" for j, _ in decided)
    reasons = Counter(d.reason for _, d in decided)
    metrics |= {f"proposals/share_{op.lower()}": ops[op] / len(decided) for op in ("ADD", "UPDATE", "KEEP", "malformed")}
    metrics |= {f"proposals/refused_{reason}": float(reasons[reason]) for reason in _REASONS}
    metrics["proposals/accepted"] = float(sum(d.accepted for _, d in decided))
    metrics["proposals/complete"] = fmean(j.rewards.complete for j, _ in decided)
    metrics["proposals/reward"] = fmean(j.rewards.total for j, _ in decided)
    metrics["proposals/critic_errors"] = float(sum(bool(j.verdict and j.verdict.error) for j, _ in decided))
    measured = [j.alignment for j, _ in decided if j.alignment is not None and j.proposal.is_edit]
    metrics["proposals/measured"] = float(len(measured))
    if measured:
        metrics |= {
            "proposals/r_align": fmean(a.r_align for a in measured),
            "proposals/r_align_positive": fmean(a.r_align > 0 for a in measured),
            "proposals/delta_plus": fmean(a.delta_plus for a in measured),
            "proposals/delta_minus": fmean(a.delta_minus for a in measured),
        }
    return metrics
