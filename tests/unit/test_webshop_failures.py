"""Failure modes of shopping episodes, each played on the site."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gongfu.core.records import Task, Trajectory, Turn, Validity
from gongfu.envs.webshop.catalogue import Catalogue
from gongfu.envs.webshop.failures import FAILURE_MODES, diagnose
from gongfu.envs.webshop.goals import Goal
from gongfu.envs.webshop.shop import Settings, Shop, WebShopEnv
from gongfu.envs.webshop.suite import WebShopSuite
from webshop_records import HOODIE, product

RED = replace(
    product(HOODIE),
    asin="B000000009",
    query="hoodie",
    name="Norvane Hoodie Long Sleeve",
    prices=(24.99,),
    options={"color": ("red", "blue"), "size": ("large", "small")},
)
DEAR = replace(RED, asin="B000000007", prices=(50.0,))
SHORT = replace(RED, asin="B000000006", name="Norvane Hoodie Short Sleeve", attributes=(), bullets=(), description="")
COAT = replace(SHORT, asin="B000000005", query="coat", name="Camel Coat", product_category="Coats")
CATALOGUE = Catalogue((RED, DEAR, SHORT, COAT))
WISH = Goal(RED, "i need a hoodie with long sleeve", ("long sleeve",), ("red", "large"), 40.0)
FIND, OPEN, BUY = "search[hoodie]", "click[b000000009]", "click[buy now]"
BACK = "click[back to search]"


def env(**settings) -> WebShopEnv:
    return WebShopEnv(Shop(CATALOGUE), WISH, Settings(**{"max_steps": 20, **settings}))


def failed(*actions: str, format: bool = True, stop: str = "", **settings) -> Trajectory:
    """The episode of these actions; it ends by a purchase, or by the limit of steps."""
    site, turns, last = env(**settings), [], None
    observation = site.reset()
    for action in actions:
        turns.append(Turn(observation.text, observation.actions, None, action, Validity(format, True), 0.0))
        last = site.step(action)
        observation = last.observation
    ended = "terminated" if last and last.terminated else "truncated"
    assert not last or last.reward < 1
    task = Task("t", "webshop", "webshop", WISH.instruction, "train")
    return Trajectory("e", task, "g", (), tuple(turns), observation.text, "failure", 0.0, stop or ended)


@pytest.mark.parametrize(
    ("mode", "actions"),
    [
        ("premature_purchase", (FIND, OPEN, BUY)),
        ("missing_attribute_selection", (FIND, OPEN, "click[red]", BUY)),
        ("wrong_attribute_selection", (FIND, OPEN, "click[red]", "click[small]", BUY)),
        ("price_constraint_violation", (FIND, "click[b000000007]", "click[red]", "click[large]", BUY)),
        ("wrong_product_selection", (FIND, "click[b000000006]", "click[red]", "click[large]", BUY)),
        ("irrelevant_query", ("search[coat]", "click[b000000005]", BUY)),
        ("irrelevant_query", ("search[coat]",)),
        ("repeated_query", (FIND, BACK, FIND, BACK, FIND)),
        ("navigation_error", (FIND, "click[red]", "click[large]")),
        ("navigation_error", ("click[buy now]",)),
        ("wrong_product_selection", (FIND, "click[b000000006]")),
        ("excessive_browsing", (FIND, OPEN, "click[description]")),
    ],
)
def test_what_was_done_decides_the_mode(mode, actions):
    assert diagnose(failed(*actions), env(), WISH, CATALOGUE) == mode


@pytest.mark.parametrize("form", ["text", "text_rich", "brief"])
@pytest.mark.parametrize("show_chosen", [False, True])
@pytest.mark.parametrize(
    ("mode", "actions"),
    [
        ("excessive_browsing", (FIND, OPEN, "click[red]", "click[large]")),
        ("navigation_error", ("click[x]", "click[x]", FIND, OPEN)),
        ("missing_attribute_selection", (FIND, OPEN, "click[red]", "click[buy now] please")),
    ],
)
def test_what_the_pages_show_of_a_choice_decides_nothing(mode, actions, form, show_chosen):
    settings = {"form": form, "show_chosen": show_chosen, "max_steps": len(actions)}
    assert diagnose(failed(*actions, **settings), env(**settings), WISH, CATALOGUE) == mode


def test_the_form_of_the_answers_comes_first():
    assert diagnose(failed(FIND, OPEN, format=False), env(), WISH, CATALOGUE) == "action_format_error"


def test_a_visit_that_ended_by_no_rule_of_the_site():
    assert diagnose(failed(FIND, OPEN, stop="context"), env(), WISH, CATALOGUE) == "premature_termination"


def test_the_suite_tells_why_an_episode_of_its_own_failed():
    suite = WebShopSuite(products=96, sizes={"train": 5})
    task = suite.tasks("train")[0]
    site = suite.make(task)
    observation = site.reset()
    turn = Turn(observation.text, observation.actions, None, "click[buy now]", Validity(True, False), 0.0)
    after = site.step(turn.action).observation
    episode = Trajectory("e", task, "g", (), (turn,), after.text, "failure", 0.0, "truncated")
    assert suite.diagnose(episode) == "navigation_error"
    assert len(set(suite.failure_modes)) == len(FAILURE_MODES) == 11
