"""What the commands take and print, with the work they ask for left out."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from bank_run import make_run
from gongfu.cli.main import main
from gongfu.cli.recipe import load_recipe, split_arguments
from gongfu.core.errors import ConfigError
from gongfu.run.evaluate import Evaluation
from gongfu.run.folder import RunFolder
from gongfu.run.report import summarize
from uniskill_cases import rollout


@pytest.fixture
def gongfu(monkeypatch, capsys):
    """Runs `gongfu ...`; exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["gongfu", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main()
        out = capsys.readouterr()
        return stopped.value.code or 0, out.out, out.err

    return run


# Recipe files


@pytest.mark.parametrize(
    ("arguments", "files", "overrides"),
    [
        (["a.toml"], ["a.toml"], []),
        (["@a.toml", "dir/b.toml", "@c"], ["a.toml", "dir/b.toml", "c"], []),
        (["a.toml", "--run.name", "x", "b.toml"], ["a.toml", "b.toml"], ["--run.name", "x"]),
        (["--run.start-from", "a.toml", "b.toml"], ["b.toml"], ["--run.start-from", "a.toml"]),
        (["--engine.model=a.toml", "engine.model=b.toml"], [], ["--engine.model=a.toml", "engine.model=b.toml"]),
        (["--run.name=x", "a.toml"], ["a.toml"], ["--run.name=x"]),
        (["seed"], [], ["seed"]),
    ],
)
def test_a_recipe_file_needs_no_at_sign(arguments, files, overrides):
    assert split_arguments(arguments) == (files, overrides)


def test_later_files_and_settings_win(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('[run]\nname = "first"\nseed = 1\nsteps = 1\n')
    second.write_text("[run]\nseed = 2\nsteps = 2\n")
    run = load_recipe([str(first), f"@{second}", "--run.steps", "3"]).config.run
    assert (run.name, run.seed, run.steps) == ("first", 2, 3)


def test_a_missing_file_is_the_same_error_with_and_without_the_sign(gongfu, tmp_path):
    said = []
    for word in (f"{tmp_path}/none.toml", f"@{tmp_path}/none.toml"):
        code, _, err = gongfu("check", word)
        assert code == 2 and "cannot read" in err and "none.toml" in err.replace("\n", "")  # wrapped like any long line
        said.append(err)
    assert said[0] == said[1]
    with pytest.raises(ConfigError, match="seed has no value"):
        load_recipe(["seed"])


def test_a_folder_is_no_recipe_and_nothing_at_all_is_none(gongfu, tmp_path):
    code, _, err = gongfu("check", tmp_path)
    assert code == 2 and "is a folder" in err
    code, _, err = gongfu("train")
    assert code == 2 and "give a recipe" in err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--engine.device=gpu"], "is no device"),
        (["--run.start-from=runs/none"], "no checkpoints"),
        (["--sft.transcripts=none.jsonl"], "no file"),
        (["--optim.betas=[2,3]"], "less than 1"),
        (["--method.name=uniskill", "--method.bank=nope://x"], "nope"),
        (["--suite.name=custom", "--suite.object=json:loads"], "could not be made"),
    ],
)
def test_a_check_finds_what_would_stop_a_run_later(gongfu, settings, said):
    code, _, err = gongfu("check", *settings)
    assert code in (1, 2) and said in err and "Traceback" not in err


def test_a_recipe_whose_files_are_missing_is_shown_resolved(gongfu):
    code, out, err = gongfu("check", "--suite.source=none", "--method.gamma=0.5")
    assert code != 0 and "none" in err and "gamma = 0.5" in out


def test_a_run_goes_on_without_what_it_once_began_from():
    from gongfu.run.preflight import preflight

    assert preflight(load_recipe(["--run.start-from=runs/gone", "--sft.transcripts=gone.jsonl"]).config)


def test_a_custom_suite_lies_in_the_working_directory(gongfu, tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text("def suite():\n    raise ValueError('no board')\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    code, _, err = gongfu("check", "--suite.name=custom", "--suite.object=of_mine:suite")
    assert code == 2 and "ValueError: no board" in err


def test_a_recipe_for_a_gpu_is_not_wrong_where_there_is_none(gongfu):
    code, _, err = gongfu("check", "--engine.device=cuda")
    assert code == 0 and ("shows none" in err) == (not any(Path(p).exists() for p in ("/proc/driver/nvidia", "/dev/kfd")))


# The end of training


@pytest.mark.parametrize("how", ["train", "resume"])
def test_training_with_a_bank_ends_with_its_story_and_the_path_alone_on_standard_output(gongfu, tmp_path, monkeypatch, how):
    report = make_run(tmp_path / "a") / "report" / "report.md"
    monkeypatch.setattr("gongfu.run.train.train_run", lambda recipe: report)
    monkeypatch.setattr("gongfu.run.train.resume_run", lambda path: report)
    code, out, err = gongfu("train", *(["--resume", report.parent.parent] if how == "resume" else ["--run.steps=1"]))
    assert (code, out) == (0, f"{report}\n")
    assert err.splitlines() == summarize(tmp_path / "a") and len(err.splitlines()) > 5


def test_training_without_a_bank_ends_with_the_path(gongfu, tmp_path, monkeypatch):
    with RunFolder.create(tmp_path / "a", config_toml="", info={}) as folder:
        folder.append_metrics({"step": 1, "phase": "train", "rollout/success": 0.5, "rollout/skills_shown": 0.0})
    report = tmp_path / "a" / "report" / "report.md"
    monkeypatch.setattr("gongfu.run.train.train_run", lambda recipe: report)
    assert gongfu("train", "--run.steps=1") == (0, f"{report}\n", "")


# Evaluation


@pytest.mark.parametrize(
    ("arguments", "asked"), [([], "both"), (["--skills", "with"], "with"), (["--skills=without"], "without")]
)
def test_eval_hands_on_whether_skills_are_shown_and_prints_the_labels(gongfu, monkeypatch, arguments, asked):
    calls = []

    def evaluate_runs(refs, **settings):
        calls.append((list(refs), settings["skills"]))
        return [Evaluation(f"runs/a {how} skills", "seen", (rollout(0, how == "with"),)) for how in ("with", "without")]

    monkeypatch.setattr("gongfu.run.evaluate.evaluate_runs", evaluate_runs)
    code, out, _ = gongfu("eval", "runs/a", *arguments)
    assert code == 0 and calls == [(["runs/a"], asked)]
    assert "runs/a with skills" in out and "runs/a without skills" in out
    printed = json.loads(gongfu("eval", "runs/a", "--json", *arguments)[1])
    assert [(r["checkpoint"], r["success"]) for r in printed] == [("runs/a with skills", 1.0), ("runs/a without skills", 0.0)]


def test_eval_refuses_another_word(gongfu):
    code, _, err = gongfu("eval", "runs/a", "--skills", "some")
    assert code == 2 and "'some' is not one of 'with', 'without', 'both'" in err


# What this machine can run


def test_doctor_knows_every_extra_that_a_user_installs(gongfu):
    from gongfu.cli.doctor import EXTRAS

    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for joined in ("all", "bench", "dev"):
        del extras[joined]
    assert EXTRAS.keys() == extras.keys()
    for extra, requirements in extras.items():
        names = {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}
        assert names - {"gongfu"} <= set(EXTRAS[extra]), extra
    err = gongfu("doctor")[2]
    assert [extra for extra in extras if f"extra {extra}:" not in err] == []


# The list of runs


def test_runs_with_a_bank_are_listed_with_its_size(gongfu, tmp_path):
    make_run(tmp_path / "taught")
    code, out, _ = gongfu("runs", tmp_path)
    header, row = (next(line for line in out.splitlines() if word in line) for word in ("held-out", "taught"))
    assert code == 0 and cells(row)[cells(header).index("skills")] == "1"  # after the last step, not the most there ever were
    with RunFolder.create(tmp_path / "bare", config_toml="", info={"command": "grpo"}) as folder:
        folder.append_metrics({"step": 1, "phase": "train", "rollout/success": 0.5, "rollout/skills_shown": 0.0})
    listed = {run["run"]: run["skills"] for run in json.loads(gongfu("runs", tmp_path, "--json")[1])}
    assert listed == {"taught": "1", "bare": ""}


def test_runs_without_a_bank_are_listed_as_ever(gongfu, tmp_path):
    with RunFolder.create(tmp_path / "bare", config_toml="", info={"command": "grpo"}):
        pass
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    code, out, _ = gongfu("runs", tmp_path)
    assert code == 0 and "bare" in out and "is damaged" in out and "skills" not in out


def cells(line):
    return [cell.strip() for cell in line.replace("┃", "│").split("│")]
