"""The picture of a run whose failures steer it: which tasks were drawn, why episodes failed, how well the agent foresees."""

from __future__ import annotations

from collections.abc import Sequence
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
    new_figure,
    over_steps,
    png,
    window,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DRAWN, STEERED = "tasks/", "tasks/from_failures"
WRITTEN, MEASURED = "failures/mode/", "failures/measured/"
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, "#8c6d31", "#17a2b8", "#d6616b", "#9edae5", "#bdb76b", "#5254a3", GREY)


def has_failures(train: Sequence[Record]) -> bool:
    return any(key.startswith((DRAWN, WRITTEN, "prediction/")) for r in train for key in r)


def draw_failures(train: Sequence[Record]) -> bytes:
    """A PNG. Raises MissingExtra without matplotlib."""
    return png(lambda: figure_of(train))


def figure_of(train: Sequence[Record]) -> Figure:
    figure = new_figure((13, 12))
    grid = figure.add_gridspec(3, 2)
    drawn, steered, written, measured, foreseen, agreement = (figure.add_subplot(grid[k // 2, k % 2]) for k in range(6))
    _shares(drawn, train, DRAWN, "Tasks drawn, by kind", without=STEERED)
    _lines(steered, train, "Tasks that failures chose", "share of the tasks drawn", ((STEERED, "", ORANGE),))
    _shares(written, train, WRITTEN, "Why episodes failed, as the agent says")
    _shares(measured, train, MEASURED, "Why episodes failed, as measured")
    likeness = (("prediction/similarity_success", "successes", BLUE), ("prediction/similarity_failure", "failures", ORANGE))
    _lines(foreseen, train, "Foreseen observations", "likeness to what came", likeness)
    told = (("failures/agreement", "named as measured", BLUE), ("failures/unreadable", "unreadable", GREY))
    _lines(agreement, train, "What the agent says of its failures", "share of the failures", told)
    for axes in figure.axes:
        over_steps(axes)
        axes.set_ylim(0, 1)
    explain_curves(figure, train)
    return figure


def _shares(axes: Axes, train: Sequence[Record], prefix: str, title: str, *, without: str = "") -> None:
    """Stacked shares, each a running mean over a tenth of the run."""
    told = [r for r in train if any(k.startswith(prefix) and k != without for k in r)]
    names = sorted({k for r in told for k in r if k.startswith(prefix) and k != without})
    axes.set_title(title)
    axes.set_ylabel("share")
    if not names:
        empty(axes)
        return
    width = window(train)
    smooth = {
        name: [
            sum(r.get(name, 0.0) for r in part) / len(part)
            for k in range(len(told))
            if (part := told[max(0, k + 1 - width) : k + 1])
        ]
        for name in names
    }
    order = sorted(names, key=lambda name: (-sum(smooth[name]), name))
    labels = [name.removeprefix(prefix).replace("_", " ") for name in order]
    axes.stackplot([r["step"] for r in told], [smooth[n] for n in order], labels=labels, colors=_COLOURS, alpha=0.75, lw=0)
    axes.legend(loc="upper left", fontsize=8, ncols=2)


def _lines(axes: Axes, train: Sequence[Record], title: str, label: str, curves: Sequence[tuple[str, str, str]]) -> None:
    shown = [curve(axes, train, key, name, colour) for key, name, colour in curves]
    axes.set_title(title)
    axes.set_ylabel(label)
    if not any(shown):
        empty(axes)
    elif len(curves) > 1:
        axes.legend(loc="best", fontsize=10)
