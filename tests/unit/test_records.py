import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gongfu.core.errors import MissingExtra, TokenError
from gongfu.core.records import Call, Row, Task, Trajectory, Turn, Validity, from_json, to_json
from gongfu.core.seeds import rng_for, seed_for

finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(0, 50_000), max_size=8).map(tuple)


@st.composite
def calls(draw):
    response = draw(ids)
    logprobs = draw(st.none() | st.lists(finite, min_size=len(response), max_size=len(response)).map(tuple))
    return Call(
        "actor", draw(st.none() | st.text()), draw(st.integers()), draw(ids), response, logprobs, draw(st.text()), "stop"
    )


@st.composite
def trajectories(draw):
    task = Task("t", "s", "k", draw(st.text()), "train", draw(st.integers()), draw(st.dictionaries(st.text(), st.integers())))
    turn = st.builds(
        Turn,
        st.text(),
        st.none() | st.lists(st.text()).map(tuple),
        st.none() | calls(),
        st.text(),
        st.builds(Validity, st.booleans(), st.booleans(), st.text()),
        finite,
        st.none() | st.lists(st.text()).map(tuple),
    )
    turns = tuple(draw(st.lists(turn, max_size=3)))
    return Trajectory("i", task, "g", ("s1",), turns, draw(st.text()), "failure", draw(finite), "truncated", draw(st.text()))


@given(trajectories())
def test_json_round_trip_is_lossless(trajectory):
    assert from_json(Trajectory, json.loads(json.dumps(to_json(trajectory)))) == trajectory


def test_unreadable_record_names_the_field():
    with pytest.raises(ValueError, match="goal"):
        from_json(Task, {"id": "a", "suite": "b", "kind": "c", "split": "d"})


def test_records_refuse_what_does_not_fit():
    with pytest.raises(TokenError, match="2 response tokens but 1"):
        Call("actor", None, 0, (1,), (2, 3), (0.0,), "", "stop")
    with pytest.raises(TokenError, match="mask of 1"):
        Row("r", (1, 2), (False,))
    with pytest.raises(TokenError, match="first one cannot be scored"):
        Row("r", (1, 2), (True, True))
    with pytest.raises(TokenError, match="greedy"):
        Row("r", (1, 2), (False, True), temperature=0.0)


def test_validity_needs_both_flags():
    assert Validity(True, True).ok
    assert not Validity(False, True).ok
    assert not Validity(True, False).ok


def test_seeds_differ_by_every_part_of_their_key():
    base = {"purpose": "sample", "step": 3, "task": "a", "rollout": 1}
    seeds = [seed_for(0, **base)]
    seeds += [seed_for(1, **base)]
    seeds += [seed_for(0, **{**base, **change}) for change in ({"purpose": "x"}, {"step": 4}, {"task": "b"}, {"rollout": 2})]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**63 for s in seeds)
    assert rng_for(0, **base).random() == rng_for(0, **base).random()


def test_key_parts_cannot_run_into_each_other():
    assert seed_for(1, purpose="p", step=2, task="3") != seed_for(1, purpose="p", step=23, task="")


def test_missing_extra_names_the_command_and_survives_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(MissingExtra("the x engine", "x")))
    assert 'pip install "gongfu[x]"' in str(error)
