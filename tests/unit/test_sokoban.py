"""Sokoban: the rules, the solver, generated rooms, Boxoban files, and what the suite refuses."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core import Task, from_json, to_json
from gongfu.core.errors import ConfigError, EnvError, TaskError
from gongfu.core.seeds import rng_for
from gongfu.envs.check import check
from gongfu.envs.protocol import Observation, Step, Suite
from gongfu.envs.sokoban import SokobanEnv, SokobanExpert, SokobanSuite
from gongfu.envs.sokoban.room import MOVES, Room, State, read_room
from gongfu.envs.sokoban.solver import solve
from gongfu.run.build import build_suite

LEVELS = Path(os.environ.get("GONGFU_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")) / "sokoban"
SMALL: dict[str, Any] = {"sizes": {"train": 30, "seen": 15, "unseen": 15}}
HALL = """
#######
#@$_._#
#######
""".strip()
PAIR = """
######
#@$$_#
#_.._#
#____#
######
""".strip()


def env_of(drawing: str, **settings: Any) -> SokobanEnv:
    return SokobanEnv(*read_room(drawing.splitlines()), **settings)


def test_conforms_to_the_protocol() -> None:
    assert isinstance(SokobanSuite(), Suite)
    for suite in (SokobanSuite(facts=True, **SMALL), SokobanSuite(boxes=2, size=7, score="boxes", **SMALL)):
        report = check(suite, expert=lambda task: SokobanExpert(rng_for(0, purpose="x", task=task.id), noise=0.2))
        assert report.ok and not report.unchecked


def test_a_box_is_pushed_onto_a_target() -> None:
    env = env_of(HALL)
    assert env.reset() == Observation(
        f"Your task is to: push every box onto a target.\n{HALL}", ("down", "left", "right", "up")
    )
    assert env.step("right").observation.text == "#######\n#_@$._#\n#######"
    last = env.step(" RIGHT ")
    assert last.observation.text == "#######\n#__@*_#\n#######"
    assert (last.terminated, last.outcome, last.score) == (True, "success", 1.0)
    with pytest.raises(EnvError, match="that is over"):
        env.step("left")


def test_what_cannot_be_done_changes_nothing() -> None:
    env = env_of(PAIR, max_steps=4)
    env.reset()
    for action in ("up", "right"):  # a wall; two boxes in a row
        assert env.step(action) == Step(Observation(PAIR, tuple(MOVES)), reward=-0.1)
    assert env.step("jump").observation.text == f"Nothing happens.\n{PAIR}"
    last = env.step("up")
    assert (last.truncated, last.terminated, last.outcome, last.score) == (True, False, "failure", 0.0)


def test_rewards_are_those_of_gym_sokoban() -> None:
    """A step costs 0.1; a box onto its target earns 1 and off it costs 1; the last box earns 10 more."""
    env = env_of("########\n#@$._$.#\n########")
    env.reset()
    moves = ("right", "right", "right", "jump")  # onto the target, past it, against the other box, nonsense
    assert [env.step(move).reward for move in moves] == pytest.approx([0.9, -1.1, -0.1, -0.1])
    env = env_of(HALL)
    env.reset()
    assert [env.step("right").reward for _ in range(2)] == pytest.approx([-0.1, 10.9])


def test_the_player_on_a_target_and_a_box_that_is_pushed_off() -> None:
    env = env_of("#####\n#@*_#\n#####", max_steps=9)
    env.reset()
    assert env.step("right").observation.text == "#####\n#_+$#\n#####"


def test_the_score_by_boxes_counts_those_on_targets() -> None:
    for score, expected in (("boxes", 0.5), ("outcome", 0.0)):
        env = env_of("########\n#@$.__$#\n#_____.#\n########", max_steps=1, score=score)
        env.reset()
        last = env.step("right")
        assert (last.outcome, last.score) == ("failure", expected)


def test_score_and_facts_are_settings() -> None:
    for score, expected in (("boxes", (0.0, 0.5)), ("outcome", (0.0,))):
        suite = SokobanSuite(boxes=2, size=7, max_steps=12, score=score, facts=True, sizes={"train": 20})  # type: ignore[arg-type]
        found = set()
        for task in suite.tasks("train"):
            env = suite.make(task)
            assert len(env.reset().facts or ()) == 3
            rng, step = rng_for(0, purpose="walk", task=task.id), None
            while step is None or step.outcome is None:
                step = env.step(rng.choice([*MOVES]))
            found.add(step.score)
        assert found - {1.0} == set(expected)


def test_facts() -> None:
    env = env_of("#####\n#@*$.#\n#####", facts=True)
    assert env.reset().facts == ("at(player, 1 1)", "placed(box, 1 2)", "unplaced(box, 1 3)")


# ------------------------------------------------------------------ solver and expert


def shortest(room: Room, start: State) -> int | None:
    """Breadth first over all states: the plain way."""
    depth, waiting = {start: 0}, deque([start])
    while waiting:
        state = waiting.popleft()
        if room.solved(state):
            return depth[state]
        for move in MOVES:
            after = room.moved(state, move)
            if after not in depth:
                depth[after] = depth[state] + 1
                waiting.append(after)
    return None


def test_solutions_are_the_shortest() -> None:
    suite = SokobanSuite(boxes=2, size=6, solution=(4, 20), max_steps=20, sizes={"train": 40})
    for task in suite.tasks("train"):
        room, start = suite.room(task)
        moves = solve(room, start)
        assert moves is not None and len(moves) == shortest(room, start)
        state = start
        for move in moves:
            state = room.moved(state, move)
        assert room.solved(state)


def test_hopeless_rooms_have_no_solution() -> None:
    corner = read_room(["#####", "#_@_#", "#_.$#", "#__$#", "#.__#", "#####"])  # a box at a wall without targets
    assert solve(*corner) is None and shortest(*corner) is None
    assert solve(*read_room(HALL.splitlines()), most_states=2) is None


def test_the_expert_solves_generated_rooms_in_the_fewest_moves() -> None:
    suite = SokobanSuite(solution=(3, 12), sizes={"train": 100, "unseen": 50})
    for task in (*suite.tasks("train"), *suite.tasks("unseen")):
        env, expert = suite.make(task), suite.expert(task, rng_for(0, purpose="x"))
        observation, step, moves = env.reset(), None, 0
        while step is None or step.outcome is None:
            step = env.step(expert.act(observation))
            observation, moves = step.observation, moves + 1
        assert step.outcome == "success" and 3 <= moves <= 12
        assert moves == len(solve(*suite.room(task)) or ())


def test_a_noisy_expert_recovers_and_says_what_was_noise() -> None:
    suite = SokobanSuite(max_steps=60, sizes={"train": 30})
    explored = 0
    for task in suite.tasks("train"):
        env, expert = suite.make(task), suite.expert(task, rng_for(0, purpose="x", task=task.id), noise=0.3)
        observation, step = env.reset(), None
        while step is None or step.outcome is None:
            step = env.step(expert.act(observation))
            explored += expert.explored
            observation = step.observation
        assert step.outcome == "success"
    assert explored > 30


def test_the_expert_in_a_hopeless_room_and_without_one() -> None:
    expert = SokobanExpert(rng_for(0, purpose="x"))
    assert expert.act(Observation("####\n#@$#\n#_.#\n####", tuple(MOVES))) in MOVES
    assert expert.explored
    with pytest.raises(TaskError, match="sees no room"):
        expert.act(Observation("hello"))


# ------------------------------------------------------------------ tasks


def test_tasks_are_named_stable_and_differ() -> None:
    suite = SokobanSuite(**SMALL)
    assert [task.id for task in suite.tasks("train")[:2]] == ["sokoban/train/1-box/00000", "sokoban/train/1-box/00001"]
    rooms = {split: {suite.make(task).reset().text for task in suite.tasks(split)} for split in suite.splits}
    assert len(rooms["train"]) > 25 and not rooms["train"] & rooms["seen"]
    assert [suite.room(t) for t in suite.tasks("seen")] == [SokobanSuite(**SMALL).room(t) for t in suite.tasks("seen")]
    assert suite.room(suite.tasks("train")[0]) != SokobanSuite(seed=1).room(SokobanSuite(seed=1).tasks("train")[0])
    assert {suite.room(t)[0].width for t in suite.tasks("unseen")} == {7}
    assert {suite.room(t)[0].width for t in suite.tasks("seen")} == {6}


def test_no_room_is_in_train_and_in_seen() -> None:
    suite = SokobanSuite(size=5, solution=(2, 6), sizes={"train": 200, "seen": 80})  # so few rooms that chance repeats them
    train, seen = ([suite.make(task).reset().text for task in suite.tasks(split)] for split in ("train", "seen"))
    assert len(set(seen)) < len(seen) and not {*train} & {*seen}


def test_a_task_is_the_same_in_any_suite_after_a_trip_through_json() -> None:
    suite = SokobanSuite(boxes=2, size=7, seed=3, solution=(5, 15), **SMALL)
    task = suite.tasks("seen")[4]
    back = from_json(Task, json.loads(json.dumps(to_json(task))))
    assert SokobanSuite().make(back).reset() == suite.make(task).reset()


def test_rooms_are_read_as_they_are_drawn() -> None:
    for drawing in (HALL, PAIR, "#####\n#+$_#\n#*.$#\n#####"):
        room, state = read_room(drawing.splitlines())
        assert room.drawn(state) == drawing
    assert read_room("####\n#@ #\n#$.#\n####".splitlines()) == read_room("####\n#@-#\n#$.#\n####".splitlines())


def test_boxoban_files(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("; 0\n####\n#@ #\n#$.#\n####\n\n; 7\n#####\n#@$.#\n#####\n")
    (tmp_path / "seen.txt").write_text("; 0\n#####\n#.$@#\n#####\n")
    suite = SokobanSuite(tmp_path)
    assert suite.splits == ("seen", "train")
    assert [task.id for task in suite.tasks("train")] == ["sokoban/train/1-box/0", "sokoban/train/1-box/7"]
    assert suite.make(suite.tasks("train")[1]).reset().text.endswith("\n#####\n#@$.#\n#####")
    assert check(suite).ok


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("####\n#@$#\n", "no line '; number' before it"),
        ("; 0\n####\n#@x#\n", r"train\.txt, level 0: a room holds the unknown sign 'x'"),
        ("; 0\n#####\n#@@$.#\n", "this one has 2 players"),
        ("; 0\n#####\n#@$$.#\n", "2 boxes and 1 targets"),
        ("; 0\n####\n#@.#\n", "0 boxes"),
        ("; 0\n#@$.#\n; 0\n#@$.#\n", "two levels have one number"),
        ("", "has no tasks"),
    ],
)
def test_unusable_levels(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(TaskError, match=message):
        SokobanSuite(tmp_path).tasks("train")


@pytest.mark.skipif(not LEVELS.is_dir(), reason=f"no Boxoban levels at {LEVELS}; set GONGFU_DATA")
def test_real_boxoban_levels() -> None:
    suite = SokobanSuite(LEVELS, max_steps=200)
    assert {split: len(suite.tasks(split)) for split in suite.splits} == {
        "hard_003": 332,
        "medium_valid_000": 1000,
        "unfiltered_test_000": 1000,
    }
    assert {task.kind for split in suite.splits for task in suite.tasks(split)} == {"4-box"}
    room, start = suite.room(suite.tasks("unfiltered_test_000")[0])
    assert len(solve(room, start) or ()) > 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"score": "box"}, "'outcome' or 'boxes'"),
        ({"size": 4}, "size=4"),
        ({"boxes": 0}, "boxes=0"),
        ({"solution": (9, 3)}, "fewest, most"),
        ({"solution": (3, 16)}, "within max_steps=15"),
        ({"sizes": {"trian": 5}}, "did you mean 'train'"),
        ({"source": "no/such/folder"}, "no sokoban levels at"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        SokobanSuite(**settings)


def test_rooms_and_splits_that_are_not_there() -> None:
    with pytest.raises(TaskError, match="found no sokoban room of size 5 with 1 boxes that takes 15 to 15 moves"):
        SokobanSuite(size=5, solution=(15, 15)).tasks("train")
    with pytest.raises(TaskError, match=r"no split 'valid'; did you mean"):
        SokobanSuite().tasks("valid")
    with pytest.raises(TaskError, match="does not describe a room"):
        SokobanSuite().make(Task("x", "sokoban", "1-box", "push", "train"))


def test_recipes_make_the_suite() -> None:
    words = ["--suite.name=sokoban", "--suite.size=7", "--suite.boxes=2", "--suite.solution=[5, 14]", "--suite.train=6"]
    suite = build_suite(load(Recipe, overrides=words).config.suite)
    assert isinstance(suite, SokobanSuite) and len(suite.tasks("train")) == 6
    room, start = suite.room(suite.tasks("train")[0])
    assert (room.width, len(start.boxes)) == (7, 2) and 5 <= len(solve(room, start) or ()) <= 14
    with pytest.raises(ConfigError, match="boxes, seed are for generated tasks"):
        load(Recipe, overrides=["--suite.name=sokoban", "--suite.source=x", "--suite.boxes=2", "--suite.seed=1"])
