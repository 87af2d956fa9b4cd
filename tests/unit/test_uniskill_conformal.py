"""Thresholds of bounded risk, counted by hand."""

from __future__ import annotations

import json
import random

import pytest

from gongfu.core.errors import ConfigError
from gongfu.methods.uniskill.conformal import Calibration


def calibrated(*pairs: tuple[float, float], decay: float = 1.0, step: int = 0) -> Calibration:
    calibration = Calibration(decay)
    for score, gain in pairs:
        calibration.add(score, gain, step)
    return calibration


def test_too_few_pairs_bound_nothing():
    """1 / (n + 1) <= α is the least: 9 pairs for α = .1, even if none of them did harm."""
    assert Calibration().threshold(0.1, step=0) is None
    assert calibrated(*[(0.1, 0.2)] * 8).threshold(0.1, step=0) is None
    assert calibrated(*[(0.1, 0.2)] * 9).threshold(0.1, step=0) == 0.0


def test_age_takes_pairs_away():
    calibration = calibrated(*[(0.1, 0.2)] * 9, decay=0.9, step=5)
    assert calibration.threshold(0.1, step=5) == 0.0
    assert calibration.threshold(0.1, step=6) is None


def test_a_loss_of_age_counts_less():
    # one harmful pair of weight 1/4 and 19 fresh harmless ones: α (19.25 + 1) - 1 = .0125 < .25 at α = .05, 1.025 at α = .1
    calibration = Calibration(decay=0.5)
    calibration.add(0.08, -0.1, step=0)
    for _ in range(19):
        calibration.add(0.05, 0.1, step=2)
    assert calibration.threshold(0.05, step=2) == 0.08
    assert calibration.threshold(0.1, step=2) == 0.0


def test_a_harmless_or_negative_pair_moves_no_threshold():
    harmful = [(0.08, -0.1), (0.05, -0.1)]
    assert calibrated(*harmful, *[(0.5, 0.0)] * 7).threshold(0.1, step=0) == 0.08
    assert calibrated((-0.2, -0.5), *[(0.5, 0.0)] * 8).threshold(0.1, step=0) == 0.0


def test_the_risk_is_bounded_where_it_can_be_counted():
    """Scores say little about gains: of 2000 fresh draws, admitted and harmful is at most α plus 4 standard errors."""
    rng = random.Random(7)

    def draw() -> tuple[float, float]:
        score = rng.gauss(0, 1)
        return score, 0.5 * score + rng.gauss(0, 1)

    bad = 0
    for _ in range(2000):
        threshold = calibrated(*[draw() for _ in range(30)]).threshold(0.1, step=0)
        assert threshold is not None
        score, gain = draw()
        bad += score > threshold and gain < 0
    assert bad / 2000 < 0.1 + 4 * (0.1 * 0.9 / 2000) ** 0.5
    assert bad / 2000 > 0.05  # and the bound is not won by admitting nothing


def test_the_state_survives_json():
    calibration = calibrated((0.08, -0.1), *[(0.05, 0.1)] * 9, decay=0.9, step=3)
    restored = Calibration(decay=0.9)
    restored.restore(json.loads(json.dumps(calibration.state())))
    assert len(restored) == 10
    assert restored.state() == calibration.state()
    assert restored.threshold(0.3, step=4) == calibration.threshold(0.3, step=4) is not None


def test_what_is_refused():
    with pytest.raises(ValueError, match="finite"):
        Calibration().add(float("nan"), 0.1, step=0)
    with pytest.raises(ConfigError, match="alpha"):
        Calibration().threshold(1.0, step=0)
    with pytest.raises(ConfigError, match="decay"):
        Calibration(decay=0.0)
