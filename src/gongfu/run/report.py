"""One page about a run, made from its files alone: what was learned, how sure that is, and how training went.

report/report.md      tables: before and after by kind of task, how training went, where the files lie
report/curves.png     success (training and held out), and what explains it
report/skills.png     of a run with a skill bank: what the skills do, how the bank grew, what became of the proposals
report/failures.png   of a run that predicts or reads its failures: which tasks were drawn, why episodes failed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gongfu.core.records import Trajectory
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.folder import RunFolder, disk_errors, write_atomic
from gongfu.run.report_curves import draw_curves
from gongfu.run.report_failure_curves import draw_failures, has_failures
from gongfu.run.report_parts import Record, by_split, change, share, table, window, with_interval
from gongfu.run.report_skill_curves import draw_skills
from gongfu.run.report_skills import sections_of
from gongfu.run.report_story import read_story
from gongfu.run.report_words import summary_of
from gongfu.run.stats import paired_bootstrap, sign_test
from gongfu.run.trajectories import TrajectoryStore
from gongfu.skills.bank import FILE as BANK

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


def write_report(run: RunFolder | str | Path) -> Path:
    """Write `report/report.md` and its pictures for a finished or a running run; returns the path of the page.

    Raises RunFolderError when there is no run or a file of it is damaged, BankError when its skill bank cannot be read,
    MissingExtra without matplotlib.
    """
    folder = _opened(run)
    records = folder.read_metrics()
    story = read_story(folder, records)
    train = [_with_shares(r) for r in records if r.get("phase") == "train"]
    evaluations = [r for r in records if r.get("phase") == "eval"]
    with disk_errors(folder.report):
        folder.report.mkdir(exist_ok=True)
    sections = [_head(folder, train)]
    if train or evaluations:
        write_atomic(folder.report / "curves.png", draw_curves(train, by_split(evaluations)))
        sections.append("![Curves of the run](curves.png)")
    else:
        sections.append("No step has finished yet.")
    sections += [_before_after(folder, split, found) for split, found in by_split(evaluations).items()]
    if story is not None:
        write_atomic(folder.report / "skills.png", draw_skills(story))
        sections += sections_of(story)
    if has_failures(train):
        write_atomic(folder.report / "failures.png", draw_failures(train))
        sections.append("## Failures\n\n![Tasks drawn, failures and predictions](failures.png)")
    if train:
        sections.append(_training(train))
    sections.append(_files(folder))
    page = folder.report / "report.md"
    write_atomic(page, "\n\n".join(sections) + "\n")
    return page


def summarize(run: RunFolder | str | Path) -> list[str]:
    """What a person wants to know first of a run with a skill bank, a few plain lines; none for a run without one."""
    folder = _opened(run)
    story = read_story(folder, folder.read_metrics())
    return [] if story is None else summary_of(story)


def _opened(run: RunFolder | str | Path) -> RunFolder:
    return run if isinstance(run, RunFolder) else RunFolder.open(run, lock=False)


def _with_shares(record: Record) -> dict[str, Any]:
    """A training record with the share of its groups that have no variance (and so teach nothing)."""
    groups = record.get("train/groups")
    if not groups or "train/zero_variance_groups" not in record:
        return dict(record)
    return {**record, "zero variance": record["train/zero_variance_groups"] / groups}


def _head(folder: RunFolder, train: Sequence[Record]) -> str:
    lines = [f"# Run {folder.path.name}", ""]
    facts = {
        "created": folder.created,
        **{k: v for k, v in folder.info.items() if isinstance(v, str | int | float)},
        "steps finished": max((r["step"] for r in train), default=0),
        "training episodes lost": f"{sum(r.get('rollout/lost', 0) for r in train):.0f}",
        "config.toml (sha256)": f"`{folder.config_sha256[:16]}`",
        "versions": ", ".join(f"{name} {version}" for name, version in folder.versions.items()),
    }
    return "\n".join([*lines, *(f"* {name}: {value}" for name, value in facts.items())])


def _before_after(folder: RunFolder, split: str, evaluations: Sequence[Record]) -> str:
    first, last = evaluations[0], evaluations[-1]
    if first is last:
        rows = [(kind, share(value)) for kind, value in sorted(first.get("success_by_kind", {}).items())]
        rows.append(("**all**", f"**{with_interval(first)}**"))
        return f"## Success on {split}\n\n" + table(("kind of task", f"step {first['step']}"), rows)
    before, after = first.get("success_by_kind", {}), last.get("success_by_kind", {})
    rows: list[tuple[str, ...]] = [
        (kind, share(before.get(kind)), share(after.get(kind)), change(before.get(kind), after.get(kind)))
        for kind in sorted({*before, *after})
    ]
    total = (with_interval(first), with_interval(last), change(first.get("success"), last.get("success")))
    rows.append(("**all**", *(f"**{cell}**" for cell in total)))
    header = ("kind of task", f"before (step {first['step']})", f"after (step {last['step']})", "change")
    text = f"## Success on {split}, before and after\n\n" + table(header, rows)
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
    width = window(train)
    rows = []
    for key, label, form in _TRAINING:
        values = [r[key] for r in train if key in r and math.isfinite(r[key])]
        if values:
            start, end = values[:width], values[-width:]
            means = (sum(v) / len(v) for v in (start, end, values))
            rows.append((label, *(format(mean, form) for mean in means)))
    bad = [r["step"] for r in train if any(isinstance(v, float) and not math.isfinite(v) for v in r.values())]
    text = "## Training\n\n" + table(("mean of", f"first {width} steps", f"last {width} steps", "all steps"), rows)
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
    if (folder.path / BANK).is_file():
        rows.append((f"`{BANK}`", "the skill bank, for `gongfu bank`"))
    if best is not None:
        rows.append(("`checkpoints/best.json`", f"step {best['step']}"))
    return f"## Files\n\nIn `{folder.path.name}/`:\n\n" + table(("file", "holds"), rows, text=("holds",))
