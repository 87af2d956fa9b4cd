"""Losses as functions of the log-probs of given tokens, with sum semantics.

A factory receives the examples of the *whole* batch and fixes every normaliser; what it returns is called once a
micro-batch with (rows, log-probs of each row's scored tokens) and gives (loss, metrics). Losses and metrics of the
micro-batches add up to those of the batch, however it is split. Metrics are keyed "component/name":

=====================  ================================================================================================
tokens                 number of scored tokens
policy_loss, kl_loss   the two parts of the loss (kl_loss includes its coefficient; only with a reference)
clip_low, clip_high    share of tokens whose gradient the lower (A < 0) or upper (A > 0) clip removed
clip_dual              share of tokens whose loss the dual clip bounded
log_ratio_abs          mean |log π - log π_old| over the tokens
kl_k1, kl_k3           mean of the estimators against the reference over the tokens (only with a reference)
=====================  ================================================================================================

Shares and means are divided by the component's tokens in the whole batch, so that they too are totals after summation.
A maximum is no sum: the largest |log π - log π_old| is kept in `PolicyLoss.log_ratio_max`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gongfu.core.records import Row
from gongfu.credit.batch import Aggregation, CreditError, Example, by_component, row_scales

KLEstimator = Literal["k1", "k2", "k3"]

# exp(20) = 5e8: far beyond any clip, and it keeps the backward pass of the branch not taken free of inf * 0 = NaN.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class PolicyLossConfig:
    """Settings of `policy_loss`; raises CreditError for a combination that cannot work."""

    clip_low: float = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high]."""
    clip_high: float = 0.2
    dual_clip: float = 0.0
    """Bound c > 1 on the ratio where the advantage is negative; 0 = off."""
    ratio: Literal["token", "sequence"] = "token"
    """What is clipped: every token's ratio, or that of its row, the mean of their logarithms (GSPO)."""
    aggregation: Aggregation = "token-mean"
    norm_length: int | None = None
    """Constant C in tokens, for seq-mean-token-sum-norm."""
    kl_coefficient: float = 0.0
    """Weight of the KL in the loss; above 0 every example needs `ref_logprobs`."""
    kl_estimator: KLEstimator = "k3"

    def __post_init__(self) -> None:
        if not (0 < self.clip_low < 1 and self.clip_high > 0):
            raise CreditError(f"clip_low must lie in (0, 1) and clip_high above 0, got {self.clip_low} and {self.clip_high}")
        if self.dual_clip and not self.dual_clip > 1:
            raise CreditError(f"dual_clip must be above 1, or 0 for off, got {self.dual_clip}")
        if self.ratio not in ("token", "sequence"):
            raise CreditError(f"unknown ratio {self.ratio!r}; known: token, sequence")
        if self.ratio == "sequence" and self.dual_clip:
            raise CreditError("a sequence's ratio has no dual clip (GSPO defines none); set dual_clip = 0")
        if not (math.isfinite(self.kl_coefficient) and self.kl_coefficient >= 0):
            raise CreditError(f"kl_coefficient must be finite and not negative, got {self.kl_coefficient}")
        if self.kl_estimator not in ("k1", "k2", "k3"):
            raise CreditError(f"unknown kl_estimator {self.kl_estimator!r}; known: k1, k2, k3")


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float = 0.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss of each token and, as booleans, where the lower, the upper and the dual clip act; all shaped [T].

    With ρ = exp(log_ratio): L = max(-A ρ, -A clip(ρ, 1 - clip_low, 1 + clip_high)) (PPO, arXiv 1707.06347 eq. 7; two
    bounds as in DAPO, arXiv 2503.14476) and, for A < 0, L = min(L, -A c) with c = `dual_clip` (arXiv 1912.09729).
    """
    ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    negative = advantages < 0
    low = negative & (ratio < 1 - clip_low)
    high = (advantages > 0) & (ratio > 1 + clip_high)
    dual = negative & (ratio > dual_clip) if dual_clip else torch.zeros_like(negative)
    return torch.where(dual, -advantages * dual_clip, loss), low, high, dual


def sequence_log_ratio(log_ratio: Tensor, lengths: Sequence[int]) -> Tensor:
    """GSPO's ratio (arXiv 2507.18071 eq. 7 and 14), as logarithms: every token of a row takes the mean of the row's, and keeps
    the gradient of its own log-prob. `log_ratio` holds the tokens of all rows, `lengths` of them each.
    """
    means = torch.cat([part.detach().mean().expand(len(part)) for part in log_ratio.split(list(lengths))])
    return means + log_ratio - log_ratio.detach()


def kl_estimate(log_ratio: Tensor, estimator: KLEstimator) -> Tensor:
    """KL(π ‖ π_ref) of each sampled token from d = log π - log π_ref, shaped [T] (Schulman 2020; k3: arXiv 2402.03300 eq. 4).

    k1 = d, k2 = d²/2, k3 = e^(-d) + d - 1. As a *loss* k2 has the gradient of the reverse KL, k3 nearly so for small d,
    and k1 has expected gradient 0: it regularises nothing there (it belongs in the reward). k3 is not clamped, since a
    clamp removes the gradient exactly where π has fallen far below π_ref.
    """
    match estimator:
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(-log_ratio) + log_ratio


def policy_loss(examples: Sequence[Example], config: PolicyLossConfig) -> PolicyLoss:
    """Clipped policy gradient with KL over the batch `examples`; the result is called once a micro-batch.

    Batch loss: Σ_i weight_i s_i Σ_t (L_it + kl_coefficient KL_it), s_i as in `row_scales`, for each component on its own.
    Rows of advantage 0 still count in the normalisers and still feel the KL: leave them out of `examples` to drop them.
    """
    return PolicyLoss(examples, config)


class PolicyLoss:
    """See `policy_loss`. Raises CreditError for rows outside the batch, and naming the rows of a loss that is not finite."""

    def __init__(self, examples: Sequence[Example], config: PolicyLossConfig) -> None:
        self._config = config
        self._examples = {e.row.id: e for e in examples}
        self._scales: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._with_ref: dict[str, bool] = {}
        self.log_ratio_max: dict[str, float] = {}
        """Per component, the largest |log π - log π_old| of any call so far."""
        for component, members in by_component(examples).items():
            scales = row_scales({e.row.id: e.row.targets for e in members}, config.aggregation, config.norm_length)
            self._scales |= {e.row.id: e.weight * scales[e.row.id] for e in members}
            self._tokens[component] = sum(e.row.targets for e in members)
            without = [e.row.id for e in members if e.ref_logprobs is None]
            if without and (config.kl_coefficient or len(without) < len(members)):
                raise CreditError(f"{component}: rows without ref_logprobs, which the KL of this batch needs: {_some(without)}")
            self._with_ref[component] = not without

    def __call__(self, rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Loss (scalar, differentiable) and metrics of one micro-batch; `logprobs[i]` is shaped [scored tokens of row i]."""
        _check(rows, logprobs, self._examples)
        components: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            components.setdefault(self._examples[row.id].component, []).append(i)
        losses: list[Tensor] = []
        metrics: dict[str, float] = {}
        for component, members in components.items():
            loss, found = self._component(component, [rows[i] for i in members], [logprobs[i] for i in members])
            losses.append(loss)
            metrics |= {f"{component}/{name}": value for name, value in found.items()}
        return torch.stack(losses).sum(), metrics

    def _component(self, component: str, rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        config, examples = self._config, [self._examples[row.id] for row in rows]
        current = _wide(torch.cat(list(logprobs)))

        def flat(values: Sequence[Sequence[float]]) -> Tensor:
            return torch.tensor([v for row in values for v in row], dtype=current.dtype, device=current.device)

        scale = flat([[self._scales[row.id]] * row.targets for row in rows])
        log_ratio = current - flat([e.old_logprobs for e in examples])
        paid = log_ratio if config.ratio == "token" else sequence_log_ratio(log_ratio, [row.targets for row in rows])
        surrogate, low, high, dual = clipped_surrogate(
            paid,
            flat([e.advantages for e in examples]),
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
        )
        total = scale * surrogate
        sums = {"policy_loss": total}
        means = {"clip_low": low, "clip_high": high, "clip_dual": dual, "log_ratio_abs": log_ratio.abs()}
        if self._with_ref[component]:
            from_ref = current - flat([e.ref_logprobs or () for e in examples])
            means |= {"kl_k1": from_ref, "kl_k3": kl_estimate(from_ref, "k3")}
            if config.kl_coefficient:
                sums["kl_loss"] = scale * config.kl_coefficient * kl_estimate(from_ref, config.kl_estimator)
                total = total + sums["kl_loss"]
        _refuse_non_finite(rows, current, total)

        with torch.no_grad():
            values = torch.stack([t.to(torch.float64).sum() for t in (*sums.values(), *means.values())]).tolist()
            largest = float(log_ratio.abs().max())
        metrics = {"tokens": float(len(current))} | dict(zip((*sums, *means), values, strict=True))
        for name in means:
            metrics[name] /= self._tokens[component]
        self.log_ratio_max[component] = max(self.log_ratio_max.get(component, 0.0), largest)
        return total.sum(), metrics


class SFTLoss:
    """See `sft_loss`."""

    def __init__(self, component: str, scales: Mapping[str, float], lengths: Mapping[str, int]) -> None:
        self._component, self._scales, self._lengths = component, scales, lengths

    def __call__(self, rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Loss (scalar, differentiable) and metrics tokens, sft_loss and nll (mean over the batch's tokens)."""
        _check(rows, logprobs, self._lengths)
        current = _wide(torch.cat(list(logprobs)))
        scales = [self._scales[row.id] for row in rows for _ in range(row.targets)]
        total = -torch.tensor(scales, dtype=current.dtype, device=current.device) * current
        _refuse_non_finite(rows, current, total)
        nll = -float(current.detach().double().sum()) / sum(self._lengths.values())
        loss = total.sum()
        metrics = {"tokens": float(len(current)), "sft_loss": float(loss.detach()), "nll": nll}
        return loss, {f"{self._component}/{name}": value for name, value in metrics.items()}


def sft_loss(
    rows: Sequence[Row],
    *,
    component: str = "sft",
    weights: Sequence[float] | None = None,
    aggregation: Aggregation = "token-mean",
    norm_length: int | None = None,
) -> SFTLoss:
    """Negative log-likelihood of the scored tokens of the batch `rows`: Σ_i weight_i s_i Σ_t -log π (s_i: `row_scales`).

    `weights` holds one finite value >= 0 a row (default 1). Raises CreditError as `policy_loss` does.
    """
    zeros = [(0.0,) * row.targets for row in rows]
    weights = [1.0] * len(rows) if weights is None else weights
    if len(weights) != len(rows):
        raise CreditError(f"{len(rows)} rows but {len(weights)} weights")
    examples = [Example(row, component, z, z, weight=w) for row, z, w in zip(rows, zeros, weights, strict=True)]
    by_component(examples)  # refuses an empty batch and repeated ids
    lengths = {row.id: row.targets for row in rows}
    scales = row_scales(lengths, aggregation, norm_length)
    return SFTLoss(component, {e.row.id: e.weight * scales[e.row.id] for e in examples}, lengths)


def _wide(logprobs: Tensor) -> Tensor:
    """Half precision cannot hold a ratio near 1: bfloat16 log-probs are off by up to 0.4 %."""
    return logprobs.float() if logprobs.dtype in (torch.bfloat16, torch.float16) else logprobs


def _check(rows: Sequence[Row], logprobs: Sequence[Tensor], known: Mapping[str, object]) -> None:
    if not rows or len(rows) != len(logprobs):
        raise CreditError(f"a micro-batch needs rows and as many log-prob tensors, got {len(rows)} and {len(logprobs)}")
    strangers = [row.id for row in rows if row.id not in known]
    if strangers:
        raise CreditError(f"rows that are not in the batch this loss was made for: {_some(strangers)}")
    for row, values in zip(rows, logprobs, strict=True):
        if values.shape != (row.targets,):
            raise CreditError(f"row {row.id} has {row.targets} scored tokens but log-probs shaped {tuple(values.shape)}")


def _refuse_non_finite(rows: Sequence[Row], logprobs: Tensor, losses: Tensor) -> None:
    finite = torch.isfinite(logprobs) & torch.isfinite(losses)
    if bool(finite.all()):
        return
    ok = torch.split(finite, [row.targets for row in rows])
    bad = [row.id for row, good in zip(rows, ok, strict=True) if not bool(good.all())]
    raise CreditError(
        f"loss or log-prob is NaN or infinite in rows {_some(bad)}; no gradient was computed for this micro-batch"
    )


def _some(ids: Sequence[str], most: int = 8) -> str:
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")
