import math
import re
import subprocess
import sys

import numpy as np
import pytest

from gongfu.core.errors import MissingExtra, RunFolderError
from gongfu.core.records import Stop, Task, Trajectory
from gongfu.run.folder import RunFolder
from gongfu.run.report import summarize, write_report
from gongfu.run.report_curves import figure_of
from gongfu.run.report_failure_curves import figure_of as failures_of
from gongfu.run.trajectories import TrajectoryStore

pytest.importorskip("matplotlib", reason="reports need the extra train")


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "alf-0", config_toml="seed = 3\n", info={"command": "grpo", "seed": 3}) as folder:
        yield folder


def train(folder, step, **metrics):
    folder.append_metrics({"step": step, "phase": "train", **{k.replace("__", "/"): v for k, v in metrics.items()}})


def evaluation(folder, step, success, low, high, kinds, split="valid_unseen"):
    record = {"split": split, "checkpoint": f"step {step}", "n": 4, "success": success, "low": low, "high": high}
    folder.append_metrics({"step": step, "phase": "eval", **record, "success_by_kind": kinds})


def trajectory(task, wins, rollout=0, stop: Stop = "terminated"):
    record = Task(task, "household", "pick", "goal", "valid_unseen")
    return Trajectory(f"{task}/{rollout}", record, task, (), (), "", "success" if wins else "failure", float(wins), stop)


def rows(page):
    """Cells of each table row by its first cell."""
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in page.read_text().splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in cells}


def curves(page):
    data = (page.parent / "curves.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    return data


def test_before_and_after_by_kind_of_task(folder):
    evaluation(folder, 0, 0.25, 0.046, 0.699, {"pick": 0.5, "look": 0.0})
    evaluation(folder, 2, 0.5, 0.15, 0.85, {"pick": 0.25, "look": 0.75})  # neither the first nor the last
    evaluation(folder, 4, 0.75, 0.301, 0.954, {"pick": 1.0, "look": 0.5, "heat": 0.5})
    page = write_report(folder)
    assert page == folder.path / "report" / "report.md"
    table = rows(page)
    assert table["kind of task"] == ["before (step 0)", "after (step 4)", "change"]
    assert table["pick"] == ["0.500", "1.000", "+0.500"]
    assert table["look"] == ["0.000", "0.500", "+0.500"]
    assert table["heat"] == ["–", "0.500", "–"]
    assert table["**all**"] == ["**0.250 [0.046, 0.699], n = 4**", "**0.750 [0.301, 0.954], n = 4**", "**+0.500**"]
    curves(page)


def test_each_split_has_its_table(folder):
    for split in ("valid_seen", "valid_unseen"):
        evaluation(folder, 0, 0.25, 0.046, 0.699, {}, split)
    text = write_report(folder).read_text()
    assert re.findall("## Success on (.*)", text) == ["valid_seen", "valid_unseen"]


def test_pairs_are_counted_from_the_episodes_on_disk(folder):
    """Tasks a: 0 -> 1, b: 0 -> 1/2 (of two rollouts), c: 1 -> 1; d was lost once, so it is in no pair."""
    evaluation(folder, 0, 0.33, 0.1, 0.7, {})
    evaluation(folder, 8, 0.75, 0.3, 0.95, {})
    store = TrajectoryStore(folder.trajectories)
    store.write(0, "eval-valid_unseen", [trajectory("a", 0), trajectory("b", 0), trajectory("c", 1), trajectory("d", 1)])
    after = [trajectory("a", 1), trajectory("b", 1), trajectory("b", 0, 1), trajectory("c", 1), trajectory("d", 0, 0, "error")]
    store.write(8, "eval-valid_unseen", after)
    text = write_report(folder).read_text()
    assert "Paired by task (3 tasks): +0.500," in text
    assert "2 tasks better, 0 worse, 1 equal, exact sign test p = 0.5." in text


def test_training_table_and_group_shares(folder):
    for step in range(1, 21):
        train(folder, step, rollout__success=step / 20, train__groups=8.0, train__zero_variance_groups=2.0, rollout__lost=1.0)
    page = write_report(folder)
    table = rows(page)
    assert table["mean of"] == ["first 2 steps", "last 2 steps", "all steps"]
    assert table["success"] == ["0.075", "0.975", "0.525"]
    assert table["groups without variance"] == ["0.250", "0.250", "0.250"]
    assert "* steps finished: 20" in page.read_text()
    assert "* training episodes lost: 20" in page.read_text()


def test_the_page_says_what_ran_and_where_the_files_lie(folder):
    text = write_report(folder).read_text()
    assert text.startswith("# Run alf-0\n")
    assert f"`{folder.config_sha256[:16]}`" in text
    assert "* command: grpo\n* seed: 3\n" in text
    assert "python " in text
    assert "`metrics.jsonl`" in text
    assert str(folder.path.parent) not in text  # a page that is passed on names no path of this machine


def test_a_run_that_has_just_begun(folder):
    page = write_report(folder)
    assert "No step has finished yet." in page.read_text()
    assert not (page.parent / "curves.png").exists()


def test_a_running_run_is_reported_by_path_and_its_torn_line_is_left_alone(folder):
    train(folder, 1, rollout__success=0.5)
    with folder.metrics_path.open("ab") as file:
        file.write(b'{"step": 2, "ph')
    page = write_report(folder.path)  # the fixture still holds the lock
    assert "* steps finished: 1" in page.read_text()
    assert folder.metrics_path.read_bytes().endswith(b'"ph')


def drawn(figure):
    """Points of the last line of each curve, by the title of its panel and its label."""
    return {
        (axes.get_title(), line.get_label()): list(zip(*line.get_data(), strict=True))
        for axes in figure.axes
        for line in axes.get_lines()
        if line.get_linewidth() == 2
    }


def test_each_metric_is_drawn_in_its_panel():
    names = (
        ("rollout/success", "Success", "training tasks"),
        ("rollout/score", "Reward", "_child0"),
        ("rollout/valid_format", "Valid actions", "well-formed"),
        ("rollout/admissible", "Valid actions", "admissible"),
        ("rollout/tokens_sampled", "Tokens", "sampled"),
        ("train/tokens", "Tokens", "trained"),
        ("zero variance", "Groups that teach nothing", "_child0"),
        ("actor/grad_norm", "Gradient norm", "_child0"),
        ("actor/kl_k3", "Distance from the start", "_child0"),
    )
    records = [{"step": s, **{name: 10 * k + s for k, (name, *_) in enumerate(names)}} for s in (1, 2, 3)]
    expected = {(title, label): [(s, 10 * k + s) for s in (1, 2, 3)] for k, (_, title, label) in enumerate(names)}
    assert drawn(figure_of(records, {})) == expected
    empty = figure_of([], {})
    assert drawn(empty) == {}
    assert [[t.get_text() for t in axes.texts] for axes in empty.axes] == [[]] + [["not recorded"]] * 6


def test_long_runs_are_drawn_as_they_are_and_smoothed():
    """40 steps: a mean over the last 4."""
    records = [{"step": s, "actor/kl_k3": float(s)} for s in range(1, 41)]
    figure = figure_of(records, {})
    (axes,) = (a for a in figure.axes if a.get_title() == "Distance from the start")
    thin, thick = axes.get_lines()
    assert np.asarray(thin.get_ydata()).tolist() == [float(s) for s in range(1, 41)]
    assert np.asarray(thick.get_ydata()).tolist()[:5] == [1.0, 1.5, 2.0, 2.5, 3.5]
    assert np.asarray(thick.get_ydata()).tolist()[-1] == 38.5


def test_held_out_success_is_drawn_with_its_interval():
    records = [{"step": s, "success": 0.5, "low": 0.4 - s / 100, "high": 0.6 + s / 100} for s in (0, 10)]
    axes = figure_of([], {"valid_unseen": records}).axes[0]
    (line,), (band,) = axes.get_lines(), axes.collections
    assert (line.get_label(), np.asarray(line.get_ydata()).tolist()) == ("held out: valid_unseen", [0.5, 0.5])
    box = band.get_datalim(axes.transData)
    assert (box.x0, box.x1) == (0, 10)
    assert (box.y0, box.y1) == pytest.approx((0.3, 0.7))


def test_a_run_without_a_bank_is_told_as_ever(folder):
    """Its metrics know how many episodes showed a skill too: none."""
    evaluation(folder, 0, 0.25, 0.046, 0.699, {"pick": 0.25})
    train(folder, 1, rollout__success=0.5, rollout__skills_shown=0.0)
    page = write_report(folder)
    assert re.findall("^## (.*)", page.read_text(), re.MULTILINE) == ["Success on valid_unseen", "Training", "Files"]
    assert list(rows(page)) == ["kind of task", "---", "pick", "**all**", "mean of", "success", "file"] + [
        f"`{name}`" for name in ("config.toml", "run.json", "metrics.jsonl", "trajectories/", "checkpoints/")
    ]
    assert sorted(path.name for path in page.parent.iterdir()) == ["curves.png", "report.md"]
    assert summarize(folder) == []


def test_equal_runs_give_equal_pictures(folder):
    train(folder, 1, rollout__success=0.5)
    first = curves(write_report(folder))
    assert curves(write_report(folder)) == first


def test_values_that_are_not_finite_are_told_and_leave_a_gap(folder):
    for step, value in enumerate([0.5, math.nan, math.inf, 0.7], 1):
        train(folder, step, actor__grad_norm=value)
    page = write_report(folder)
    assert "**Values that are not finite** in 2 steps, first in step 2." in page.read_text()
    assert rows(page)["gradient norm"] == ["0.500", "0.700", "0.600"]


def test_no_run_and_no_matplotlib_are_errors(folder, tmp_path, monkeypatch):
    with pytest.raises(RunFolderError, match="not a run folder"):
        write_report(tmp_path)
    train(folder, 1, rollout__success=0.5)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"gongfu\[train\]"):
        write_report(folder)


def test_run_infrastructure_imports_neither_torch_nor_matplotlib():
    names = ", ".join(f"gongfu.run.{m}" for m in ("folder", "checkpoint", "track", "stats", "report", "trajectories"))
    heavy = "{'torch', 'transformers', 'matplotlib', 'tensorboardX'}"
    subprocess.run([sys.executable, "-c", f"import sys, {names}; assert not {heavy} & sys.modules.keys()"], check=True)


def steered(step):
    """A step of Role-Agent: all tasks of one kind at first, later half of another kind, which failures chose."""
    late = step > 5
    drawn = {"tasks/pick": 0.5, "tasks/heat": 0.5} if late else {"tasks/pick": 1.0}
    told = {
        "failures/mode/loop": 0.25,
        "failures/mode/lost": 0.75,
        "failures/mode/never": 0.0,
        "failures/agreement": 0.5,
        "failures/unreadable": 0.1,
    }
    return {**drawn, **told, "tasks/from_failures": 0.5 * late, "prediction/similarity_success": 0.8}


def test_a_run_that_failures_steer_shows_what_was_drawn(folder):
    for step in range(1, 11):
        train(folder, step, **steered(step))
    assert "(failures.png)" in write_report(folder).read_text()
    assert (folder.path / "report" / "failures.png").read_bytes().startswith(b"\x89PNG")


def test_other_runs_have_no_picture_of_failures(folder):
    train(folder, 1, rollout__success=0.5)
    assert "failures.png" not in write_report(folder).read_text()


def test_the_picture_stacks_the_shares_of_what_was_drawn():
    figure = failures_of([{"step": step, "phase": "train", **steered(step)} for step in range(1, 11)])
    drawn, share, written, measured, *_ = figure.axes
    assert [text.get_text() for text in drawn.get_legend().get_texts()] == ["heat", "pick"]  # not what failures chose
    heat, pick = (band.get_paths()[0].get_extents() for band in drawn.collections)
    assert (heat.y0, heat.y1, pick.y0, pick.y1) == (0.0, 0.5, 0.0, 1.0)
    assert list(share.lines[-1].get_ydata()) == [0.0] * 5 + [0.5] * 5
    assert [text.get_text() for text in written.get_legend().get_texts()] == ["loop", "lost"]  # not the one that never was
    assert [text.get_text() for text in measured.texts] == ["not recorded"]
