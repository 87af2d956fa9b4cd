"""Where metrics go: always into the run folder, and from there to sinks, none of which can stop the training."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gongfu.core.errors import MissingExtra
from gongfu.run.folder import RunFolder

logger = logging.getLogger("gongfu.run")

_SHOWN = (
    ("rollout/success", "success", ".2f"),
    ("rollout/score", "score", ".2f"),
    ("rollout/admissible", "valid", ".2f"),
    ("actor/kl_k3", "kl", ".4f"),
    ("actor/grad_norm", "grad", ".2f"),
)
_SHOWN_OF_A_BANK = (
    ("proposals/count", "proposals", ".0f"),
    ("proposals/accepted", "accepted", ".0f"),
    ("bank/skills", "skills", ".0f"),
    ("rollout/skills_shown", "shown", ".0%"),
)


UNTRAINED_STEPS = 3
"""Steps in a row without a trained token after which the person who watches is warned."""


class Sink(Protocol):
    """Somewhere to show metrics. Any exception from it switches it off."""

    name: str

    def log(self, step: int, phase: str, metrics: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class Tracker:
    """Writes each record to the run's metrics.jsonl and hands it to the sinks.

    The file is the run's truth: if it cannot be written (RunFolderError), training has to stop. A sink that fails is
    reported once and switched off. With `total` steps, progress is shown on stderr. Steps without anything to train on are
    warned of.

    >>> with Tracker(folder, total=40) as tracker:      # doctest: +SKIP
    ...     tracker.log(1, {"phase": "train", "rollout/success": 0.25})
    """

    def __init__(
        self, folder: RunFolder, *, total: int | None = None, tensorboard: bool = False, sinks: Sequence[Sink] = ()
    ) -> None:
        self._folder = folder
        self._console = Console(stderr=True)
        self._untrained = 0
        self._sinks = list(sinks)
        if tensorboard:
            self._sinks.append(TensorboardSink(folder.path / "tensorboard"))
        if total is not None:
            self._sinks.append(ConsoleSink(total, console=self._console))

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the sinks that still work."""
        return tuple(sink.name for sink in self._sinks)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One record: numbers by name, and its "phase" ("train" if it has none).

        A record of the phase "eval" also has text (split, checkpoint) and shares by kind.
        """
        if "step" in metrics:
            raise ValueError('"step" is set by the tracker and cannot be a metric')
        phase = str(metrics.get("phase", "train"))
        metrics = {name: value for name, value in metrics.items() if name != "phase"}
        self._folder.append_metrics({"step": step, "phase": phase, **metrics})
        for sink in list(self._sinks):
            try:
                sink.log(step, phase, metrics)
            except Exception as e:
                logger.warning("tracking: %s failed at step %d (%r) and is switched off; training goes on", sink.name, step, e)
                self._sinks.remove(sink)
                self._close(sink, report=False)
        if phase == "train":
            self._mind(step, metrics)

    def _mind(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Warn once when several steps in a row had nothing to train on, which no number of the step's line says."""
        nothing = 0 in (metrics.get("train/rows"), metrics.get("train/tokens"))
        self._untrained = self._untrained + 1 if nothing else 0
        if self._untrained == UNTRAINED_STEPS:
            self.say(_untrained(step, metrics))

    def say(self, text: str) -> None:
        """A line for the person who watches (stderr, above the progress)."""
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Close the sinks (the folder stays open)."""
        while self._sinks:
            self._close(self._sinks.pop(), report=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _close(self, sink: Sink, *, report: bool) -> None:
        try:
            sink.close()
        except Exception as e:
            if report:
                logger.warning("tracking: %s could not be closed (%r); metrics.jsonl is complete", sink.name, e)


class ConsoleSink:
    """A live progress line on stderr; one plain line a step where stderr is no terminal."""

    name = "console"

    def __init__(self, total_steps: int, *, console: Console) -> None:
        self._console = console
        self._total = total_steps
        whole = Column(no_wrap=True)
        self._progress = Progress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(table_column=whole),
            BarColumn(bar_width=24, table_column=whole),
            # The one that gives way on a narrow terminal, by going on in a second line.
            TextColumn("{task.fields[numbers]}", table_column=Column()),
            TimeElapsedColumn(table_column=whole),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=whole),
            console=self._console,
        )
        self._task = self._progress.add_task("train", total=total_steps, numbers="")
        if self._console.is_terminal:
            self._progress.start()

    def log(self, step: int, phase: str, metrics: Mapping[str, Any]) -> None:
        if phase != "train":
            self._print(f"step {step}  {_evaluation(metrics)}")
            return
        shown = _SHOWN + (_SHOWN_OF_A_BANK if "bank/skills" in metrics else ())
        numbers = "  ".join(f"{label} {metrics[key]:{form}}" for key, label, form in shown if key in metrics)
        self._progress.update(self._task, completed=step, numbers=numbers)
        if not self._console.is_terminal:
            self._print(f"step {step}/{self._total}  {numbers}")

    def close(self) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def _print(self, line: str) -> None:
        # Text, not markup: intervals are written in brackets
        self._console.print(Text(line), soft_wrap=True)


class TensorboardSink:
    """Event files for TensorBoard: every number under `<phase>/<name>`.

    Raises MissingExtra when tensorboardX is not installed.
    """

    name = "tensorboard"

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import RecordWriter
        except ImportError:
            raise MissingExtra("tracking with TensorBoard", "tensorboard") from None
        Path(folder).mkdir(parents=True, exist_ok=True)
        # tensorboardX's SummaryWriter writes from a thread; when that dies (full disk) its queue fills up and the caller
        # waits for ever. Records written from here fail here, where the tracker can switch the sink off.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter(str(Path(folder) / name))
        self._event: Any = event_pb2.Event  # type: ignore[attr-defined]
        self._summary: Any = summary_pb2.Summary  # type: ignore[attr-defined]
        self._write(file_version="brain.Event:2")

    def log(self, step: int, phase: str, metrics: Mapping[str, Any]) -> None:
        split = metrics.get("split")
        prefix = phase if split is None else f"{phase}/{split}"
        for name, value in _numbers(metrics, prefix):
            self._write(step=step, summary=self._summary(value=[self._summary.Value(tag=name, simple_value=value)]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, **fields: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def _untrained(step: int, metrics: Mapping[str, Any]) -> str:
    shares = ("rollout/valid_format", "rollout/admissible")
    now = ", ".join(f"{name} {metrics[name]:.2f}" for name in shares if name in metrics)
    return (
        f"warning: nothing could be trained in the last {UNTRAINED_STEPS} steps (up to step {step}). Usual causes: the answers "
        f'are not valid{f" (now {now})" if now else ""}: set rollout.mode = "choose", or take another model or a cold start; '
        "or all episodes of each group end alike: raise rollout.temperature or method.group_size, or take easier tasks"
    )


def _evaluation(metrics: Mapping[str, Any]) -> str:
    parts = [f"eval {metrics.get('split', '')}"]
    if "success" in metrics:
        parts.append(f"success {metrics['success']:.3f}")
    if "low" in metrics and "high" in metrics:
        parts.append(f"[{metrics['low']:.3f}, {metrics['high']:.3f}]")
    if "n" in metrics:
        parts.append(f"n={metrics['n']}")
    if "success_without_skills" in metrics:
        parts.append(f"without skills {metrics['success_without_skills']:.3f}")
    return " ".join(parts)


def _numbers(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}/{name}")
        elif isinstance(value, int | float) and not math.isnan(value):
            yield f"{prefix}/{name}", float(value)
