"""Numbers that describe a batch of trajectories; the same names in training and evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from gongfu.core.errors import EnvError
from gongfu.core.records import Trajectory
from gongfu.rollout.collector import lost


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Shares are over finished episodes (score, success) or over turns (validity); `lost` counts failed environments."""
    kept = [t for t in trajectories if not lost(t)]
    turns = [turn for t in kept for turn in t.turns]
    calls = [turn.call for turn in turns if turn.call is not None]
    return {
        "rollout/episodes": float(len(trajectories)),
        "rollout/lost": float(len(trajectories) - len(kept)),
        "rollout/restarts": float(sum(t.restarts for t in trajectories)),
        "rollout/success": _mean([t.success for t in kept]),
        "rollout/score": _mean([t.score for t in kept]),
        "rollout/turns": _mean([len(t.turns) for t in kept]),
        "rollout/truncated": _mean([t.stop != "terminated" for t in kept]),
        "rollout/valid_format": _mean([turn.validity.format for turn in turns]),
        "rollout/admissible": _mean([turn.validity.admissible for turn in turns]),
        "rollout/tokens_sampled": float(sum(len(call.response) for call in calls)),
        "rollout/skills_shown": _mean([bool(t.skills) for t in kept]),
    }


def losses(trajectories: Sequence[Trajectory]) -> str:
    """A line on the episodes that failed for a reason that is not the agent's; "" without any.

    Raises EnvError when not one is left: there is nothing to learn or to measure, and the next ones would fail alike.
    """
    gone = [t for t in trajectories if lost(t)]
    if not gone:
        return ""
    line = f"{len(gone)} of {len(trajectories)} episodes were lost, the first ({gone[0].task.id}): {gone[0].error}"
    if len(gone) == len(trajectories):
        raise EnvError(line)
    return line


def success_by_kind(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    kinds: dict[str, list[bool]] = {}
    for t in trajectories:
        if not lost(t):
            kinds.setdefault(t.task.kind, []).append(t.success)
    return {kind: _mean(values) for kind, values in sorted(kinds.items())}


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values)) if values else 0.0
