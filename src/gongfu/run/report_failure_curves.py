"""The picture of a run whose failures steer it: which tasks were drawn, why episodes failed, how well the agent foresees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
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
    _shares(drawn, train, DRAWN, "Tasks drawn, by kind", _colours(train, DRAWN))
    _lines(steered, train, "Tasks that failures chose", "share of the tasks drawn", ((STEERED, "", ORANGE),))
    modes = _colours(train, WRITTEN, MEASURED)
    _shares(written, train, WRITTEN, "Why episodes failed, as the agent says", modes)
    _shares(measured, train, MEASURED, "Why episodes failed, as measured", modes)
    likeness = (("prediction/similarity_success", "successes", BLUE), ("prediction/similarity_failure", "failures", ORANGE))
    _lines(foreseen, train, "Foreseen observations", "likeness to what came", likeness)
    told = (
        ("failures/agreement", "named as measured", BLUE),
        ("failures/critical_step_agreement", "step of no return as measured", GREEN),
        ("failures/unreadable", "unreadable", GREY),
    )
    _lines(agreement, train, "What the agent says of its failures", "share of the failures", told)
    for axes in figure.axes:
        over_steps(axes)
        axes.set_ylim(0, 1)
    explain_curves(figure, train)
    return figure


def _shares(axes: Axes, train: Sequence[Record], prefix: str, title: str, colours: Mapping[str, str]) -> None:
    """Stacked shares of what `colours` names, each a running mean over a tenth of the run; what never occurs is left out."""
    told = [r for r in train if any(f"{prefix}{name}" in r for name in colours)]
    width = window(train)
    parts = [told[max(0, k + 1 - width) : k + 1] for k in range(len(told))]
    smooth = {name: [sum(r.get(f"{prefix}{name}", 0.0) for r in part) / len(part) for part in parts] for name in colours}
    shown = [name for name, values in smooth.items() if any(values)]
    axes.set_title(title)
    axes.set_ylabel("share")
    if not shown:
        empty(axes)
        return
    axes.stackplot(
        [r["step"] for r in told],
        [smooth[name] for name in shown],
        labels=[name.replace("_", " ") for name in shown],
        colors=[colours[name] for name in shown],
        alpha=0.75,
        lw=0,
    )
    axes.legend(loc="upper left", fontsize=8, ncols=2, frameon=True, framealpha=0.85)


def _colours(train: Sequence[Record], *prefixes: str) -> dict[str, str]:
    """A colour for every name that follows one of the prefixes, the same in all panels; in alphabetical order."""
    keys = {key for r in train for key in r if key != STEERED}
    names = sorted({key.removeprefix(prefix) for prefix in prefixes for key in keys if key.startswith(prefix)})
    return dict(zip(names, cycle(_COLOURS), strict=False))


def _lines(axes: Axes, train: Sequence[Record], title: str, label: str, curves: Sequence[tuple[str, str, str]]) -> None:
    shown = [curve(axes, train, key, name, colour) for key, name, colour in curves]
    axes.set_title(title)
    axes.set_ylabel(label)
    if not any(shown):
        empty(axes)
    elif len(curves) > 1:
        axes.legend(loc="best", fontsize=10)
