"""How large R_align must be for a bounded risk of admitting harmful edits: conformal risk control (arXiv 2208.02814)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gongfu.core.errors import ConfigError

_ROUNDING = 1e-9


@dataclass
class Calibration:
    """Pairs of (R_align, measured gain in success) of proposals that were drawn at random and probed.

    With L_i(c) = 1[R_i > c and gain_i < 0] the threshold is the smallest c >= 0 at which

        (Σ w_i L_i(c) + 1) / (Σ w_i + 1) <= α,      w_i = decay^(age of the pair in steps).

    For pairs that are exchangeable with the next proposal, and decay 1, P(the next one is admitted and harmful) <= α. A decay
    below 1 forgets the pairs of older policies (arXiv 2202.13415).
    """

    decay: float = 1.0
    _pairs: list[tuple[float, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ConfigError(f"the decay of calibration pairs must lie in (0, 1], got {self.decay}")

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, score: float, gain: float, step: int) -> None:
        """Keep the R_align of a probed proposal, and its success with the edit minus that without it, measured at `step`."""
        if not (math.isfinite(score) and math.isfinite(gain)):
            raise ValueError(f"a calibration pair needs finite numbers, got score {score} and gain {gain} at step {step}")
        self._pairs.append((score, gain, step))

    def threshold(self, alpha: float, step: int) -> float | None:
        """Edits whose R_align exceeds this may enter at `step`. None = too few pairs for this α: no threshold bounds the risk.

        α = 0.1 needs at least 9 pairs, α = 0.05 needs 19 (more where they are aged). Raises ConfigError for α outside (0, 1).
        """
        if not 0 < alpha < 1:
            raise ConfigError(f"alpha is a risk between 0 and 1, got {alpha}")
        weighted = [(score, gain, self.decay ** max(0, step - made)) for score, gain, made in self._pairs]
        budget = alpha * (math.fsum(w for _, _, w in weighted) + 1) - 1
        if budget < -_ROUNDING:
            return None
        harmful = [(score, w) for score, gain, w in weighted if gain < 0 and score > 0]
        for c in sorted({0.0, *(score for score, _ in harmful)}):
            if math.fsum(w for score, w in harmful if score > c) <= budget + _ROUNDING:
                return c
        raise AssertionError("nothing is admitted above the largest score")

    def state(self) -> dict[str, Any]:
        return {"pairs": [list(pair) for pair in self._pairs]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._pairs = [(float(score), float(gain), int(step)) for score, gain, step in state["pairs"]]
