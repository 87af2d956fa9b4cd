"""What different gates would have let in, told from texts whose gain was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from gongfu.methods.uniskill.conformal import Calibration
from gongfu.methods.uniskill.gate import pooled_variance, standard_error
from gongfu.methods.uniskill.records import Alignment

ALPHA = 0.1
"""Risk that the calibrated gate allows."""


def gates(rows: Sequence[dict[str, Any]], z: float = 1.0) -> dict[str, dict[str, Any]]:
    """Gate -> texts that pass it, the share of these that harm, and their mean gain.

    `one pair`: the paper's rule on one success and one failure. `all pairs`: the same on the means of all references.
    `confident`: also R_align - z SE > 0. `calibrated`: also R_align above the threshold that the texts of all *other* groups
    give (conformal risk control, α = 0.1). The critic and duplicates are left out.
    """
    found = [(row, Alignment(*map(tuple, row["sides"][0]))) for row in rows]
    pooled = pooled_variance(alignment for _, alignment in found)
    thresholds = {group: _threshold(rows, group) for group in {_group(row) for row in rows}}

    def paper(row: dict[str, Any], a: Alignment) -> bool:
        return a.delta_plus > 0 and a.r_align > 0

    def one_pair(row: dict[str, Any], a: Alignment) -> bool:
        return paper(row, Alignment(a.plus[:1], a.minus[:1]))

    def confident(row: dict[str, Any], a: Alignment) -> bool:
        error = standard_error(a, pooled)
        return paper(row, a) and error is not None and a.r_align - z * error > 0

    def calibrated(row: dict[str, Any], a: Alignment) -> bool:
        bound = thresholds[_group(row)]
        return confident(row, a) and bound is not None and a.r_align > bound

    rules: dict[str, Callable[[dict[str, Any], Alignment], bool]]
    rules = {"one pair": one_pair, "all pairs": paper, "confident": confident, "calibrated": calibrated}
    result = {}
    for name, passes in rules.items():
        gains = [_gain(row) for row, alignment in found if passes(row, alignment)]
        harmful = sum(gain < 0 for gain in gains)
        result[name] = {"n": len(gains), "harmful": harmful, "gain": round(fmean(gains), 4) if gains else None}
    return result


def _threshold(rows: Sequence[dict[str, Any]], without: tuple[int, str]) -> float | None:
    known = Calibration()
    for row in rows:
        if _group(row) != without:
            known.add(row["r_align"], _gain(row), 0)
    return known.threshold(ALPHA, 0)


def _group(row: dict[str, Any]) -> tuple[int, str]:
    return row["round"], row["task"]


def _gain(row: dict[str, Any]) -> float:
    return row["with"] - row["without"]
