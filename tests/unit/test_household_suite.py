"""The household suite: splits, families, payloads, official games from folders and packed files, and what it refuses."""

from __future__ import annotations

import json
import lzma
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from gongfu.core import Task, from_json, to_json
from gongfu.core.errors import MissingExtra, TaskError
from gongfu.envs.check import check
from gongfu.envs.household import HouseholdSuite
from gongfu.envs.household.games import find_splits
from gongfu.envs.household.problem import KINDS
from gongfu.envs.protocol import Suite
from household_home import problem

SMALL: dict[str, Any] = {"sizes": {"train": 24, "seen": 12, "unseen": 12}}


def test_conforms_to_the_protocol() -> None:
    suite = HouseholdSuite(facts=True, **SMALL)
    assert isinstance(suite, Suite)
    assert check(suite).ok


def test_tasks_are_balanced_named_and_stable() -> None:
    suite = HouseholdSuite(**SMALL)
    tasks = suite.tasks("train")
    assert [task.id for task in tasks[:4]] == [
        "household/train/simple/00000",
        "household/train/light/00001",
        "household/train/clean/00002",
        "household/train/heat/00003",
    ]
    assert [sum(task.kind == kind for task in tasks) for kind in KINDS] == [4] * 6
    assert [*HouseholdSuite(**SMALL).tasks("train")] == [*tasks]
    assert [*HouseholdSuite(seed=1, **SMALL).tasks("train")] != [*tasks]
    # a longer split begins with the shorter one
    assert [*HouseholdSuite(sizes={"train": 30}).tasks("train")[:24]] == [*tasks]


def test_a_task_rebuilds_its_home_in_any_suite_after_a_trip_through_json() -> None:
    task = HouseholdSuite(seed=5, habit_strength=0.3, receptacles=(9, 11), **SMALL).tasks("unseen")[4]
    text = json.dumps(to_json(task))
    assert len(json.dumps(to_json(task)["payload"])) < 200
    again = from_json(Task, json.loads(text))
    assert again == task
    here = HouseholdSuite(seed=5, habit_strength=0.3, receptacles=(9, 11), **SMALL).make(task).reset()
    assert HouseholdSuite(**SMALL).make(again).reset() == here
    assert f"Your task is to: {task.goal}." in here.text


def test_unseen_families_are_never_seen_in_training() -> None:
    suite = HouseholdSuite(**SMALL)
    train, seen, unseen = ({family.name for family in suite.families(split)} for split in suite.splits)
    assert train == seen and len(train) == 12 and len(unseen) == 4 and not train & unseen
    for split, names in (("train", train), ("seen", seen), ("unseen", unseen)):
        assert {suite.family(task).name for task in suite.tasks(split)} <= names
    problems = [suite.problem(task) for split in suite.splits for task in suite.tasks(split)]
    assert len(set(problems)) == len(problems)  # other homes in every split


def test_kinds_limit_rooms() -> None:
    suite = HouseholdSuite(kinds=("heat", "pick_cool_then_place_in_recep"), families=3, unseen_families=1, **SMALL)
    assert {task.kind for task in suite.tasks("train")} == {KINDS[3], KINDS[4]}
    assert [family.name for family in suite.families("unseen")] == ["kitchen 3"]


def test_instructions_name_every_command() -> None:
    text = HouseholdSuite(**SMALL).instructions()
    assert all(
        verb in text for verb in ("go to", "open", "close", "take", "move", "use", "clean", "heat", "cool", "slice", "look")
    )
    assert len(text) < 700


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ("haet",)}, "did you mean 'heat'"),
        ({"kinds": ()}, "at least one"),
        ({"kinds": ("heat", "heat")}, "at most once"),
        ({"engine": "fats"}, "'fast' or 'official'"),
        ({"habit_strength": 1.5}, "probability"),
        ({"receptacles": (12, 8)}, r"\(fewest, most\)"),
        ({"receptacles": (3, 8)}, "needs at least"),
        ({"families": 0}, "families=0"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"sizes": {"trian": 5}}, "did you mean 'train'"),
        ({"source": "no/such/folder"}, "no household games at no/such/folder"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        HouseholdSuite(**settings)


def test_unknown_and_empty_splits() -> None:
    suite = HouseholdSuite(sizes={"seen": 0}, kinds=("light",), families=2, unseen_families=0)
    with pytest.raises(TaskError, match=r"no split 'valid_seen'; did you mean 'seen'\? It has train, seen, unseen"):
        suite.tasks("valid_seen")
    with pytest.raises(TaskError, match="has no tasks"):
        suite.tasks("seen")
    with pytest.raises(TaskError, match="no home of split 'unseen' can have"):
        suite.tasks("unseen")


def test_foreign_tasks() -> None:
    suite = HouseholdSuite(**SMALL)
    with pytest.raises(TaskError, match="does not describe a generated home"):
        suite.make(Task("x", "household", KINDS[0], "put a mug in desk", "train", payload={"room": "kitchen"}))
    with pytest.raises(TaskError, match="has no official games"):
        suite.make(Task("x", "household", KINDS[0], "put a mug in desk", "train", payload={"game": "a"}))


def test_the_official_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from gongfu.envs.household import official

    official._packages.cache_clear()
    monkeypatch.setitem(sys.modules, "textworld", None)
    try:
        with pytest.raises(MissingExtra, match=r'pip install "gongfu\[alfworld\]"'):
            HouseholdSuite(engine="official")
    finally:
        official._packages.cache_clear()


ROWS = [
    {
        "id": "b/trial_1",
        "task_type": KINDS[0],
        "goal": "put some apple on desk",
        "pddl_problem": problem("simple"),
        "scene": "x",
    },
    {"id": "a/trial_2", "task_type": KINDS[5], "goal": "put two apple in desk", "pddl_problem": problem("two")},
]


def write_packed(path: Path, rows: list[dict[str, str]]) -> Path:
    with lzma.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def write_game(folder: Path, row: dict[str, str], *, solvable: bool = True) -> None:
    folder.mkdir(parents=True)
    grammar = f'grammar :: """\n"task": [{{"rhs": "Your task is to: {row["goal"]}."}}]\n"""'
    game = {"pddl_domain": "old", "grammar": grammar, "pddl_problem": row["pddl_problem"], "solvable": solvable}
    (folder / "game.tw-pddl").write_text(json.dumps(game), encoding="utf-8")
    (folder / "traj_data.json").write_text(json.dumps({"task_type": row["task_type"]}), encoding="utf-8")


def test_packed_games(tmp_path: Path) -> None:
    write_packed(tmp_path / "alfworld_valid_seen.jsonl.xz", ROWS)
    (tmp_path / "train.jsonl").write_text(json.dumps(ROWS[0]) + "\n", encoding="utf-8")
    suite = HouseholdSuite(tmp_path)
    assert suite.splits == ("train", "valid_seen")
    tasks = suite.tasks("valid_seen")
    assert [task.id for task in tasks] == ["household/valid_seen/two/a/trial_2", "household/valid_seen/simple/b/trial_1"]
    assert tasks[0].payload == {"game": "a/trial_2"}
    assert "Your task is to: put two apple in desk." in suite.make(tasks[0]).reset().text
    assert check(suite).ok
    single = HouseholdSuite(tmp_path / "alfworld_valid_seen.jsonl.xz", kinds=("two",))
    assert [task.kind for task in single.tasks("valid_seen")] == [KINDS[5]]
    with pytest.raises(TaskError, match="has no tasks of the kinds pick_heat"):
        HouseholdSuite(tmp_path, kinds=("heat",)).tasks("train")
    with pytest.raises(TaskError, match="no families"):
        suite.families("train")
    with pytest.raises(TaskError, match="is not in split"):
        suite.make(Task("x", "household", KINDS[0], "", "train", payload={"game": "a/trial_9"}))


def test_official_folders_are_filtered_as_alfworld_does(tmp_path: Path) -> None:
    write_game(tmp_path / "valid_unseen" / "pick-Apple" / "trial_1", ROWS[0])
    write_game(tmp_path / "valid_unseen" / "pick-Apple" / "trial_0", ROWS[1])
    write_game(tmp_path / "valid_unseen" / "pick-Apple" / "trial_2", ROWS[0], solvable=False)
    write_game(tmp_path / "valid_unseen" / "pick-AppleSliced" / "trial_3", ROWS[0])
    write_game(tmp_path / "valid_unseen" / "pick_and_place_with_movable_recep-Apple" / "trial_4", ROWS[0])
    (tmp_path / "valid_unseen" / "pick-Apple" / "trial_1" / "notes.txt").write_text("x", encoding="utf-8")
    suite = HouseholdSuite(str(tmp_path))
    assert suite.splits == ("valid_unseen",)
    tasks = suite.tasks("valid_unseen")
    assert [(task.payload["game"], task.goal) for task in tasks] == [
        ("pick-Apple/trial_0", "put two apple in desk"),
        ("pick-Apple/trial_1", "put some apple on desk"),
    ]
    assert suite.make(tasks[1]).reset().text.endswith("Your task is to: put some apple on desk.")


def test_damaged_data(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds neither"):
        find_splits(tmp_path)
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n{}\n", encoding="utf-8")
    with pytest.raises(TaskError, match=r"train\.jsonl, line 2: not a household game"):
        HouseholdSuite(path).tasks("train")
    write_game(tmp_path / "valid_seen" / "x" / "trial", {**ROWS[0], "goal": ""})
    path.unlink()
    with pytest.raises(TaskError, match="no goal sentence"):
        HouseholdSuite(tmp_path).tasks("valid_seen")


def test_suites_travel_to_worker_processes(tmp_path: Path) -> None:
    write_packed(tmp_path / "train.jsonl.xz", ROWS)
    for suite in (HouseholdSuite(**SMALL), HouseholdSuite(tmp_path)):
        assert [*pickle.loads(pickle.dumps(suite)).tasks("train")] == [*suite.tasks("train")]
