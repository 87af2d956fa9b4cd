"""What a loss is computed from: one `Example` a row, and the constants that normalise the whole batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gongfu.core.errors import GongfuError
from gongfu.core.records import Row

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class CreditError(GongfuError, ValueError):
    """Rewards, examples or a loss that cannot be used for training."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row and what its tokens are paid.

    `advantages`, `old_logprobs` and `ref_logprobs` hold one value for each scored token of `row`, in order.
    Raises CreditError when a length does not fit, a value is not finite or the row has no scored token.
    """

    row: Row
    component: str
    """Who is paid (actor, proposer, ...). Every component is normalised on its own."""
    advantages: tuple[float, ...]
    old_logprobs: tuple[float, ...]
    """Log-probs under the policy that the ratio is taken against, at the row's temperature."""
    ref_logprobs: tuple[float, ...] | None = None
    """Log-probs under the KL reference; None = no KL for this component."""
    weight: float = 1.0
    """Multiplies the loss of the row; the normaliser does not see it."""

    def __post_init__(self) -> None:
        targets = self.row.targets
        if not targets:
            raise CreditError(f"row {self.row.id} has no scored token, so nothing can be learned from it; leave it out")
        for name in ("advantages", "old_logprobs", "ref_logprobs"):
            values = getattr(self, name)
            if values is None:
                continue
            if len(values) != targets:
                raise CreditError(f"row {self.row.id} has {targets} scored tokens but {len(values)} {name}")
            if not all(map(math.isfinite, values)):
                raise CreditError(
                    f"row {self.row.id}: {name} must be finite, got {[v for v in values if not math.isfinite(v)]}"
                )
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise CreditError(f"row {self.row.id}: weight must be finite and not negative, got {self.weight}")


def by_component(examples: Sequence[Example]) -> dict[str, list[Example]]:
    """Examples of each component. Raises CreditError for an empty batch or a row id that occurs twice."""
    if not examples:
        raise CreditError("a loss needs at least one example; skip the update when a batch has none")
    components: dict[str, list[Example]] = {}
    seen: set[str] = set()
    for example in examples:
        if example.row.id in seen:
            raise CreditError(f"row {example.row.id} occurs twice in the batch; row ids must be unique")
        seen.add(example.row.id)
        components.setdefault(example.component, []).append(example)
    return components


def row_scales(lengths: Mapping[str, int], aggregation: Aggregation, norm_length: int | None = None) -> dict[str, float]:
    """The constant s_i by which the *sum* of the token losses of row i enters the batch loss  Σ_i s_i Σ_t L_it.

    `lengths` maps row id to |y_i| (scored tokens) for the **whole** batch of N rows and M = Σ|y_i| tokens. Since s_i is
    fixed beforehand, no split into micro-batches and no padding can change the loss:

    * token-mean               1 / M           (DAPO, arXiv 2503.14476)
    * seq-mean-token-mean      1 / (N |y_i|)   (GRPO, arXiv 2402.03300 eq. 3)
    * seq-mean-token-sum       1 / N           (sequence-level REINFORCE, RLOO)
    * seq-mean-token-sum-norm  1 / (N C)       (Dr. GRPO, arXiv 2503.20783; C = `norm_length`, a constant in tokens)

    A "sequence" is a row: an episode in one row counts once, an episode in one row a turn once per turn.
    """
    rows = len(lengths)
    match aggregation:
        case "token-mean":
            tokens = sum(lengths.values())
            return dict.fromkeys(lengths, 1 / tokens)
        case "seq-mean-token-mean":
            return {row: 1 / (rows * length) for row, length in lengths.items()}
        case "seq-mean-token-sum":
            return dict.fromkeys(lengths, 1 / rows)
        case "seq-mean-token-sum-norm":
            if norm_length is None or norm_length <= 0:
                raise CreditError(f"seq-mean-token-sum-norm needs a positive norm_length (tokens), got {norm_length}")
            return dict.fromkeys(lengths, 1 / (rows * norm_length))
    raise CreditError(f"unknown aggregation {aggregation!r}; known: token-mean, seq-mean-token-mean, -sum, -sum-norm")
