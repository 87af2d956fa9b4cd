"""Every page of WebShop, what can be clicked on it, and how an episode moves between them."""

from __future__ import annotations

import pytest

from gongfu.envs.webshop.shop import parse
from webshop_records import HOODIE, LAMP, SHIRT, visit

GOAL = "i need a red hoodie with long sleeve, and price lower than 40.00 dollars"
HEAD = f"Instruction: [SEP] {GOAL} [SEP] Back to Search"
RESULTS = (
    f"{HEAD} [SEP] Page 1 (Total results: 3) [SEP] Next > [SEP] {HOODIE} [SEP] Norvane Hoodie Men Pullover [SEP] $24.99 "
    f"[SEP] {SHIRT} [SEP] Norvane Shirt Men [SEP] $10.00 to $20.00"
)
ITEM = (
    f"{HEAD} [SEP] < Prev [SEP] color [SEP] red [SEP] dark navy | black [SEP] size [SEP] small [SEP] large "
    "[SEP] Norvane Hoodie Men Pullover [SEP] Price: $24.99 [SEP] Rating: N.A. "
    "[SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"
)
ITEM_CLICKS = {
    *("back to search", "< prev", "red", "dark navy | black", "small", "large"),
    *("description", "features", "reviews", "buy now"),
}


def play(env, *actions):
    """The last step; the first is the opening page's."""
    env.reset()
    return [env.step(action) for action in actions][-1]


def clicks(observation):
    return {action.removeprefix("click[").removesuffix("]") for action in observation.actions}


def at(*actions, **settings):
    return play(visit(results_per_page=2, **settings), *actions).observation


def test_the_start_page():
    start = visit().reset()
    assert start.text == f"WebShop [SEP] Instruction: [SEP] {GOAL} [SEP] Search"
    assert start.actions == ("search[long sleeve hoodie]", "search[red hoodie long sleeve]", "search[red hoodie]")
    assert visit(queries=1).reset().actions == ("search[red hoodie long sleeve]",)
    assert visit(queries=0).reset().actions == ("search[<your query>]",)


def test_the_results():
    first = at("search[norvane hoodie]")
    assert first.text == RESULTS
    assert clicks(first) == {"back to search", "next >", HOODIE.lower(), SHIRT.lower()}
    second = at("search[norvane hoodie]", "click[next >]")
    assert second.text.startswith(
        f"{HEAD} [SEP] Page 2 (Total results: 3) [SEP] < Prev [SEP] Next > [SEP] {LAMP} [SEP] Glass Lamp"
    )
    assert second.text.endswith("[SEP] $1010.50")
    assert clicks(second) == {"back to search", "< prev", "next >", LAMP.lower()}
    third = at("search[norvane hoodie]", "click[next >]", "click[next >]")
    assert third.text == f"{HEAD} [SEP] Page 3 (Total results: 3) [SEP] < Prev [SEP] Next >"
    assert at("search[norvane hoodie]", "click[next >]", "click[< prev]").text == RESULTS
    assert at("search[zebra]").text == f"{HEAD} [SEP] Page 1 (Total results: 0) [SEP] Next >"


def test_an_item():
    item = at("search[norvane hoodie]", f"click[{HOODIE.lower()}]")
    assert item.text == ITEM
    assert clicks(item) == ITEM_CLICKS
    shown = at("search[norvane hoodie]", f"click[{HOODIE.lower()}]", show_attributes=True)
    assert clicks(shown) == ITEM_CLICKS | {"attributes"}
    assert "Reviews [SEP] Attributes [SEP] Buy Now" in shown.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("description", " [SEP] A description."),
        ("features", " [SEP] Made of cotton. [SEP] Machine wash cold."),
        ("reviews", ""),
        ("attributes", " [SEP] long sleeve [SEP] slim fit"),
    ],
)
def test_sub_pages(name, text):
    path = ("search[norvane hoodie]", f"click[{HOODIE.lower()}]", f"click[{name}]")
    page = at(*path, show_attributes=True)
    assert page.text == f"{HEAD} [SEP] < Prev{text}"
    assert clicks(page) == {"back to search", "< prev"}
    assert at(*path, "click[< prev]", show_attributes=True).text.startswith(f"{HEAD} [SEP] < Prev [SEP] color")
    assert at(*path, "click[back to search]", show_attributes=True).text.startswith("WebShop")


def test_attributes_have_no_page_unless_asked_for():
    assert at("search[norvane hoodie]", f"click[{HOODIE.lower()}]", "click[attributes]").text == ITEM


def test_back_from_an_item_to_its_page_of_results():
    path = ("search[norvane hoodie]", "click[next >]", f"click[{LAMP.lower()}]")
    assert at(*path, "click[< prev]").text.startswith(f"{HEAD} [SEP] Page 2 ")
    assert at(*path, "click[back to search]").text.startswith("WebShop")


def test_buying_ends_with_the_score():
    path = ("search[norvane hoodie]", f"click[{HOODIE.lower()}]")
    env = visit()
    step = play(env, *path, "click[red]", "click[buy now]")
    assert (step.reward, step.score, step.outcome, step.terminated, step.truncated) == (1.0, 1.0, "success", True, False)
    assert step.observation.text == "Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0"
    assert step.observation.actions is None
    with pytest.raises(RuntimeError, match="over"):
        env.step("click[back to search]")
    poor = play(visit(), *path, "click[buy now]")
    assert (poor.reward, poor.score, poor.outcome) == (pytest.approx(2 / 3), pytest.approx(2 / 3), "failure")
    assert poor.observation.text.endswith("[SEP] 0.6667")
    strict = play(visit(score="success"), *path, "click[buy now]")
    assert (strict.reward, strict.score, strict.outcome) == (pytest.approx(2 / 3), 0.0, "failure")
    assert play(visit(score="success"), *path, "click[red]", "click[buy now]").score == 1.0


@pytest.mark.parametrize(
    ("between", "reward"),
    [
        (["click[dark navy | black]", "click[red]"], 1.0),  # the last click on an option wins
        (["click[red]", "click[dark navy | black]"], 2 / 3),
        (["click[red]", "click[small]"], 1.0),  # another option stays out of it
        (["click[red]", "click[features]", "click[< prev]"], 1.0),  # a sub page keeps the choice
        (["click[red]", "click[< prev]", f"click[{HOODIE.lower()}]"], 2 / 3),  # results clear it
        (["click[red]", "click[back to search]", "search[norvane hoodie]", f"click[{HOODIE.lower()}]"], 2 / 3),
    ],
)
def test_choices(between, reward):
    step = play(visit(), "search[norvane hoodie]", f"click[{HOODIE.lower()}]", *between, "click[buy now]")
    assert step.reward == pytest.approx(reward)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "buy",
        "search",
        "search[]",
        "click[]",
        "click[buy now",
        "click[blue]",
        "Click[red]",
        "search[tea]",
        "click[search]",
        "[red]",
    ],
)
def test_what_cannot_be_done_changes_nothing(action):
    path = ("search[norvane hoodie]", f"click[{HOODIE.lower()}]")
    step = play(visit(results_per_page=2), *path, action)
    assert step.observation.text == ITEM and step.reward == 0.0 and not step.terminated and step.outcome is None


def test_the_search_button_alone_does_nothing():
    env = visit()
    assert play(env, "click[search]").observation == env.reset()
    assert play(visit(), "click[buy now]").observation.text.startswith("WebShop")


def test_clicks_and_searches_ignore_case():
    assert at("search[NORVANE Hoodie]", f"click[{HOODIE}]", "click[Features]").text.endswith("Machine wash cold.")


@pytest.mark.parametrize(
    ("action", "parsed"),
    [
        ("search[red hoodie]", ("search", "red hoodie")),
        ("click[[a] b]", ("click[", "a] b")),
        ("click[a]]", ("click", "a]")),
        ("click[a] please", ("click", "a")),
        ("click[a\nb]", ("", "")),
        ("[a]", ("", "")),
        ("a[]", ("", "")),
        ("a]b[", ("", "")),
        ("", ("", "")),
    ],
)
def test_actions_are_read_as_the_original_does(action, parsed):
    import re

    found = re.match(r"(.+)\[(.+)\]", action)
    assert parse(action) == parsed == (found.groups() if found else ("", ""))


def test_the_steps_run_out():
    env = visit(max_steps=3)
    last = play(env, "nonsense", "search[norvane]", "click[next >]")
    assert (last.truncated, last.terminated, last.outcome, last.score) == (True, False, "failure", 0.0)
    with pytest.raises(RuntimeError, match="over"):
        env.step("click[< prev]")
    # what is bought with the last step counts
    path = ("search[norvane hoodie]", f"click[{HOODIE.lower()}]", "click[red]", "click[buy now]")
    assert play(visit(max_steps=4), *path).outcome == "success"


def test_rich_text():
    path = ("search[norvane hoodie]", f"click[{HOODIE.lower()}]", "click[red]", "click[large]")
    lines = at(*path, form="text_rich").text.split("\n")
    assert lines[:5] == [
        "You have clicked large.",
        "You have clicked red.",
        "Instruction:",
        GOAL,
        "[button] Back to Search [button_]",
    ]
    assert "[clicked button] red [clicked button_]" in lines and "[button] small [button_]" in lines
    assert lines[-1] == "[button] Buy Now [button_]" and "Price: $24.99" in lines and "color" in lines
    results = at(*path, "click[< prev]", form="text_rich").text.split("\n")
    assert f"[clicked button] {HOODIE} [clicked button_]" in results and f"[button] {SHIRT} [button_]" in results
    assert results[0] == "Instruction:"


def test_brief_text():
    env = visit(form="brief", results_per_page=2)
    assert env.reset().text == f"WebShop\nInstruction: {GOAL}"
    path = ("search[norvane hoodie]", f"click[{HOODIE.lower()}]")
    assert at("search[norvane hoodie]", form="brief").text == (
        f"page 1 (total results: 3)\n{HOODIE.lower()} norvane hoodie men pullover $24.99\n"
        f"{SHIRT.lower()} norvane shirt men $10.00 to $20.00"
    )
    item = "color: red, dark navy | black\nsize: small, large\nnorvane hoodie men pullover, price: $24.99, rating: n.a."
    assert at(*path, form="brief").text == item
    assert at(*path, form="brief", show_chosen=True).text == f"{item}\nChosen: nothing"
    assert (
        at(*path, "click[large]", "click[red]", form="brief", show_chosen=True).text
        == f"{item}\nChosen: color: red, size: large"
    )
    assert at(*path, "click[back to search]", form="brief").text == "webshop"
    assert "Chosen" not in at(*path, "click[red]", "click[buy now]", show_chosen=True).text
    assert "Chosen" not in at(*path, "click[red]", "click[< prev]", show_chosen=True).text
    assert at(*path, "click[red]", show_chosen=True).text == f"{ITEM} [SEP] Chosen: color: red"


def test_only_fifty_results_are_shown():
    from gongfu.envs.webshop import WebShopSuite

    suite = WebShopSuite(products=240)
    env = suite.make(suite.tasks("train")[0])
    assert "(Total results: 50)" in env.step("search[made for]").observation.text
