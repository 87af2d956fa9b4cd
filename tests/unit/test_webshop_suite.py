"""The WebShop suite: conformance, splits, the generated shop, the scripted buyer, settings, and what it refuses."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import pytest

from gongfu.cli.recipe import load_recipe
from gongfu.config.suites import WebShopConfig
from gongfu.core import from_json, rng_for, to_json
from gongfu.core.errors import ConfigError, TaskError
from gongfu.core.records import Task
from gongfu.envs.check import check
from gongfu.envs.protocol import Suite
from gongfu.envs.webshop import WebShopSuite
from gongfu.envs.webshop.reward import judge
from gongfu.envs.webshop.wares import UNSEEN, WARES
from gongfu.envs.webshop.words import alike, same_color
from gongfu.run.build import build_suite
from webshop_records import HOODIE, write_files

SMALL = {"products": 240, "sizes": {"train": 60, "seen": 30, "unseen": 30}}


@pytest.fixture(scope="module")
def suite():
    return WebShopSuite(**SMALL)


def buyer(suite, task, noise=0.0):
    return suite.expert(task, rng_for(0, purpose="buyer", task=task.id), noise=noise)


def play(suite, task, noise=0.0):
    """The steps of the scripted buyer's episode, its actions and whether it chose them itself."""
    env, expert = suite.make(task), buyer(suite, task, noise)
    observation, steps, actions = env.reset(), [], []
    while not steps or not (steps[-1].terminated or steps[-1].truncated):
        actions.append(expert.act(observation))
        if not expert.explored:
            assert actions[-1] in observation.actions or actions[-1].startswith("search[")
        steps.append(env.step(actions[-1]))
        observation = steps[-1].observation
    return steps, actions


@pytest.mark.parametrize(
    "settings", [{}, {"observation": "text_rich", "queries": 0}, {"observation": "brief", "show_chosen": True}]
)
def test_conforms_to_the_protocol(settings):
    suite = WebShopSuite(**SMALL, **settings)
    assert isinstance(suite, Suite)
    report = check(suite, episodes=4, expert=lambda task: buyer(suite, task))
    assert report.ok and report.ended and not report.unchecked


def test_official_files_conform_too(tmp_path):
    suite = WebShopSuite(**write_files(tmp_path), sizes={"test": 1, "dev": 0})
    assert check(suite, splits=("train", "test"), expert=lambda task: buyer(suite, task)).ok


@pytest.mark.parametrize(
    "settings", [{}, {"observation": "brief", "results_per_page": 4}, {"observation": "text_rich", "queries": 0}]
)
def test_the_buyer_reaches_the_full_reward(settings):
    suite = WebShopSuite(**SMALL, **settings)
    tasks = [task for split in suite.splits for task in suite.tasks(split)]
    assert len(tasks) == 120
    played = [play(suite, task)[0] for task in tasks]
    assert [steps[-1].score for steps in played] == [1.0] * 120
    assert all(steps[-1].outcome == "success" and steps[-1].reward == 1.0 for steps in played)


def test_the_buyer_recovers_from_noise(suite):
    noisy = [play(suite, task, noise=0.25)[0] for task in suite.tasks("train")]
    assert len({len(steps) for steps in noisy}) > 4
    assert sum(steps[-1].score == 1.0 for steps in noisy) > 35  # the others bought too early
    assert any(steps[-1].score < 1 for steps in noisy)


def test_the_buyer_needs_no_product_told_but_in_official_shops(suite, tmp_path):
    """It buys what fits first, which is not always the product that the wish was written for."""
    others = 0
    for task in suite.tasks("train"):
        bought = [a for a in play(suite, task)[1] if a.startswith("click[b0")][-1]
        others += bought != f"click[{task.payload['asin'].lower()}]"
    assert others > 3
    official = WebShopSuite(**write_files(tmp_path), sizes={"test": 2, "dev": 0})
    for task in official.tasks("test"):
        steps, actions = play(official, task)
        assert steps[-1].score == 1.0 and f"click[{task.payload['asin'].lower()}]" in actions


def test_tasks_are_named_distinct_and_stable(suite):
    tasks = suite.tasks("train")
    assert tasks[7].id == "webshop/train/00007" and tasks[7].kind == "webshop"
    assert len({task.goal for split in suite.splits for task in suite.tasks(split)}) == 120
    assert [*WebShopSuite(**SMALL).tasks("train")] == [*tasks]
    assert [*WebShopSuite(**SMALL, seed=1).tasks("train")] != [*tasks]
    longer = WebShopSuite(products=240, sizes={"train": 90})
    assert [*longer.tasks("train")[:60]] == [*tasks]


def test_splits_keep_products_and_kinds_apart(suite):
    wished = {split: [suite.goal(task).product for task in suite.tasks(split)] for split in suite.splits}
    kinds = {split: {product.query for product in products} for split, products in wished.items()}
    assert {p.asin for p in wished["train"]}.isdisjoint({p.asin for p in wished["seen"]})
    assert kinds["seen"] <= {ware.name for ware in WARES} and kinds["train"] <= {ware.name for ware in WARES}
    assert kinds["unseen"] == {ware.name for ware in UNSEEN}
    assert kinds["unseen"].isdisjoint(kinds["train"])


def test_a_task_travels_through_json(suite):
    task = suite.tasks("unseen")[4]
    again = from_json(Task, json.loads(json.dumps(to_json(task))))
    assert again == task
    assert WebShopSuite(**SMALL).make(again).reset() == suite.make(task).reset()
    assert pickle.loads(pickle.dumps(suite)).make(task).reset() == suite.make(task).reset()


def test_instructions_say_what_is_rewarded(suite):
    for task in suite.tasks("train"):
        goal = suite.goal(task)
        assert goal.product.query in task.goal and f"price lower than {goal.price_cap:.2f} dollars" in task.goal
        assert all(words in task.goal for words in (*goal.attributes, *goal.options))
        assert suite.catalogue.prices[goal.product.asin] < goal.price_cap


def test_titles_say_all_attributes(suite):
    for product in suite.catalogue.products:
        assert len(product.attributes) == 3 and all(words in product.name.lower() for words in product.attributes)
        assert product.query in product.name.lower() and len(product.asin) == 10


def test_a_wrong_choice_costs_something(suite):
    """No decoy among the values or the attributes of a kind passes for another one."""
    for ware in (*WARES, *UNSEEN):
        for values in (*ware.options.values(),):
            pairs = [(a, b) for a in values for b in values if a != b and alike(same_color(a), same_color(b))]
            assert not pairs, (ware.name, pairs)
        assert not [(a, b) for a in ware.attributes for b in ware.attributes if a != b and alike(a, b)]
        assert len(ware.attributes) == len(set(ware.attributes)) == 6
    scores = Counter()
    for task in suite.tasks("train"):
        goal = suite.goal(task)
        scores[judge(goal.product, 0.0, [], goal).reward == 1.0] += 1
    assert scores == {False: 60}


def test_a_random_buyer_fails(suite):
    won = 0
    for task in suite.tasks("train"):
        env, rng = suite.make(task), rng_for(0, purpose="random", task=task.id)
        observation, step = env.reset(), None
        while step is None or not (step.terminated or step.truncated):
            step = env.step(rng.choice(observation.actions))
            observation = step.observation
        won += step.outcome == "success"
    assert won < 12


def test_official_splits(tmp_path):
    files = write_files(tmp_path)
    synthetic = WebShopSuite(files["items"], files["attributes"], sizes={"test": 2, "dev": 1})
    assert synthetic.splits == ("train", "dev", "test")
    assert [len(synthetic.tasks(split)) for split in synthetic.splits] == [2, 1, 2]
    assert synthetic.tasks("dev")[0].id == "webshop/dev/00000"
    human = WebShopSuite(**files)
    assert len(human.tasks("test")) == 2 and any("red hoodie" in task.goal for task in human.tasks("test"))
    with pytest.raises(TaskError, match="split 'train' has no tasks") as caught:
        human.tasks("train")
    assert "of 2 goals the first 500 are test's (suite.test), the next 1000 dev's (suite.dev)" in str(caught.value)
    assert "so test has 2, dev 0 and train 0; left out were 2 instructions of" in str(caught.value)
    assert "(1 without attributes, 1 of products that items does not hold)" in str(caught.value)


def test_what_the_files_lose_is_said_once(tmp_path, caplog):
    files = write_files(tmp_path)
    items = json.loads((tmp_path / "items.json").read_text())
    (tmp_path / "items.json").write_text(json.dumps([*items, items[0]]))
    said = json.loads((tmp_path / "instructions.json").read_text())
    said[HOODIE].append({"instruction": "x", "instruction_attributes": ["a"], "instruction_options": ["red", "huge"]})
    said[HOODIE].append({"instruction": "x", "instruction_attributes": ["a"], "instruction_options": ["black"]})  # is offered
    (tmp_path / "instructions.json").write_text(json.dumps(said))
    for _ in range(2):
        assert len(WebShopSuite(**files, sizes={"test": 1, "dev": 0}).tasks("train")) == 3
    lost, unmet = (record.getMessage() for record in caplog.records)
    assert lost == (
        f"WebShop: left out were 1 items of {files['items']} (1 whose asin an earlier one has) and 2 instructions of "
        f"{files['instructions']} (1 without attributes, 1 of products that items does not hold); 4 goals are left"
    )
    assert unmet.startswith("WebShop: 1 of 4 goals of ") and "name an option that their product" in unmet


def test_whole_files_are_read_without_a_word(tmp_path, caplog):
    files = write_files(tmp_path)
    assert WebShopSuite(files["items"], files["attributes"]).tasks("test") and not caplog.records


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"products": 50}, "at least 96 products"),
        ({"observation": "html"}, "no observation 'html'"),
        ({"score": "half"}, "'reward' or 'success'"),
        ({"queries": -1}, "queries=-1"),
        ({"results_per_page": 0}, "results_per_page=0"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"sizes": {"tarin": 1}}, "did you mean 'train'"),
        ({"sizes": {"train": -1}}, "cannot be -1"),
        ({"items": "x.json"}, "need their attributes"),
        ({"instructions": "x.json"}, "belong to items"),
        ({"items": "none.json", "attributes": "none.json"}, "cannot be read"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(TaskError, match=message):
        WebShopSuite(**settings)


def test_unknown_empty_and_exhausted_splits(tmp_path):
    suite = WebShopSuite(products=96, sizes={"seen": 0, "unseen": 100_000})
    with pytest.raises(TaskError, match=r"no split 'dev'; did you mean 'seen'\? It has train, seen, unseen"):
        suite.tasks("dev")
    with pytest.raises(TaskError, match=r"has no tasks: its size is 0 \(suite\.seen\)"):
        suite.tasks("seen")
    with pytest.raises(TaskError, match="ask for fewer tasks or more products"):
        suite.tasks("unseen")
    files = write_files(tmp_path)
    (tmp_path / "instructions.json").write_text("{}")
    with pytest.raises(TaskError, match=r"none of the products .* can be played$"):
        WebShopSuite(**files)


def test_foreign_tasks(suite):
    with pytest.raises(TaskError, match="does not describe a WebShop goal"):
        suite.make(Task("x", "webshop", "webshop", "a hat", "train"))
    payload = {"asin": "B0", "attributes": ["a"], "options": [], "price_cap": 10.0}
    with pytest.raises(TaskError, match="'B0' is not in this catalogue of 240"):
        suite.make(Task("x", "webshop", "webshop", "a hat", "train", payload=payload))


def recipe(*words):
    return load_recipe(["--suite.name=webshop", *words]).config


def test_a_recipe_makes_the_suite(tmp_path):
    made = build_suite(
        recipe("--suite.products=240", "--suite.train=7", "--suite.observation=brief", "--suite.max-steps=9").suite
    )
    assert isinstance(made, WebShopSuite) and made.max_steps == 9 and len(made.tasks("train")) == 7
    assert len(made.catalogue.products) == 240 and "SEP" not in made.make(made.tasks("train")[0]).reset().text
    files = [f"--suite.{name}={path}" for name, path in write_files(tmp_path).items()]
    official = build_suite(recipe(*files, "--suite.test=1", "--suite.dev=0", "--suite.score=success").suite)
    assert official.splits == ("train", "dev", "test") and len(official.tasks("train")) == 1


GIGPO = Path(__file__).resolve().parents[2] / "recipes" / "gigpo"


def test_a_layer_above_a_recipe_changes_its_shop():
    """What belongs to the other kind of shop is dropped; nothing has to be typed for it."""
    generated = load_recipe([f"@{GIGPO / 'webshop-nano.toml'}", "--suite.items=x", "--suite.attributes=y"]).config.suite
    assert generated == WebShopConfig(**generated.model_dump(exclude={"products", "train", "seen", "unseen"}))
    assert generated.items == "x" and generated.observation == "brief"
    official = load_recipe([f"@{GIGPO / 'webshop-qwen2.5-7b.toml'}", "--suite.items="]).config.suite
    assert (official.items, official.attributes, official.dev, official.score) == ("", "", 1000, "success")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite.items=x.json"], "needs the file of their attributes"),
        (["--suite.instructions=x.json", "--suite.dev=3"], "instructions, dev belong to official items"),
        (
            ["--suite.items=x", "--suite.attributes=y", "--suite.seen=5"],
            "seen describe a generated shop.* later file or on the command line",
        ),
        (["--suite.seen=5", "--suite.items=x", "--suite.attributes=y"], "seen describe a generated shop"),
        (["--suite.queries=0", "--rollout.mode=choose"], "writes no search of its own"),
        (["--suite.results-per-page=0"], "results_per_page"),
        (["--suite.observation=html"], "observation"),
        (["--suite.kinds=1"], "kinds"),
    ],
)
def test_recipes_that_cannot_be(words, message):
    with pytest.raises(ConfigError, match=message):
        recipe(*words)
