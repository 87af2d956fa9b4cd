"""Generated homes: deterministic, solvable, with families that differ and habits that hold as often as asked."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gongfu.core.errors import TaskError
from gongfu.envs.household.catalogue import FURNITURE, KIND_RULES, LAMP, OBJECTS, OPENABLE, ROOMS
from gongfu.envs.household.expert import read_goal
from gongfu.envs.household.homes import (
    Family,
    HomeSpec,
    habit_sentence,
    kinds_for,
    make_family,
    make_home,
    places_for,
    rooms_for,
)
from gongfu.envs.household.problem import KINDS, SHORT_KINDS, parse_problem
from gongfu.envs.household.world import HouseholdEnv

KIND_AND_ROOM = [(kind, room) for room in ROOMS for kind in kinds_for(room, KINDS)]


def spec(
    kind: str = KINDS[0], room: str = "kitchen", *, home: int = 0, family: int = 0, habit_strength: float = 0.85
) -> HomeSpec:
    return HomeSpec(kind, room, family, home, "train", habit_strength, (8, 14), (6, 10))


def place_type(receptacle: str) -> str:
    return receptacle.rpartition("_bar_")[2] if receptacle.endswith("basin") else receptacle.partition("_bar_")[0]


@settings(max_examples=80, deadline=None)
@given(
    kind_and_room=st.sampled_from(KIND_AND_ROOM),
    seed=st.integers(0, 2**40),
    family=st.integers(0, 5),
    home=st.integers(0, 10**6),
    habit_strength=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_every_home_is_what_its_spec_says(
    kind_and_room: tuple[str, str], seed: int, family: int, home: int, habit_strength: float
) -> None:
    kind, room = kind_and_room
    asked = spec(kind, room, home=home, family=family, habit_strength=habit_strength)
    made = make_home(seed, asked)
    make_home.cache_clear()
    assert make_home(seed, asked) == made
    layout, described = parse_problem(made.problem), make_family(seed, room, family)
    # the goal: kind, sentence and PDDL say the same
    goal, said = layout.goal, read_goal(made.goal)
    assert (goal.kind, goal.object_type, goal.receptacle_type) == (kind, made.target, made.goal_place)
    assert (said.object, said.place, said.count) == (made.target, made.goal_place, goal.count)
    assert (said.verb, said.lamp) == (
        SHORT_KINDS[kind] if goal.state else "",
        LAMP if kind == KINDS[1] else "",
    )
    # the home: sizes, furniture and what lies where
    kinds_here = Counter(layout.types[r] for r in layout.receptacles)
    assert 8 <= len(layout.receptacles) <= 14 and set(kinds_here) == set(described.furniture)
    assert {r for r in layout.receptacles if layout.types[r] in OPENABLE} == layout.abilities["openable"]
    targets = [o for o in made.places if layout.types[o] == made.target]
    assert len(targets) >= goal.count
    for o, r in made.places.items():
        fits = layout.types[o] == LAMP or (layout.types[r], layout.types[o]) in layout.can_contain
        assert fits and layout.contents[r].count(o) == 1
        if habit_strength == 1:
            assert layout.types[r] == described.habits[layout.types[o]]
    assert not any(layout.types[made.places[o]] == made.goal_place for o in targets)
    assert 6 <= len(made.places) - len(targets) - (LAMP in described.habits) <= 10
    # never won at the start
    env = HouseholdEnv(layout, made.goal)
    env.reset()
    assert not env.step("look").terminated


def test_objects_lie_in_their_habitual_place_as_often_as_asked() -> None:
    def share(habit_strength: float) -> float:
        habits = make_family(0, "kitchen", 0).habits
        hits = [
            habits[o.partition("_bar_")[0]] == place_type(r)
            for home in range(150)
            for o, r in make_home(0, spec(home=home, habit_strength=habit_strength)).places.items()
        ]
        assert len(hits) > 1000
        return sum(hits) / len(hits)

    by_chance = share(0.0)
    assert 0.1 < by_chance < 0.35  # there are six types of furniture, some of them several times
    # with probability 0.85 the habit, else chance; a standard deviation is below 0.01
    assert share(0.85) == pytest.approx(0.85 + 0.15 * by_chance, abs=0.035)
    assert share(1.0) == 1.0


def test_families_of_a_room_have_different_furniture_and_habits() -> None:
    for room in ROOMS:
        families = [make_family(3, room, i) for i in range(12)]
        for i, a in enumerate(families):
            for b in families[:i]:
                assert len({*a.furniture} ^ {*b.furniture}) >= 2  # the intro tells them apart
                shared = a.habits.keys() & b.habits.keys()
                assert any(a.habits[kind] != b.habits[kind] for kind in shared)
        assert all({*FURNITURE[room][0].split()} <= {*family.furniture} for family in families)


def test_families_and_homes_depend_on_the_seed() -> None:
    assert make_family(0, "kitchen", 0).habits != make_family(1, "kitchen", 0).habits
    assert make_home(0, spec()).problem != make_home(1, spec()).problem
    assert make_home(0, spec(home=0)).problem != make_home(0, spec(home=1)).problem


def test_habits_in_words() -> None:
    family = Family(
        "kitchen",
        0,
        ("cabinet", "countertop", "fridge", "microwave", "shelf", "sinkbasin", "toaster"),
        {"apple": "fridge", "mug": "cabinet", "pan": "countertop", "spoon": "sinkbasin"},
    )
    start = "In a kitchen with a cabinet, a shelf and a toaster, "
    assert habit_sentence(family, "apple") == start + "the apple is usually in the fridge."
    assert habit_sentence(family, "mug") == start + "the mug is usually in a cabinet."
    assert habit_sentence(family, "pan") == start + "the pan is usually on a countertop."
    assert habit_sentence(family, "spoon") == start + "the spoon is usually in the sinkbasin."
    with pytest.raises(TaskError, match="no pillow"):
        habit_sentence(family, "pillow")


def test_homes_can_be_small_but_not_too_small() -> None:
    assert len(make_family(0, "kitchen", 0, smallest_home=6).furniture) == 6
    with pytest.raises(TaskError, match="needs at least 6 receptacles, not 5"):
        make_family(0, "kitchen", 0, smallest_home=5)
    with pytest.raises(TaskError, match="fewer families"):
        for i in range(100):  # nine optional types, two at a time, one of them a cabinet, drawer or shelf
            make_family(0, "kitchen", i, smallest_home=6)


def test_kinds_and_rooms() -> None:
    assert rooms_for((KINDS[3],)) == ("kitchen",)
    assert rooms_for((KINDS[1],)) == ("bedroom", "livingroom")
    assert rooms_for(KINDS) == ROOMS
    assert KINDS[1] not in kinds_for("kitchen", KINDS) and KINDS[2] in kinds_for("bathroom", KINDS)


def test_the_catalogue_is_sound() -> None:
    furniture = {kind for common, optional in FURNITURE.values() for kind in (common + " " + optional).split()}
    for kind, (places, _, rooms) in OBJECTS.items():
        assert {*rooms.split()} <= {*ROOMS}
        assert len(places.split()) == len({*places.split()}), kind
        for room in rooms.split():
            everything = tuple(sorted(" ".join(FURNITURE[room]).split()))
            assert places_for(kind, everything), (kind, room)
    assert {*OPENABLE} <= furniture
    assert set(KIND_RULES) == {*KINDS}
