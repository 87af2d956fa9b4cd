"""The picture of a run with a skill bank: what the skills do, how the bank grew, what became of the proposals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gongfu.run.report_parts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Record,
    curve,
    empty,
    explain_curves,
    held_out,
    new_figure,
    over_steps,
    png,
    spans,
    total,
)
from gongfu.run.report_skills import OPERATIONS, funnel, label_of, measured, r_align
from gongfu.run.report_story import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

_COLOURS = {"add": GREEN, "update": BLUE, "keep": ORANGE, "malformed": GREY}
_SPLITS = (ORANGE, PURPLE)


def draw_skills(story: Story) -> bytes:
    """A PNG. Raises MissingExtra without matplotlib."""
    return png(lambda: figure_of(story))


def figure_of(story: Story) -> Figure:
    figure = new_figure((13, 12))
    grid = figure.add_gridspec(3, 2)
    with_and_without, growth, edits, operations, fates, alignment = (figure.add_subplot(grid[k // 2, k % 2]) for k in range(6))
    _with_and_without(with_and_without, story.evaluations)
    _growth(growth, story.train)
    _edits(edits, story.train)
    _operations(operations, story.train, story.floor)
    for axes in (with_and_without, growth, edits, operations):
        over_steps(axes)
    _fates(fates, story.train)
    _alignment(alignment, story)
    explain_curves(figure, story.train)
    return figure


def _with_and_without(axes: Axes, evaluations: Mapping[str, Sequence[Record]]) -> None:
    for k, (split, records) in enumerate(evaluations.items()):
        colour = _SPLITS[k % len(_SPLITS)]
        held_out(axes, records, f"{split}, with skills", colour)
        bare = [r for r in records if "success_without_skills" in r]
        values = [r["success_without_skills"] for r in bare]
        axes.plot([r["step"] for r in bare], values, "s--", color=GREY, lw=2, ms=5, label=f"{split}, without")
    axes.set_title("Success with and without skills (band: 95 %)")
    axes.set_ylabel("held-out episodes solved")
    _as_share(axes)
    _legend(axes, bool(evaluations))


def _growth(axes: Axes, train: Sequence[Record]) -> None:
    told = [r for r in train if "bank/skills" in r]
    for key, label, colour in (("bank/skills", "in use", BLUE), ("bank/active", "of them active", GREEN)):
        axes.plot([r["step"] for r in told], [r[key] for r in told], color=colour, lw=2, drawstyle="steps-post", label=label)
    axes.set_title("Skills in the bank")
    axes.set_ylabel("skills")
    _counts(axes)
    _legend(axes, bool(told))


def _edits(axes: Axes, train: Sequence[Record]) -> None:
    parts = spans([r for r in train if "bank/skills" in r])
    middles = [(part[0]["step"] + part[-1]["step"]) / 2 for part in parts]
    width = 0.8 * max((len(part) for part in parts), default=1)
    below = np.zeros(len(parts))
    for name, colour in (("added", GREEN), ("updated", BLUE), ("retired", ORANGE)):
        counts = np.array([total(part, f"bank/{name}") for part in parts])
        axes.bar(middles, counts, width, below, color=colour, label=name)
        below = below + counts
    axes.set_title("Edits of the bank")
    axes.set_ylabel("edits in each tenth of the run" if len(parts) == 10 else "edits")
    _counts(axes)
    _legend(axes, bool(parts))


def _operations(axes: Axes, train: Sequence[Record], floor: float | None) -> None:
    shown = [curve(axes, train, f"proposals/share_{name}", label_of(name), _COLOURS[name]) for name in OPERATIONS]
    if floor is not None:
        axes.axhline(floor, color="black", lw=1, ls=":", label=f"support floor {floor:g}")
    axes.set_title("What is proposed")
    axes.set_ylabel("share of proposals")
    _as_share(axes)
    _legend(axes, any(shown))


def _fates(axes: Axes, train: Sequence[Record]) -> None:
    found = funnel(train)
    names, counts = list(found)[::-1], list(found.values())[::-1]
    bars = axes.barh(names, counts, color=[GREEN if name == "accepted" else GREY for name in names])
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_title(f"What became of {total(train, 'proposals/count'):.0f} proposals")
    axes.set_xlabel("proposals")
    axes.set_xlim(right=1.1 * max(1.0, *counts))
    axes.grid(visible=False, axis="y")


def _alignment(axes: Axes, story: Story) -> None:
    edits = measured(story.proposals)
    values = np.array([r_align(p) for p in edits])
    accepted = np.array([p.decision == "accepted" for p in edits], dtype=bool)
    axes.set_title(f"R_align of {len(edits)} measured edits")
    axes.set_xlabel("R_align, nats a token (the ends hold what lies beyond)")
    axes.set_ylabel("edits")
    if not len(edits):
        empty(axes)
        return
    # A few edits are far out; the reward does not see them beyond ±η, and neither need the eye.
    bound = max(2 * story.eta, math.ceil(100 * float(np.quantile(np.abs(values), 0.9))) / 100)
    clipped = np.clip(values, -bound, bound)
    bins = np.linspace(-bound, bound, 33).tolist()
    axes.hist([clipped[accepted], clipped[~accepted]], bins, stacked=True, color=[GREEN, GREY], label=["accepted", "refused"])
    for at in (-story.eta, story.eta):
        axes.axvline(at, color="black", lw=1, ls=":", label="±η: clipped there" if at > 0 else None)
    axes.axvline(0, color="black", lw=1)
    axes.xaxis.set_major_locator(_ticks())
    _counts(axes)
    _legend(axes, True)


def _counts(axes: Axes) -> None:
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.yaxis.set_major_locator(_ticks(whole=True))


def _ticks(*, whole: bool = False) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=whole, nbins=6)


def _as_share(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(-0.03, 1.03)


def _legend(axes: Axes, shown: bool) -> None:
    if shown:
        axes.legend(loc="best", fontsize=10)
    else:
        empty(axes)
