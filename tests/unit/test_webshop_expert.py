"""What the scripted buyer does, click by click, in shops made for the purpose."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gongfu.core.errors import TaskError
from gongfu.envs.protocol import Observation
from gongfu.envs.webshop import WebShopExpert
from gongfu.envs.webshop.catalogue import Catalogue
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.shop import Settings, Shop, WebShopEnv
from webshop_records import HOODIE, product

RED = replace(product(HOODIE), asin="B000000009", query="hoodie", name="Norvane Hoodie Long Sleeve", prices=(24.99,))
BLUE = replace(RED, asin="B000000008", options={"color": ("blue",)})
DEAR = replace(RED, asin="B000000007", prices=(50.0,))
SHORT = replace(RED, asin="B000000006", name="Norvane Hoodie Short Sleeve")
COAT = replace(RED, asin="B000000005", name="Norvane Coat Long Sleeve")
WISH = Goal(RED, "i need a hoodie with long sleeve, and price lower than 40.00 dollars", ("long sleeve",), ("red",), 40.0)
QUERY = "search[hoodie long sleeve]"


def played(*products, expert=None, **settings):
    env = WebShopEnv(Shop(Catalogue(products)), WISH, Settings(**settings))
    expert = expert or WebShopExpert(WISH, random.Random(0))
    observation, actions, step = env.reset(), [], None
    while step is None or not (step.terminated or step.truncated):
        actions.append(expert.act(observation))
        step = env.step(actions[-1])
        observation = step.observation
    return actions, step.reward


def test_what_does_not_fit_by_title_or_price_is_not_opened():
    actions, reward = played(COAT, SHORT, DEAR, RED)
    assert actions == [QUERY, "click[b000000009]", "click[red]", "click[buy now]"] and reward == 1.0


def test_what_lacks_the_option_is_left_for_good():
    actions, reward = played(BLUE, RED)
    assert actions == [QUERY, "click[b000000008]", "click[< prev]", "click[b000000009]", "click[red]", "click[buy now]"]
    assert reward == 1.0


def test_it_turns_pages_and_then_tries_another_query():
    actions, _ = played(DEAR, SHORT, RED, results_per_page=1)
    assert actions[:2] == [QUERY, "click[next >]"] and actions[-1] == "click[buy now]"
    actions, reward = played(DEAR, SHORT, COAT, max_steps=12)
    assert actions[:4] == [QUERY, "click[next >]", "click[back to search]", "search[hoodie]"] and reward == 0.0


def test_when_told_it_buys_that_product_whatever_the_title():
    wish = replace(WISH, product=SHORT)
    actions, _ = played(RED, SHORT, expert=WebShopExpert(wish, random.Random(0), told=True))
    assert actions[1] == "click[b000000006]"


class Noise(random.Random):
    """Noise at the given steps, and what is done then."""

    def __init__(self, at: dict[int, str]) -> None:
        super().__init__(0)
        self.at, self.step = at, -1

    def random(self) -> float:
        self.step += 1
        return 0.0 if self.step in self.at else 1.0

    def choice(self, seq):
        assert self.at[self.step] in seq
        return self.at[self.step]


def test_a_choice_taken_back_by_noise_is_made_again():
    expert = WebShopExpert(WISH, Noise({3: "click[dark navy | black]"}), noise=0.5)
    actions, reward = played(RED, expert=expert)
    assert actions[2:] == ["click[red]", "click[dark navy | black]", "click[red]", "click[buy now]"] and reward == 1.0


def test_it_finds_back_from_other_pages():
    expert = WebShopExpert(WISH, Noise({2: "click[features]", 4: "click[back to search]"}), noise=0.5)
    actions, reward = played(RED, expert=expert)
    assert actions[2:5] == ["click[features]", "click[< prev]", "click[back to search]"] and reward == 1.0
    expert = WebShopExpert(WISH, Noise({1: "click[b000000007]"}), noise=0.5)
    actions, reward = played(RED, DEAR, expert=expert)
    assert actions[1:4] == ["click[b000000007]", "click[< prev]", "click[b000000009]"] and reward == 1.0


def test_what_it_needs():
    with pytest.raises(TaskError, match="needs the admissible actions"):
        WebShopExpert(WISH, random.Random(0)).act(Observation("a page"))
    with pytest.raises(ValueError, match="probability"):
        WebShopExpert(WISH, random.Random(0), noise=2.0)
