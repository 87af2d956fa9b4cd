"""The credit of actions: from trajectories to the examples of a policy loss, by the settings of `ActionConfig`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from gongfu.config.update import ActionConfig, UpdateConfig
from gongfu.core.records import Trajectory
from gongfu.credit import advantages as estimators
from gongfu.credit.batch import Example
from gongfu.credit.gigpo import anchor_groups, gigpo, merge_similar
from gongfu.credit.losses import PolicyLossConfig
from gongfu.engine.protocol import Engine
from gongfu.methods.returns import Factors, episode_returns, is_valid, returns_of
from gongfu.methods.update import Actions, TokenRow, token_rows

Anchors = Sequence[Sequence[Hashable]]
"""The state of every step of every trajectory, as GiGPO compares them."""


def action_part(
    batch: Sequence[Trajectory],
    settings: ActionConfig,
    engine: Engine,
    *,
    anchors: Anchors,
    factors: Factors | None = None,
    episode_factors: Factors | None = None,
    component: str = "actor",
) -> Actions | None:
    """What the actions of a batch teach; None when every advantage is zero and no KL is in the loss.

    `anchors` are those of `anchors_of`; `factors` scale the returns of steps, `episode_factors` GiGPO's episode term.
    """
    examples = _examples(batch, settings, engine, anchors, factors or {}, episode_factors or {}, component)
    return Actions(examples, policy_config(settings)) if examples else None


def policy_config(s: UpdateConfig) -> PolicyLossConfig:
    """The actions' loss by the settings."""
    in_loss = s.kl.place == "loss"
    return PolicyLossConfig(
        clip_low=s.clip_low,
        clip_high=s.clip_high,
        dual_clip=s.dual_clip,
        ratio=s.ratio,
        aggregation=s.aggregation,
        norm_length=s.norm_length,
        kl_coefficient=s.kl.coefficient if in_loss else 0.0,
        kl_estimator=s.kl.estimator,
    )


def _examples(
    batch: Sequence[Trajectory],
    s: ActionConfig,
    engine: Engine,
    anchors: Anchors,
    factors: Factors,
    episode_factors: Factors,
    component: str,
) -> list[Example]:
    """Training rows with their token advantages. A flat group teaches nothing and is left out, KL included.

    Not where its steps are compared with those of other groups.
    """
    rows = {t.id: token_rows(t) for t in batch}
    needs_reference = s.kl.coefficient > 0
    whole_batch = s.advantage == "reinforce++" or (s.advantage == "gigpo" and s.anchor_scope == "batch")
    flat = flat_groups(batch, s, factors)
    kept = [t for t, dead in zip(batch, flat, strict=True) if whole_batch or not dead]
    reference = reference_logprobs(engine, [r for t in kept for r in rows[t.id]]) if needs_reference else {}
    paid = _token_advantages(batch, rows, reference, s, anchors, factors, episode_factors)
    in_loss = needs_reference and s.kl.place == "loss"
    examples = []
    for trajectory in kept:
        for r in rows[trajectory.id]:
            ref = reference[r.row.id] if in_loss else None
            examples.append(Example(r.row, component, paid[r.row.id], r.logprobs, ref))
    return [e for e in examples if any(e.advantages) or in_loss]


def reference_logprobs(engine: Engine, rows: Sequence[TokenRow]) -> dict[str, tuple[float, ...]]:
    """Row id -> log-probs of its scored tokens under the frozen base."""
    scored = engine.logprobs([r.row for r in rows], adapter=None)
    return {r.row.id: tuple(values.tolist()) for r, values in zip(rows, scored, strict=True)}


def _token_advantages(
    batch: Sequence[Trajectory],
    rows: Mapping[str, list[TokenRow]],
    reference: Mapping[str, tuple[float, ...]],
    s: ActionConfig,
    anchors: Anchors,
    factors: Factors,
    episode_factors: Factors,
) -> dict[str, tuple[float, ...]]:
    """One advantage for each scored token of every row, by row id."""
    if s.advantage == "reinforce++":
        return _reinforce_plus_plus(batch, rows, reference, s)
    returns = [returns_of(t, s, factors) for t in batch]
    groups = [t.group for t in batch]
    match s.advantage:
        case "grpo":
            steps = estimators.grpo(returns, groups, std=s.std, statistics=s.statistics)
        case "dr_grpo":
            steps = estimators.dr_grpo(returns, groups, statistics=s.statistics)
        case "rloo":
            steps = estimators.rloo(returns, groups, statistics=s.statistics)
        case "reinforce++_baseline":
            counts = [_tokens_per_turn(t, rows[t.id]) for t in batch]
            steps = estimators.reinforce_plus_plus_baseline(returns, groups, tokens=counts, statistics=s.statistics)
        case "gigpo":
            episodes = [episode_returns(t, s, episode_factors) for t in batch]
            steps = gigpo(
                episodes,
                returns,
                anchors,
                groups,
                omega=s.step_weight,
                alpha=s.episode_weight,
                scopes=scopes_of(batch, s),
                std=s.std,
                statistics=s.statistics,
            )
    if s.cap_invalid:
        valid = [np.array([is_valid(turn, s) for turn in t.turns]) for t in batch]
        steps = [np.where(ok, values, np.minimum(values, 0.0)) for ok, values in zip(valid, steps, strict=True)]
    return {r.row.id: tuple(float(steps[i][turn]) for turn in r.turns) for i, t in enumerate(batch) for r in rows[t.id]}


def anchors_of(batch: Sequence[Trajectory], s: ActionConfig) -> Anchors:
    """The state of every step by the settings. Once a step: similar texts of many episodes take their time to be found."""
    states: list[list[Hashable]] = [[turn.observation for turn in t.turns] for t in batch]
    if s.anchor_similarity < 1:
        texts = [[turn.observation for turn in t.turns] for t in batch]
        states = [list(numbers) for numbers in merge_similar(texts, scopes_of(batch, s), s.anchor_similarity)]
    if s.anchor == "state":
        return [
            [(seen, turn.actions) for seen, turn in zip(row, t.turns, strict=True)]
            for row, t in zip(states, batch, strict=True)
        ]
    return states


def scopes_of(batch: Sequence[Trajectory], s: ActionConfig) -> list[str]:
    """Within what each trajectory's states are compared."""
    return [t.group if s.anchor_scope == "group" else "batch" for t in batch]


def _reinforce_plus_plus(
    batch: Sequence[Trajectory],
    rows: Mapping[str, list[TokenRow]],
    reference: Mapping[str, tuple[float, ...]],
    settings: ActionConfig,
) -> dict[str, tuple[float, ...]]:
    kl = []
    for t in batch:
        gaps = [[a - b for a, b in zip(r.logprobs, reference.get(r.row.id, r.logprobs), strict=True)] for r in rows[t.id]]
        kl.append([value for gap in gaps for value in gap])
    paid = estimators.reinforce_plus_plus([t.score for t in batch], kl, beta=settings.kl.coefficient)
    result = {}
    for t, values in zip(batch, paid, strict=True):
        start = 0
        for r in rows[t.id]:
            result[r.row.id] = tuple(float(v) for v in values[start : start + len(r.turns)])
            start += len(r.turns)
    return result


def _tokens_per_turn(trajectory: Trajectory, rows: Sequence[TokenRow]) -> list[int]:
    counts = [0] * len(trajectory.turns)
    for r in rows:
        for turn in r.turns:
            counts[turn] += 1
    return counts


def group_metrics(
    batch: Sequence[Trajectory], settings: ActionConfig, anchors: Anchors, factors: Factors | None = None
) -> dict[str, float]:
    """How many groups could teach, and why the others could not."""
    scores: dict[str, list[float]] = {}
    dead: set[str] = set()
    for t, is_flat in zip(batch, flat_groups(batch, settings, factors), strict=True):
        scores.setdefault(t.group, []).append(t.score)
        if is_flat:
            dead.add(t.group)
    return {
        "train/groups": float(len(scores)),
        "train/zero_variance_groups": float(len(dead)),
        "train/all_fail_groups": float(sum(max(s) == 0 for s in scores.values())),
        "train/all_pass_groups": float(sum(min(s) == 1 for s in scores.values())),
        **(_anchor_metrics(batch, settings, anchors) if settings.advantage == "gigpo" else {}),
    }


def _anchor_metrics(batch: Sequence[Trajectory], settings: ActionConfig, anchors: Anchors) -> dict[str, float]:
    """How much GiGPO's step term had to compare."""
    scopes, lengths = scopes_of(batch, settings), [len(t.turns) for t in batch]
    sizes = [len(cell) for cell in anchor_groups(anchors, scopes, lengths)]
    shared = sum(size for size in sizes if size > 1)
    return {
        "train/anchor_groups": float(len(sizes)),
        "train/anchor_size": sum(sizes) / max(1, len(sizes)),
        "train/anchor_shared_steps": shared / max(1, sum(sizes)),
    }


def flat_groups(batch: Sequence[Trajectory], settings: ActionConfig, factors: Factors | None = None) -> np.ndarray:
    """For each trajectory whether all returns of its group are equal."""
    if not batch:
        return np.zeros(0, bool)
    return estimators.zero_variance([returns_of(t, settings, factors) for t in batch], [t.group for t in batch])
