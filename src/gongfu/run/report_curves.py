"""The picture of any run: success, and what explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPLITS = (ORANGE, GREEN, PURPLE)


def draw_curves(train: Sequence[Record], evaluations: Mapping[str, Sequence[Record]]) -> bytes:
    """A PNG of the run. `evaluations`: the records of each split, by step. Raises MissingExtra without matplotlib."""
    return png(lambda: figure_of(train, evaluations))


def figure_of(train: Sequence[Record], evaluations: Mapping[str, Sequence[Record]]) -> Figure:
    """Success above, below it what explains success, one message a panel."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    figure = new_figure((12, 11))
    grid = figure.add_gridspec(3, 3, height_ratios=(1.35, 1, 1))
    share = PercentFormatter(1.0, decimals=0)
    top = figure.add_subplot(grid[0, :])
    _success(top, train, evaluations)
    top.yaxis.set_major_formatter(share)
    panels = (
        ("Reward", "mean score of an episode", (("rollout/score", "", BLUE),), None),
        (
            "Valid actions",
            "share of turns",
            (("rollout/valid_format", "well-formed", BLUE), ("rollout/admissible", "admissible", ORANGE)),
            share,
        ),
        ("Groups that teach nothing", "share of groups, no variance", (("zero variance", "", GREY),), share),
        (
            "Tokens",
            "tokens a step",
            (("rollout/tokens_sampled", "sampled", BLUE), ("train/tokens", "trained", ORANGE)),
            EngFormatter(places=0, sep=""),
        ),
        ("Gradient norm", "norm before clipping", (("actor/grad_norm", "", BLUE),), None),
        ("Distance from the start", "KL to the reference", (("actor/kl_k3", "", BLUE),), None),
    )
    for k, (title, label, curves, form) in enumerate(panels):
        axes = figure.add_subplot(grid[1 + k // 3, k % 3])
        shown = [curve(axes, train, key, name, colour) for key, name, colour in curves]
        if not any(shown):
            empty(axes)
        elif len(curves) > 1:
            axes.legend(loc="best", fontsize=10)
        axes.set_title(title)
        axes.set_ylabel(label)
        if form is not None:
            axes.yaxis.set_major_formatter(form)
        if form is share:
            axes.set_ylim(-0.03, 1.03)
        elif any(shown):
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))  # a change is seen against the whole
    for axes in figure.axes:
        over_steps(axes)
    explain_curves(figure, train)
    return figure


def _success(axes: Axes, train: Sequence[Record], evaluations: Mapping[str, Sequence[Record]]) -> None:
    curve(axes, train, "rollout/success", "training tasks", BLUE)
    for k, (split, records) in enumerate(evaluations.items()):
        held_out(axes, records, f"held out: {split}", _SPLITS[k % len(_SPLITS)])
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("episodes solved")
    axes.set_title("Success" + (" (band: 95 % interval)" if evaluations else ""))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left")
