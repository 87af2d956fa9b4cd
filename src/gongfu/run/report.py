"""One page about a run, made from its files alone: what was learned, how sure that is, and how training went.

report/report.md      tables: before and after by kind of task, how training went, where the files lie
report/curves.png     success (training and held out), and what explains it
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gongfu.core.errors import MissingExtra
from gongfu.core.records import Trajectory
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.folder import RunFolder, disk_errors, write_atomic
from gongfu.run.stats import paired_bootstrap, sign_test
from gongfu.run.trajectories import TrajectoryStore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

_TRAINING = (
    ("rollout/success", "success", ".3f"),
    ("rollout/score", "score", ".3f"),
    ("rollout/turns", "turns an episode", ".1f"),
    ("rollout/valid_format", "well-formed actions", ".3f"),
    ("rollout/admissible", "admissible actions", ".3f"),
    ("rollout/tokens_sampled", "tokens sampled a step", ",.0f"),
    ("train/tokens", "tokens trained a step", ",.0f"),
    ("zero variance", "groups without variance", ".3f"),
    ("actor/loss", "loss", ".4f"),
    ("actor/grad_norm", "gradient norm", ".3f"),
    ("actor/kl_k3", "KL", ".4f"),
    ("actor/clip_low", "clipped low", ".4f"),
    ("actor/clip_high", "clipped high", ".4f"),
    ("time/rollout_s", "rollouts (s a step)", ".1f"),
    ("time/train_s", "training (s a step)", ".1f"),
    ("time/step_s", "whole step (s)", ".1f"),
)

# Okabe & Ito 2008: told apart by colour-blind readers too
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#555555"
_SPLITS = (_ORANGE, _GREEN, _PURPLE)
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


def write_report(run: RunFolder | str | Path) -> Path:
    """Write `report/report.md` and its curves for a finished or a running run; returns the path of the page.

    Raises RunFolderError when there is no run or a file of it is damaged, MissingExtra without matplotlib.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder.open(run, lock=False)
    records = folder.read_metrics()
    train = [_with_shares(r) for r in records if r.get("phase") == "train"]
    evaluations = [r for r in records if r.get("phase") == "eval"]
    with disk_errors(folder.report):
        folder.report.mkdir(exist_ok=True)
    sections = [_head(folder, train)]
    if train or evaluations:
        write_atomic(folder.report / "curves.png", _draw_curves(train, _by_split(evaluations)))
        sections.append("![Curves of the run](curves.png)")
    else:
        sections.append("No step has finished yet.")
    sections += [_before_after(folder, split, found) for split, found in _by_split(evaluations).items()]
    if train:
        sections.append(_training(train))
    sections.append(_files(folder))
    page = folder.report / "report.md"
    write_atomic(page, "\n\n".join(sections) + "\n")
    return page


def _with_shares(record: Record) -> dict[str, Any]:
    """A training record with the share of its groups that have no variance (and so teach nothing)."""
    groups = record.get("train/groups")
    if not groups or "train/zero_variance_groups" not in record:
        return dict(record)
    return {**record, "zero variance": record["train/zero_variance_groups"] / groups}


def _by_split(evaluations: Sequence[Record]) -> dict[str, list[Record]]:
    """Evaluations of each split, in the order of their steps."""
    splits: dict[str, list[Record]] = {}
    for record in sorted(evaluations, key=lambda r: r["step"]):
        splits.setdefault(str(record.get("split", "held out")), []).append(record)
    return splits


def _head(folder: RunFolder, train: Sequence[Record]) -> str:
    lines = [f"# Run {folder.path.name}", ""]
    facts = {
        "created": folder.created,
        **{k: v for k, v in folder.info.items() if isinstance(v, str | int | float)},
        "steps finished": max((r["step"] for r in train), default=0),
        "episodes lost to the environment": f"{sum(r.get('rollout/lost', 0) for r in train):.0f}",
        "config.toml (sha256)": f"`{folder.config_sha256[:16]}`",
        "versions": ", ".join(f"{name} {version}" for name, version in folder.versions.items()),
    }
    return "\n".join([*lines, *(f"* {name}: {value}" for name, value in facts.items())])


def _before_after(folder: RunFolder, split: str, evaluations: Sequence[Record]) -> str:
    first, last = evaluations[0], evaluations[-1]
    if first is last:
        rows = [(kind, _share(share)) for kind, share in sorted(first.get("success_by_kind", {}).items())]
        rows.append(("**all**", f"**{_with_interval(first)}**"))
        return f"## Success on {split}\n\n" + _table(("kind of task", f"step {first['step']}"), rows)
    before, after = first.get("success_by_kind", {}), last.get("success_by_kind", {})
    rows: list[tuple[str, ...]] = [
        (kind, _share(before.get(kind)), _share(after.get(kind)), _change(before.get(kind), after.get(kind)))
        for kind in sorted({*before, *after})
    ]
    total = (_with_interval(first), _with_interval(last), _change(first.get("success"), last.get("success")))
    rows.append(("**all**", *(f"**{cell}**" for cell in total)))
    header = ("kind of task", f"before (step {first['step']})", f"after (step {last['step']})", "change")
    text = f"## Success on {split}, before and after\n\n" + _table(header, rows)
    text += "\n\nIn brackets: 95 % intervals of the share."
    paired = _paired(folder, split, first["step"], last["step"])
    return f"{text} {paired}" if paired else text


def _paired(folder: RunFolder, split: str, before: int, after: int) -> str:
    """The same tasks before and after, from the episodes themselves, where both evaluations are on disk."""
    store = TrajectoryStore(folder.trajectories)
    phase = f"eval-{split}"
    if not {(before, phase), (after, phase)} <= set(store.list()):
        return ""
    old, new = (_success_by_task(store.read(step, phase)) for step in (before, after))
    tasks = sorted(old.keys() & new.keys())
    if not tasks:
        return ""
    a, b = [old[t] for t in tasks], [new[t] for t in tasks]
    difference, sign = paired_bootstrap(a, b, seed=0), sign_test(a, b)
    return (
        f"Paired by task ({len(tasks)} tasks): {difference.mean:+.3f}, 95 % bootstrap interval "
        f"[{difference.low:+.3f}, {difference.high:+.3f}]; {sign.better} tasks better, {sign.worse} worse, "
        f"{sign.ties} equal, exact sign test p = {sign.p:.2g}."
    )


def _success_by_task(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    played: dict[str, list[bool]] = {}
    for t in trajectories:
        if t.stop not in ("error", "timeout"):  # the environment's failure, not the policy's
            played.setdefault(t.task.id, []).append(t.success)
    return {task: sum(wins) / len(wins) for task, wins in played.items()}


def _training(train: Sequence[Record]) -> str:
    window = _window(train)
    rows = []
    for key, label, form in _TRAINING:
        values = [r[key] for r in train if key in r and math.isfinite(r[key])]
        if values:
            start, end = values[:window], values[-window:]
            means = (sum(v) / len(v) for v in (start, end, values))
            rows.append((label, *(format(mean, form) for mean in means)))
    bad = [r["step"] for r in train if any(isinstance(v, float) and not math.isfinite(v) for v in r.values())]
    text = "## Training\n\n" + _table(("mean of", f"first {window} steps", f"last {window} steps", "all steps"), rows)
    if bad:
        text += f"\n\n**Values that are not finite** in {len(bad)} steps, first in step {bad[0]}."
    return text


def _files(folder: RunFolder) -> str:
    store = CheckpointStore(folder.checkpoints)
    steps, best = store.list(), store.best()
    rows = [
        ("`config.toml`", "the resolved configuration"),
        ("`run.json`", "versions, seeds, digests"),
        ("`metrics.jsonl`", "every record, one a line"),
        ("`trajectories/`", f"{len(TrajectoryStore(folder.trajectories).list())} files of episodes, one a step and phase"),
        ("`checkpoints/`", f"steps {', '.join(map(str, steps))}" if steps else "none yet"),
    ]
    if best is not None:
        rows.append(("`checkpoints/best.json`", f"step {best['step']}"))
    return f"## Files\n\nIn `{folder.path.name}/`:\n\n" + _table(("file", "holds"), rows)


def _window(train: Sequence[Record]) -> int:
    """A tenth of the run, in steps."""
    return max(1, len(train) // 10)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    align = ["---", *["---:"] * (len(header) - 1)] if header[0] != "file" else ["---"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, align, *rows))


def _share(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None or after is None or math.isnan(after - before) else f"{after - before:+.3f}"


def _with_interval(record: Record) -> str:
    text = _share(record.get("success"))
    if "low" in record and "high" in record:
        text += f" [{record['low']:.3f}, {record['high']:.3f}]"
    return f"{text}, n = {record['n']}" if "n" in record else text


def _draw_curves(train: Sequence[Record], evaluations: Mapping[str, Sequence[Record]]) -> bytes:
    """A PNG of the run. `evaluations`: the records of each split, by step. Raises MissingExtra without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise MissingExtra("the curves of a report", "train") from None
    with mpl.rc_context(_STYLE):
        figure = _figure(train, evaluations)
        FigureCanvasAgg(figure)
        out = io.BytesIO()
        # Without the version of matplotlib in the file, equal curves are equal files.
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _figure(train: Sequence[Record], evaluations: Mapping[str, Sequence[Record]]) -> Figure:
    """Success above, below it what explains success, one message a panel."""
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and would choose a window system
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    figure = Figure(figsize=(12, 11), layout="constrained", dpi=110)
    grid = figure.add_gridspec(3, 3, height_ratios=(1.35, 1, 1))
    share = PercentFormatter(1.0, decimals=0)
    top = figure.add_subplot(grid[0, :])
    _success(top, train, evaluations)
    top.yaxis.set_major_formatter(share)
    panels = (
        ("Reward", "mean score of an episode", (("rollout/score", "", _BLUE),), None),
        (
            "Valid actions",
            "share of turns",
            (("rollout/valid_format", "well-formed", _BLUE), ("rollout/admissible", "admissible", _ORANGE)),
            share,
        ),
        ("Groups that teach nothing", "share of groups, no variance", (("zero variance", "", _GREY),), share),
        (
            "Tokens",
            "tokens a step",
            (("rollout/tokens_sampled", "sampled", _BLUE), ("train/tokens", "trained", _ORANGE)),
            EngFormatter(places=0, sep=""),
        ),
        ("Gradient norm", "norm before clipping", (("actor/grad_norm", "", _BLUE),), None),
        ("Distance from the start", "KL to the reference", (("actor/kl_k3", "", _BLUE),), None),
    )
    for k, (title, label, curves, form) in enumerate(panels):
        axes = figure.add_subplot(grid[1 + k // 3, k % 3])
        shown = [_curve(axes, train, key, name, colour) for key, name, colour in curves]
        if not any(shown):
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=_GREY)
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
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if (window := _window(train)) > 1:
        note = f"Thin: every step. Thick: mean of the last {window} steps."
        figure.supxlabel(note, x=0.995, ha="right", fontsize=10, color=_GREY)
    return figure


def _success(axes: Axes, train: Sequence[Record], evaluations: Mapping[str, Sequence[Record]]) -> None:
    _curve(axes, train, "rollout/success", "training tasks", _BLUE)
    for k, (split, records) in enumerate(evaluations.items()):
        colour = _SPLITS[k % len(_SPLITS)]
        found = [r for r in records if "success" in r]
        steps = [r["step"] for r in found]
        axes.plot(steps, [r["success"] for r in found], "o-", color=colour, lw=2, ms=6, label=f"held out: {split}")
        banded = [r for r in found if "low" in r and "high" in r]
        at = [r["step"] for r in banded]
        low, high = [r["low"] for r in banded], [r["high"] for r in banded]
        if len(banded) == 1:
            axes.vlines(at, low, high, color=colour, alpha=0.5, lw=3)
        else:
            axes.fill_between(at, low, high, color=colour, alpha=0.15, lw=0)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("episodes solved")
    axes.set_title("Success" + (" (band: 95 % interval)" if evaluations else ""))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left")


def _curve(axes: Axes, train: Sequence[Record], key: str, name: str, colour: str) -> bool:
    """The values faintly, and their running mean over a tenth of the run. False when nothing was recorded."""
    found = [(r["step"], r[key]) for r in train if key in r and math.isfinite(r[key])]
    if not found:
        return False
    steps, values = [s for s, _ in found], [v for _, v in found]
    window = _window(train)
    marker = "o" if len(values) == 1 else ""
    if window > 1:
        axes.plot(steps, values, color=colour, alpha=0.25, lw=1)
        values = [sum(part) / len(part) for k in range(len(values)) if (part := values[max(0, k + 1 - window) : k + 1])]
    axes.plot(steps, values, color=colour, lw=2, marker=marker, label=name or None)
    return True
