"""The fast household engine: a small home written by hand, and every answer worked out from ALFWorld's rules and grammar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gongfu.core import rng_for
from gongfu.core.errors import EnvError, TaskError
from gongfu.envs.household.homes import HomeSpec, make_home
from gongfu.envs.household.problem import KINDS, parse_problem
from gongfu.envs.household.world import HELP, HouseholdEnv
from household_home import GOALS, problem


def play(*commands: str, goal: str = "two", max_steps: int = 50) -> tuple[str, tuple[str, ...], HouseholdEnv]:
    """Text and actions after the last of these commands, each of which must be admissible."""
    env = HouseholdEnv(parse_problem(problem(goal)), "put two apple in desk", max_steps=max_steps, facts=True)
    observation = env.reset()
    for command in commands:
        assert command in (observation.actions or ()), f"{command!r} is not among {observation.actions}"
        observation = env.step(command).observation
    return observation.text, observation.actions or (), env


def test_intro_lists_the_receptacles_in_the_order_of_their_ids() -> None:
    text, actions, _ = play()
    # ids drawer_bar_a, drawer_bar_b, ...: numbers are handed out downwards
    assert text == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 2, a drawer 1, a fridge 1, "
        "a microwave 1, a shelf 1, and a sinkbasin 1.\n\nYour task is to: put two apple in desk."
    )
    places = ("desk 1", "drawer 1", "drawer 2", "fridge 1", "microwave 1", "shelf 1", "sinkbasin 1")
    assert actions == tuple(sorted(["help", "inventory", "look", *(f"go to {place}" for place in places)]))


def test_looking_from_the_middle_of_the_room_sees_nothing_after_the_intro() -> None:
    assert play("look")[0] == "You are in the middle of a room. Looking quickly around you, you see nothing."
    assert play("help")[0] == HELP
    assert play("inventory")[0] == "You are not carrying anything."


def test_two_receptacles_at_one_place() -> None:
    text, actions, _ = play("go to drawer 1")
    assert text == "You arrive at drawer 1. On the drawer 1, you see a apple 2."
    assert "go to drawer 1" not in actions and "go to drawer 2" not in actions  # both are here
    assert {"open drawer 2", "examine drawer 1", "examine drawer 2", "take apple 2 from drawer 1"} <= {*actions}
    assert play("go to drawer 1", "look")[0] == "You are facing the drawer 2, and drawer 1. Next to it, you see nothing."


def test_doors() -> None:
    assert play("go to fridge 1")[0] == "You arrive at fridge 1. The fridge 1 is closed."
    assert not [a for a in play("go to fridge 1")[1] if a.startswith(("take", "close"))]
    text, actions, _ = play("go to fridge 1", "open fridge 1")
    assert text == "You open the fridge 1. The fridge 1 is open. In it, you see a apple 1."
    assert {"take apple 1 from fridge 1", "close fridge 1"} <= {*actions} and "open fridge 1" not in actions
    text, actions, _ = play("go to fridge 1", "open fridge 1", "close fridge 1")
    assert text == "You close the fridge 1." and "take apple 1 from fridge 1" not in actions


def test_nothing_happens_for_what_is_not_admissible_and_the_step_counts() -> None:
    _, actions, env = play("go to desk 1", max_steps=12)
    for command in ("", "fly", "GO TO FRIDGE 1", "go to desk 1", "open desk 1", "take apple 1 from fridge 1", "go to fridge"):
        step = env.step(command)
        assert (step.observation.text, step.observation.actions) == ("Nothing happens.", actions)
    assert env.step("  go to fridge 1 \n").observation.text.startswith("You arrive at fridge 1.")  # blanks are forgiven


TAKE = ("go to drawer 1", "take apple 2 from drawer 1")


def test_taking_and_putting_back_is_seen_next_to_the_receptacle() -> None:
    assert play(*TAKE)[0] == "You pick up the apple 2 from the drawer 1."
    assert play(*TAKE, "inventory")[0] == "You are carrying: a apple 2."
    assert play(*TAKE, "open drawer 2", "move apple 2 to drawer 2")[0] == "You move the apple 2 to the drawer 2."
    # it lies at this location and was taken from a receptacle of this location: the official grammar lists it
    moved = (*TAKE, "open drawer 2", "move apple 2 to drawer 2")
    assert play(*moved, "look")[0].endswith("Next to it, you see a apple 2.")
    assert play(*moved, "take apple 2 from drawer 2", "move apple 2 to drawer 1", "look")[0].endswith("you see a apple 2.")
    assert play(*TAKE, "move apple 2 to drawer 1", "look")[0].endswith("you see nothing.")


def test_holding_one_object_at_a_time_and_only_where_it_fits() -> None:
    _, actions, _ = play(*TAKE, "go to desk 1")
    assert "move apple 2 to desk 1" in actions and not [a for a in actions if a.startswith("take")]
    _, actions, _ = play(*TAKE, "go to shelf 1")
    assert not [a for a in actions if a.startswith("move")]  # no canContain fact
    assert [a for a in play(*TAKE)[1] if a.startswith("move")] == ["move apple 2 to drawer 1"]  # the other drawer is closed


def test_contents_are_listed_in_the_order_of_the_ids_and_once() -> None:
    text = "On the desk 1, you see a desklamp 1, a knife 1, and a mug 1."
    assert play("go to desk 1", "take knife 1 from desk 1", "move knife 1 to desk 1", "examine desk 1")[0] == text
    mug = ("go to shelf 1", "take mug 1 from shelf 1", "go to desk 1", "move mug 1 to desk 1")  # where it lies already
    assert play(*mug, "examine desk 1")[0] == text


def test_an_object_in_two_receptacles_stays_in_the_other_when_taken_from_one() -> None:
    text, _, _ = play("go to desk 1", "take mug 1 from desk 1", "go to shelf 1")
    assert text == "You arrive at shelf 1. On the shelf 1, you see a mug 1."
    _, _, env = play("go to desk 1", "take mug 1 from desk 1")
    assert {"holds(agent, mug 1)", "inReceptacle(mug 1, shelf 1)"} <= {*(env.step("look").observation.facts or ())}
    _, actions, _ = play("go to desk 1", "take mug 1 from desk 1", "move mug 1 to desk 1")
    assert "take mug 1 from desk 1" in actions


@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ((), "There's nothing special about apple 2."),
        (("go to sinkbasin 1", "clean apple 2 with sinkbasin 1"), "This is a clean apple 2."),
        (("go to microwave 1", "heat apple 2 with microwave 1"), "This is a hot apple 2."),
        (("go to fridge 1", "cool apple 2 with fridge 1"), "This is a cold apple 2."),
        (
            ("go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "go to fridge 1", "cool apple 2 with fridge 1"),
            "This is a cool and clean apple 2.",
        ),
        (
            ("go to fridge 1", "cool apple 2 with fridge 1", "go to microwave 1", "heat apple 2 with microwave 1"),
            "This is a hot apple 2.",
        ),
        (
            ("go to microwave 1", "heat apple 2 with microwave 1", "go to fridge 1", "cool apple 2 with fridge 1"),
            "This is a cold apple 2.",
        ),
    ],
)
def test_treating_needs_the_right_appliance_but_no_open_door(commands: tuple[str, ...], sentence: str) -> None:
    assert play(*TAKE, *commands, "examine apple 2")[0] == sentence


SLICE = ("go to desk 1", "take knife 1 from desk 1", "go to fridge 1", "slice apple 1 with knife 1")


def test_slicing_reaches_through_a_closed_door_and_is_remembered() -> None:
    assert play(*SLICE)[0] == "You sliced the apple 1 with the knife 1."
    hold = (*SLICE[:1], *SLICE[1:], "go to desk 1", "move knife 1 to desk 1", "go to fridge 1", "open fridge 1")
    hold = (*hold, "take apple 1 from fridge 1")
    assert play(*hold, "examine apple 1")[0] == "This is a cool sliced apple 1."  # it was cool at the start
    clean = ("go to sinkbasin 1", "clean apple 1 with sinkbasin 1")
    assert play(*hold, *clean, "examine apple 1")[0] == "This is a cool and clean sliced apple 1."


def test_an_object_is_sliced_where_it_is_and_not_where_it_was() -> None:
    moved = (*TAKE, "go to desk 1", "move apple 2 to desk 1", "take knife 1 from desk 1")
    assert "slice apple 2 with knife 1" in play(*moved)[1]
    assert not [a for a in play(*moved, "go to drawer 1")[1] if a.startswith("slice")]


def test_objects_that_hold_others() -> None:
    text, _, _ = play("go to desk 1", "take mug 1 from desk 1", "examine mug 1")
    assert text == "This is a normal mug 1. In it, you see a spoon 1."  # never itself, whatever the facts say


def test_lamp() -> None:
    text, actions, env = play("go to desk 1", goal="light")
    assert text == "You arrive at desk 1. On the desk 1, you see a desklamp 1, a knife 1, and a mug 1."
    assert "use desklamp 1" in actions and "take desklamp 1 from desk 1" not in actions
    assert env.step("use desklamp 1").observation.text == "You turn on the desklamp 1."
    assert env.step("use desklamp 1").observation.text == "You turn on the desklamp 1."  # never off


WINS = {
    "simple": (*TAKE, "go to desk 1", "move apple 2 to desk 1"),
    "light": (*TAKE, "go to desk 1", "use desklamp 1"),
    "clean": (*TAKE, "go to sinkbasin 1", "clean apple 2 with sinkbasin 1", "go to desk 1", "move apple 2 to desk 1"),
    "heat": (*TAKE, "go to microwave 1", "heat apple 2 with microwave 1", "go to desk 1", "move apple 2 to desk 1"),
    "cool": ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "go to desk 1", "move apple 1 to desk 1"),
    "two": (
        *(*TAKE, "go to desk 1", "move apple 2 to desk 1", "go to fridge 1", "open fridge 1"),
        *("take apple 1 from fridge 1", "go to desk 1", "move apple 1 to desk 1"),
    ),
}


@pytest.mark.parametrize("goal", sorted(WINS))
def test_success_comes_with_the_last_command_and_not_before(goal: str) -> None:
    *before, last = WINS[goal]
    _, _, env = play(*before, goal=goal)
    step = env.step(last)
    assert (step.reward, step.terminated, step.truncated, step.outcome) == (1.0, True, False, "success")


def test_untreated_objects_do_not_count() -> None:
    for goal in ("clean", "heat", "cool"):
        _, _, env = play(*TAKE, "go to desk 1", goal=goal)
        step = env.step("move apple 2 to desk 1")
        assert (step.reward, step.terminated, step.outcome) == (0.0, False, None)


def test_truncation() -> None:
    _, _, env = play("look", "look", max_steps=3)
    step = env.step("look")
    assert (step.terminated, step.truncated, step.outcome, step.reward) == (False, True, "failure", 0.0)
    assert not play("look", max_steps=2)[2].step(WINS["simple"][0]).terminated
    # success on the very last step is success
    *before, last = WINS["simple"]
    _, _, env = play(*before, goal="simple", max_steps=len(before) + 1)
    assert env.step(last).terminated


def test_one_episode_only() -> None:
    env = HouseholdEnv(parse_problem(problem()), "put two apple in desk", max_steps=1)
    with pytest.raises(EnvError, match="new"):
        env.step("look")
    env.reset()
    with pytest.raises(EnvError, match="one episode"):
        env.reset()
    env.step("look")
    with pytest.raises(EnvError, match="over"):
        env.step("look")
    env.close()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.step("look")


def test_facts_only_when_asked_for() -> None:
    env = HouseholdEnv(parse_problem(problem()), "put two apple in desk")
    assert env.reset().facts is None
    _, _, env = play(*TAKE, "open drawer 2")
    assert env.step("look").observation.facts == (
        "atLocation(agent, drawer 1)",
        "atLocation(agent, drawer 2)",
        "holds(agent, apple 2)",
        "inReceptacle(apple 1, fridge 1)",
        "inReceptacle(desklamp 1, desk 1)",
        "inReceptacle(knife 1, desk 1)",
        "inReceptacle(mug 1, desk 1)",
        "inReceptacle(mug 1, shelf 1)",
        "isCool(apple 1)",
        "opened(drawer 2)",
    )


def test_episodes_of_one_layout_do_not_touch_each_other() -> None:
    _, _, first = play(*TAKE)
    text, _, _ = play("go to drawer 1")
    assert "apple 2" in text
    assert "holds(agent, apple 2)" in (first.step("look").observation.facts or ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(define (problem p))", r"needs \(:objects"),
        (problem("(exists (?o - object) (isSliced ?o))"), "not one of the six"),
        (problem("(exists (?o - object) (objectType ?o AppleType))"), "one type of object and of receptacle"),
        (problem(GOALS["light"].replace("(isToggled ?ot)", "")), "needs one type"),
        (problem(facts="(atLocation agent1 loc_bar_0)"), "receptacleAtLocation"),
    ],
)
def test_unreadable_problems(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        parse_problem(text)


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(KINDS), home=st.integers(0, 10_000), noise=st.text(max_size=30))
def test_random_walks_keep_the_world_whole(kind: str, home: int, noise: str) -> None:
    room = "bedroom" if kind == KINDS[1] else "kitchen"
    made = make_home(1, HomeSpec(kind, room, 0, home, "train", 0.5, (8, 12), (3, 8)))
    env = HouseholdEnv(parse_problem(made.problem), made.goal, max_steps=30, facts=True)
    rng = rng_for(home, purpose="walk")
    observation, objects = env.reset(), len(made.places)
    for _ in range(30):
        actions, facts = observation.actions or (), observation.facts or ()
        assert list(actions) == sorted(set(actions))
        # every object is somewhere, exactly once, or in the hand
        assert sum(fact.startswith(("inReceptacle", "holds")) for fact in facts) == objects
        command = noise if rng.random() < 0.1 else rng.choice(actions)
        step = env.step(command)
        refused = step.observation.text == "Nothing happens."
        assert refused == (command.strip() not in actions)
        if refused:
            assert (step.observation.actions, step.observation.facts) == (actions, facts)
        if step.terminated or step.truncated:
            break
        observation = step.observation
