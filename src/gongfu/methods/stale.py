"""Episodes of an older policy: the weights that make up for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gongfu.core.errors import EngineError
from gongfu.core.records import Trajectory
from gongfu.credit.batch import Example
from gongfu.engine.protocol import Engine


def version_lag(batch: Sequence[Trajectory], version: int, *, most: int) -> int:
    """How many versions the oldest call of a batch is behind `version`. Raises EngineError beyond `most`."""
    versions = [turn.call.policy_version for t in batch for turn in t.turns if turn.call is not None]
    lag = version - min(versions, default=version)
    if lag > most:
        raise EngineError(
            f"rollouts of version {min(versions)} came to be trained at version {version}; at most {most} behind are allowed"
        )
    return lag


def corrected(
    examples: Sequence[Example], engine: Engine, *, adapter: str, cap: float, max_gap: float
) -> tuple[list[Example], dict[str, float]]:
    """The examples with the trainer's present policy as the one that ratios are taken against, and what was made up for.

    The sampler's policy μ is older than the trainer's π_old, so every token's loss is multiplied by the truncated importance
    ratio min(π_old / μ, cap): a constant, which scales its advantage. The clip then acts on π / π_old alone (the decoupled
    objective, arXiv 2110.00641). Raises EngineError where the two are more than `max_gap` nats apart in the mean.
    """
    scored = engine.logprobs([e.row for e in examples], adapter=adapter)
    fresh, ratios = [], []
    for example, values in zip(examples, scored, strict=True):
        now = values.numpy().astype(np.float64)
        ratio = np.exp(now - np.array(example.old_logprobs))
        weights = np.minimum(ratio, cap)
        paid = tuple((weights * np.array(example.advantages)).tolist())
        fresh.append(replace(example, advantages=paid, old_logprobs=tuple(now.tolist())))
        ratios.append(ratio)
    all_ratios = np.concatenate(ratios)
    gap = float(np.abs(np.log(all_ratios)).mean())
    if gap > max_gap:
        raise EngineError(
            f"adapter {adapter!r} has moved {gap:.3g} nats a token from the policy that sampled (method.max_gap allows "
            f"{max_gap:.3g}): lower optim.lr, or play without one_step_off; or else the sampler serves other weights"
        )
    return fresh, {
        "train/importance_mean": float(np.minimum(all_ratios, cap).mean()),
        "train/importance_truncated": float((all_ratios > cap).mean()),
        "train/importance_log_abs": gap,
    }
