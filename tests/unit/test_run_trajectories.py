import gzip
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gongfu.core.errors import RunFolderError
from gongfu.core.records import Call, Task, Trajectory, Turn, Validity
from gongfu.run.trajectories import TrajectoryStore, read_trajectories

finite = st.floats(allow_nan=False, width=64)
ids = st.integers(0, 200_000)
texts = st.text(max_size=12)
names = st.none() | st.lists(texts, max_size=3).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def calls(draw, before):
    """A prompt that repeats all of the call before, or a part of it, or none, and then goes on."""
    cut = draw(st.sampled_from([len(before), len(before) // 2, 0]))
    prompt = before[:cut] + tuple(draw(st.lists(ids, max_size=6)))
    response = draw(st.lists(st.tuples(ids, finite), max_size=5))
    return Call(
        role=draw(texts),
        adapter=draw(st.none() | texts),
        policy_version=draw(st.integers(0, 10**6)),
        prompt=prompt,
        response=tuple(token for token, _ in response),
        logprobs=tuple(logprob for _, logprob in response),
        text=draw(texts),
        stop=draw(st.sampled_from(["stop", "length", "choice"])),
        temperature=draw(finite),
    )


@st.composite
def trajectories(draw):
    turns, before = [], ()
    for _ in range(draw(st.integers(0, 4))):
        call = draw(st.none() | calls(before))
        if call is not None:
            before = call.prompt + call.response
        validity = Validity(draw(st.booleans()), draw(st.booleans()), draw(texts))
        turns.append(Turn(draw(texts), draw(names), call, draw(texts), validity, draw(finite), draw(names)))
    payload = draw(st.dictionaries(texts, json_values, max_size=3))
    return Trajectory(
        id=draw(texts),
        task=Task(draw(texts), draw(texts), draw(texts), draw(texts), draw(texts), draw(st.integers(0, 2**63)), payload),
        group=draw(texts),
        skills=draw(names) or (),
        turns=tuple(turns),
        final_observation=draw(texts),
        outcome=draw(st.sampled_from(["success", "failure"])),
        score=draw(finite),
        stop=draw(st.sampled_from(["terminated", "truncated", "context", "error", "timeout"])),
        error=draw(texts),
    )


def episode(turns=20, observation=30, response=8):
    """An append context: each prompt is all that went before, and a new observation."""
    made, context = [], ()
    for k in range(turns):
        prompt = (*context, *(1000 + 37 * k + i for i in range(observation)))
        answer = tuple(7 + i for i in range(response))
        call = Call("actor", "actor", 3, prompt, answer, (-0.5,) * response, f"go {k}", "stop")
        context = prompt + answer
        made.append(Turn(f"you see {k}", ("go", "look"), call, "go", Validity(True, True), 0.0))
    task = Task("t1", "household", "pick", "put the apple", "train")
    return Trajectory("3/t1/0", task, "3/t1", (), tuple(made), "done", "success", 1.0, "terminated")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trajectories(), max_size=3))
def test_what_is_written_is_read_back(tmp_path_factory, episodes):
    store = TrajectoryStore(tmp_path_factory.mktemp("trajectories"))
    store.write(12, "train", episodes)
    assert store.read(12, "train") == episodes


def test_prompts_are_stored_relative_to_the_call_before(tmp_path):
    path = TrajectoryStore(tmp_path).write(1, "train", [episode(turns=3, observation=2, response=1)])
    (line,) = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert [turn["call"]["prompt"] for turn in json.loads(line)["turns"]] == [
        {"shared": 0, "tokens": [1000, 1001]},
        {"shared": 3, "tokens": [1037, 1038]},
        {"shared": 6, "tokens": [1074, 1075]},
    ]


def test_a_long_append_episode_grows_with_its_length_not_its_square(tmp_path):
    def size(turns):
        path = TrajectoryStore(tmp_path).write(turns, "train", [episode(turns)])
        return len(gzip.decompress(path.read_bytes()))

    assert size(80) < 4.5 * size(20)  # whole prompts would be about 14 times as much


def test_equal_content_gives_equal_bytes_and_other_content_does_not(tmp_path):
    store = TrajectoryStore(tmp_path)
    first = store.write(1, "train", [episode()]).read_bytes()
    assert store.write(2, "eval-valid_unseen", [episode()]).read_bytes() == first
    assert store.write(1, "train", [replace(episode(), score=0.5)]).read_bytes() != first
    assert store.read(1, "train")[0].score == 0.5


def test_list_and_truncate(tmp_path):
    store = TrajectoryStore(tmp_path / "trajectories")
    assert store.list() == []
    for step in (10, 2, 1_000_000):
        store.write(step, "train", [])
    store.write(2, "eval-valid_seen", [])
    (store.folder / "notes.txt").write_text("mine")
    assert store.list() == [(2, "eval-valid_seen"), (2, "train"), (10, "train"), (1_000_000, "train")]
    assert store.truncate(9) == 2
    assert store.list() == [(2, "eval-valid_seen"), (2, "train")]
    assert (store.folder / "notes.txt").exists()


@pytest.mark.parametrize(("step", "phase"), [(-1, "train"), (1, "../train"), (1, ""), (1, "a b")])
def test_names_that_are_no_files_of_this_folder_are_refused(tmp_path, step, phase):
    with pytest.raises(ValueError, match="phase"):
        TrajectoryStore(tmp_path).write(step, phase, [])


def test_missing_torn_and_foreign_files_are_named(tmp_path):
    store = TrajectoryStore(tmp_path)
    with pytest.raises(RunFolderError, match=r"no trajectories at .*step-000001-train"):
        store.read(1, "train")
    path = store.write(1, "train", [episode()])
    whole = path.read_bytes()
    for damaged in (whole[:-20], whole[:40] + bytes([whole[40] ^ 255]) + whole[41:], b"plain text"):
        path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match=r"step-000001-train\.jsonl\.gz is damaged"):
            read_trajectories(path)
    for line in ('{"turns": []}', "[]", '{"turns": [{"call": {"prompt": {"shared": 5, "tokens": []}, "response": []}}]}'):
        path.write_bytes(gzip.compress(f"{line}\n".encode()))
        with pytest.raises(RunFolderError, match="line 1 is no trajectory"):
            read_trajectories(path)
