"""What the pages and pictures of a report are made of: spans of a run, tables, curves."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gongfu.core.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
"""A line of metrics.jsonl."""

# Okabe & Ito 2008: told apart by colour-blind readers too
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
    "figure.facecolor": "white",
}


def by_split(evaluations: Sequence[Record]) -> dict[str, list[Record]]:
    """Evaluations of each split, in the order of their steps."""
    splits: dict[str, list[Record]] = {}
    for record in sorted(evaluations, key=lambda r: r["step"]):
        splits.setdefault(str(record.get("split", "held out")), []).append(record)
    return splits


def window(train: Sequence[Record]) -> int:
    """A tenth of the run, in steps."""
    return max(1, len(train) // 10)


def spans(train: Sequence[Record], most: int = 10) -> list[Sequence[Record]]:
    """The run in at most `most` consecutive pieces of nearly equal length."""
    count = min(most, len(train))
    return [train[i * len(train) // count : (i + 1) * len(train) // count] for i in range(count)]


def total(records: Sequence[Record], key: str) -> float:
    """Sum of a metric over the records that have it."""
    return sum(r.get(key, 0.0) for r in records)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text: Collection[str] = ()) -> str:
    """A table of numbers, but for its first column and those named in `text`."""
    align = ["---" if name == header[0] or name in text else "---:" for name in header]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, align, *rows))


def share(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None or math.isnan(after - before) else f"{after - before:+.3f}"


def with_interval(record: Record) -> str:
    text = share(record.get("success"))
    if "low" in record and "high" in record:
        text += f" [{record['low']:.3f}, {record['high']:.3f}]"
    return f"{text}, n = {record['n']}" if "n" in record else text


def png(draw: Callable[[], Figure]) -> bytes:
    """The picture that `draw` makes. Raises MissingExtra without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise MissingExtra("the curves of a report", "train") from None
    with mpl.rc_context(_STYLE):
        figure = draw()
        FigureCanvasAgg(figure)
        out = io.BytesIO()
        # Without the version of matplotlib in the file, equal curves are equal files.
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def new_figure(size: tuple[float, float]) -> Figure:
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and would choose a window system

    return Figure(figsize=size, layout="constrained", dpi=110)


def curve(axes: Axes, train: Sequence[Record], key: str, name: str, colour: str) -> bool:
    """The values faintly, and their running mean over a tenth of the run. False when nothing was recorded."""
    found = [(r["step"], r[key]) for r in train if key in r and math.isfinite(r[key])]
    if not found:
        return False
    steps, values = [s for s, _ in found], [v for _, v in found]
    width = window(train)
    marker = "o" if len(values) == 1 else ""
    if width > 1:
        axes.plot(steps, values, color=colour, alpha=0.25, lw=1)
        values = [sum(part) / len(part) for k in range(len(values)) if (part := values[max(0, k + 1 - width) : k + 1])]
    axes.plot(steps, values, color=colour, lw=2, marker=marker, label=name or None)
    return True


def held_out(axes: Axes, records: Sequence[Record], label: str, colour: str) -> None:
    """Success of the evaluations of one split, with its intervals."""
    found = [r for r in records if "success" in r]
    axes.plot([r["step"] for r in found], [r["success"] for r in found], "o-", color=colour, lw=2, ms=6, label=label)
    banded = [r for r in found if "low" in r and "high" in r]
    at = [r["step"] for r in banded]
    low, high = [r["low"] for r in banded], [r["high"] for r in banded]
    if len(banded) == 1:
        axes.vlines(at, low, high, color=colour, alpha=0.5, lw=3)
    else:
        axes.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)


def over_steps(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=GREY)


def explain_curves(figure: Figure, train: Sequence[Record]) -> None:
    """What thin and thick lines are, where there are both."""
    if (width := window(train)) > 1:
        note = f"Thin: every step. Thick: mean of the last {width} steps."
        figure.supxlabel(note, x=0.995, ha="right", fontsize=10, color=GREY)
