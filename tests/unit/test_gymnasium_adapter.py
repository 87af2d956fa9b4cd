"""Gymnasium environments as a suite: real ones by the conformance kit, and one of our own for what they do not show."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="the extra gymnasium is not installed")
import gymnasium
from gymnasium.spaces import Box, Discrete

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import ConfigError, EnvError, MissingExtra, TaskError
from gongfu.envs.check import check
from gongfu.envs.gymnasium import GymnasiumSuite, plain_text
from gongfu.envs.protocol import Observation, Suite
from gongfu.run.build_suite import build_suite, check_offers

LAKE: dict[str, Any] = {
    "env": "FrozenLake-v1",
    "args": {"is_slippery": False},
    "actions": ["left", "down", "right", "up"],
    "goal": "walk to G and avoid the holes H",
    "sizes": {"train": 6, "seen": 3},
}
WAY = ("down", "down", "right", "right", "down", "right")


class Counter(gymnasium.Env):
    """Counts to three; the fourth step is one too many. Its seed decides where it begins."""

    def __init__(self, mask: bool = False, last: int = 3, picture: Any = "text") -> None:
        self.action_space = Discrete(2)
        self.observation_space = Box(0, 9)
        self.mask, self.last, self.picture, self.closed = mask, last, picture, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(3))
        return self.at, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.at += action
        return self.at, float(action), self.at == self.last, self.at == self.last, self._info()

    def render(self) -> Any:
        return f"at {self.at}" if self.picture == "text" else self.picture

    def close(self) -> None:
        self.closed += 1

    def _info(self) -> dict[str, Any]:
        return {"action_mask": [0, 1]} if self.mask else {}


def spoken(env: Counter, observation: int) -> str:
    return f"seen {observation} of {env.last}"


def counter(**settings: Any) -> GymnasiumSuite:
    return GymnasiumSuite(Counter, **{"actions": ["wait", "count"], "max_steps": 5, "sizes": {"train": 8}, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        LAKE,
        LAKE | {"args": {}},  # slippery: seeded chance
        {"env": "Taxi-v4", "returns": (-200, 20), "max_steps": 30, "sizes": {"train": 3, "seen": 2}},
        {"env": "CliffWalking-v1", "max_steps": 40, "success": -39.0, "sizes": {"train": 3}},
        {"env": "Blackjack-v1", "actions": ["stick", "hit"], "render": "observation", "max_steps": 9, "sizes": {"train": 4}},
    ],
    ids=lambda settings: settings["env"],
)
def test_real_environments_conform(settings: dict[str, Any]) -> None:
    suite = GymnasiumSuite(**settings)
    assert isinstance(suite, Suite)
    report = check(suite)
    assert report.ok and report.steps > 5


def test_an_episode_on_the_frozen_lake() -> None:
    suite = GymnasiumSuite(**LAKE)
    assert suite.max_steps == 100 and suite.splits == ("train", "seen")  # the registry's limit
    assert suite.instructions() == "Actions: left | down | right | up"
    env = suite.make(suite.tasks("train")[0])
    assert env.reset() == Observation(
        "Your task is to: walk to G and avoid the holes H.\nred[S]FFF\nFHFH\nFFFH\nHFFG", ("down", "left", "right", "up")
    )
    assert env.step("fly").observation.text.startswith("Nothing happens.\n")
    for action in WAY[:-1]:
        step = env.step(action)
        assert step.outcome is None
    assert "(Down)\nSFFF\nFHFH\nFFFH\nHFred[F]G" in step.observation.text
    last = env.step(WAY[-1])
    assert (last.terminated, last.truncated, last.outcome, last.score, last.reward) == (True, False, "success", 1.0, 1.0)
    with pytest.raises(EnvError, match="that is over"):
        env.step("left")


def test_falling_into_a_hole_is_a_failure() -> None:
    suite = GymnasiumSuite(**LAKE)
    env = suite.make(suite.tasks("seen")[0])
    env.reset()
    env.step("down")
    last = env.step("right")
    assert (last.terminated, last.outcome, last.score) == (True, "failure", 0.0)


def test_tasks_are_seeds() -> None:
    suite = GymnasiumSuite("Taxi-v4", sizes={"train": 30, "seen": 30})
    starts = {split: [suite.make(task).reset().text for task in suite.tasks(split)] for split in suite.splits}
    assert len(set(starts["train"])) > 20 and starts["train"] != starts["seen"]
    again = pickle.loads(pickle.dumps(suite))
    assert [again.make(task).reset().text for task in again.tasks("train")] == starts["train"]
    other = GymnasiumSuite("Taxi-v4", sizes={"train": 30}, seed=1)
    assert [task.seed for task in other.tasks("train")] != [task.seed for task in suite.tasks("train")]


def test_the_limit_of_steps_truncates() -> None:
    suite = counter(max_steps=2)
    env = suite.make(suite.tasks("train")[0])
    env.reset()
    assert env.step("wait").outcome is None
    last = env.step("nothing")  # costs a step too
    assert (last.truncated, last.terminated, last.outcome) == (True, False, "failure")


def test_an_end_that_is_also_a_limit_is_an_end() -> None:
    suite = counter()
    env = suite.make(suite.tasks("train")[0])
    step, start = None, int(env.reset().text[-1])
    for _ in range(3 - start):
        step = env.step("count")
    assert step is not None and step.terminated and not step.truncated and step.outcome == "success"


@pytest.mark.parametrize(("returns", "score"), [(None, 0.0), ((0, 4), 0.5), ((0, 1), 1.0), ((3, 4), 0.0)])
def test_returns_are_scored_between_their_bounds(returns: tuple[float, float] | None, score: float) -> None:
    suite = counter(returns=returns, success=5, max_steps=2, args={"last": 9})
    env = suite.make(suite.tasks("train")[0])
    env.reset()
    env.step("count")
    last = env.step("count")
    assert (last.outcome, last.score) == ("failure", score)


def test_a_mask_limits_the_actions() -> None:
    for mask, listed in ((True, ("count",)), (False, ("count", "wait"))):
        suite = counter(args={"mask": mask})
        assert suite.make(suite.tasks("train")[0]).reset().actions == listed


def test_other_ways_to_show_a_state() -> None:
    for render, text in (("observation", "1"), (spoken, "seen 1 of 3"), ("test_gymnasium_adapter:spoken", "seen 1 of 3")):
        suite = counter(render=render)
        texts = [suite.make(task).reset().text.splitlines()[1] for task in suite.tasks("train")]
        assert text in texts


def test_actions_by_name() -> None:
    suite = counter(actions={"go": 1})
    env = suite.make(suite.tasks("train")[0])
    assert env.reset().actions == ("go",)
    assert env.step("go").reward == 1.0
    numbers = counter(actions=None)
    assert numbers.make(numbers.tasks("train")[0]).reset().actions == ("0", "1")


def test_closing_twice_closes_once() -> None:
    suite = counter()
    env = suite.make(suite.tasks("train")[0])
    env.close()
    env.close()
    assert env._env.closed == 1  # type: ignore[attr-defined]


def test_a_picture_is_no_text() -> None:
    suite = counter(args={"picture": None})
    with pytest.raises(EnvError, match="rendered a NoneType, expected text"):
        suite.make(suite.tasks("train")[0]).reset()


def test_colours_are_told() -> None:
    assert plain_text("\x1b[41mS\x1b[0mF") == "red[S]F"
    assert plain_text("\x1b[34;1mB\x1b[0m|\x1b[43m \x1b[0m") == "blue(B)|yellow[ ]"
    assert plain_text("\n  a\x1b[2Jb \n") == "  ab"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": "FrozenLak-v1"}, r"could not be made with .*FrozenLake"),
        ({"env": "no.such:factory"}, 'write it as "package.module:function"'),
        ({"env": "os:getcwd"}, "is no Gymnasium environment: it lacks reset"),
        ({"env": "FrozenLake-v1", "actions": ["left"]}, "has 4 actions, but 1 names"),
        ({"env": "FrozenLake-v1", "actions": ["a", "b", "c", "a"]}, "have one name"),
        ({"env": "FrozenLake-v1", "actions": {"left": 7}}, "is not in the action space"),
        ({"env": "FrozenLake-v1", "actions": {" ": 0}}, "need names"),
        ({"env": "FrozenLake-v1", "returns": (1, 1)}, "low below high"),
        ({"env": "FrozenLake-v1", "failure_modes": "fell"}, "must be a list of names, got 'fell'"),
        ({"env": "FrozenLake-v1", "failure_modes": ["fell", ""]}, "must be a list of names"),
        ({"env": "FrozenLake-v1", "render": "nowhere:f"}, 'render = "nowhere:f"'),
        ({"env": "Blackjack-v1", "render": "observation"}, "set max_steps"),
        ({"env": "Pendulum-v1", "render": "observation"}, "which is not Discrete"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        GymnasiumSuite(**settings)


def test_failure_modes_are_for_role_agent() -> None:
    words = ["--suite.name=custom", "--suite.object=gongfu.envs.gymnasium:GymnasiumSuite", "--suite.args.env=FrozenLake-v1"]
    words += ["--method.name=role_agent"]
    for given in ([], ["--suite.args.failure_modes=['fell into a hole', 'walked in circles']"]):
        recipe = load(Recipe, overrides=[*words, *given]).config
        suite = build_suite(recipe.suite)
        if given:
            check_offers(recipe.method, suite)
            assert suite.failure_modes == ("fell into a hole", "walked in circles")  # type: ignore[attr-defined]
        else:
            with pytest.raises(ConfigError, match="names no failure modes"):
                check_offers(recipe.method, suite)


def test_unknown_splits() -> None:
    with pytest.raises(TaskError, match="no split 'unseen'; did you mean 'seen'"):
        GymnasiumSuite(**LAKE).tasks("unseen")


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtra, match=r'pip install "gongfu\[gymnasium\]"'):
        GymnasiumSuite(**LAKE)


def test_a_recipe_makes_the_suite() -> None:
    words = ["--suite.name=custom", "--suite.object=gongfu.envs.gymnasium:GymnasiumSuite", "--suite.args.env=CliffWalking-v1"]
    suite = build_suite(load(Recipe, overrides=[*words, "--suite.args.max_steps=40"]).config.suite)
    assert isinstance(suite, GymnasiumSuite) and suite.max_steps == 40
    with pytest.raises(ConfigError, match=r"could not be made with suite.args"):
        build_suite(load(Recipe, overrides=[*words, "--suite.args.max_step=40"]).config.suite)
