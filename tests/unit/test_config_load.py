"""The configuration loader on small models of its own."""

from __future__ import annotations

import enum
import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gongfu.config import toml
from gongfu.config.load import load, to_toml
from gongfu.config.section import Section as SectionOfRecipes
from gongfu.core.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Optim(Section):
    lr: float = Field(1e-4, gt=0)
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)


class Grpo(Section):
    name: Literal["grpo"] = "grpo"
    std: Literal["unbiased", "none"] = "unbiased"
    group_size: int = Field(8, gt=0)


class Ppo(Section):
    name: Literal["ppo", "ppo2"] = "ppo"
    lam: float = 0.95
    group_size: int = 1


class Stage(Section):
    steps: int
    note: str = ""


Method = Annotated[Grpo | Ppo, Field(discriminator="name")]


class Recipe(Section):
    title: str = "run"
    folder: Path = Path("runs")
    fast: bool = True
    color: Color = Color.RED
    clip: float | None = 3.0
    limit: int | Literal["auto"] = "auto"
    tags: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset()
    optim: Optim = Optim(warmup_steps=5)
    critic: Optim | None = None
    method: Method = Grpo(group_size=4)
    weights: dict[str, float] = Field(default_factory=lambda: {"actor": 1.0})
    roles: dict[str, Optim] = Field(default_factory=dict)
    stages: list[Stage] = Field(default_factory=list)
    extra: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if self.title == "forbidden":
            raise ValueError("title must not be forbidden")
        return self


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def overridden(*words: str) -> Recipe:
    return load(Recipe, overrides=words).config


def problem(*words: str, files: tuple[Path, ...] = (), environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Recipe, files, words, environ)
    return str(caught.value)


def test_nothing_given_is_the_default():
    loaded = load(Recipe)
    assert loaded.config == Recipe()
    assert set(loaded.origins.values()) == {"default"}
    assert {"optim.lr", "method.name", "weights.actor", "critic"} <= loaded.origins.keys()


def test_precedence_and_origins(tmp_path):
    write(tmp_path, "shared/base.toml", 'title = "base"\nclip = 1.0\ntags = ["a", "b"]\n[optim]\nlr = 1.0\nwarmup_steps = 1\n')
    first = write(tmp_path, "first.toml", 'base = ["shared/base.toml"]\nclip = 2.0\n[optim]\nlr = 2.0\nbetas = [0.1, 0.2]\n')
    second = write(tmp_path, "second.toml", "[optim]\nlr = 3.0\n[weights]\nactor = 2\n")
    environ = {"GONGFU__OPTIM__LR": "4.0", "GONGFU__FAST": "false", "GONGFU_DATA": "elsewhere", "PATH": "/bin"}
    loaded = load(Recipe, [first, second], ["--optim.lr", "5.0"], environ)
    assert loaded.config == Recipe(
        title="base",
        clip=2.0,
        tags=("a", "b"),
        fast=False,
        optim=Optim(lr=5.0, warmup_steps=1, betas=(0.1, 0.2)),
        weights={"actor": 2.0},
    )
    origins = {key: origin for key, origin in loaded.origins.items() if origin != "default"}
    assert origins == {
        "title": str(tmp_path / "shared/base.toml"),
        "tags": str(tmp_path / "shared/base.toml"),
        "optim.warmup_steps": str(tmp_path / "shared/base.toml"),
        "clip": str(first),
        "optim.betas": str(first),
        "weights.actor": str(second),
        "fast": "environment variable GONGFU__FAST",
        "optim.lr": "override --optim.lr",
    }
    assert load(Recipe, [first, second], environ=environ).config.optim.lr == 4.0
    assert load(Recipe, [first, second]).config.optim.lr == 3.0
    assert load(Recipe, [second, first]).config.optim.lr == 2.0


def test_a_base_of_a_later_file_does_not_undo_an_earlier_file(tmp_path):
    write(tmp_path, "base.toml", "clip = 1.0")
    recipe = write(tmp_path, "recipe.toml", 'base = "base.toml"\nclip = 2.0')
    patch = write(tmp_path, "patch.toml", 'base = ["base.toml"]\nfast = false')
    assert load(Recipe, [recipe, patch]).config.clip == 2.0


def test_bases_are_nested_and_later_ones_win(tmp_path):
    write(tmp_path, "a/root.toml", 'title = "root"\nclip = 1.0\nfast = false')
    write(tmp_path, "a/one.toml", 'base = ["root.toml"]\ntitle = "one"\nclip = 2.0')
    write(tmp_path, "two.toml", 'title = "two"')
    top = write(tmp_path, "top.toml", 'base = ["a/one.toml", "two.toml"]')
    config = load(Recipe, [top]).config
    assert (config.title, config.clip, config.fast) == ("two", 2.0, False)


def test_files_that_cannot_be_used(tmp_path):
    write(tmp_path, "a.toml", 'base = ["b.toml"]')
    b = write(tmp_path, "b.toml", 'base = ["a.toml"]')
    assert "each other's base" in problem(files=(b,))
    assert "missing.toml (base of" in problem(files=(write(tmp_path, "c.toml", 'base = ["missing.toml"]'),))
    assert "is not TOML: " in problem(files=(write(tmp_path, "d.toml", "x = = 1"),))
    assert "base must be a list of file names" in problem(files=(write(tmp_path, "e.toml", "base = 3"),))
    assert str(tmp_path) in problem(files=(tmp_path,))


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--optim.warmup-steps", "7"], "optim.warmup_steps", 7),
        (["--optim.warmup_steps=7"], "optim.warmup_steps", 7),
        (["optim.warmup-steps=7"], "optim.warmup_steps", 7),
        (["--optim", "{lr = 2, warmup_steps = 7}"], "optim.warmup_steps", 7),
        (["fast=false"], "fast", False),
        (["optim.betas=[0, 1]"], "optim.betas", (0, 1)),
        (["tags=['a', \"b\"]"], "tags", ("a", "b")),
        (["title=plain words"], "title", "plain words"),
        (["title='quoted'"], "title", "quoted"),
        (["title=a=b"], "title", "a=b"),
        (["title="], "title", ""),
        (["title=2024"], "title", "2024"),
        (["title=1e-3"], "title", "1e-3"),
        (["title=true"], "title", "true"),
        (["title=2024-01-02"], "title", "2024-01-02"),
        (["title=1\nfast = false"], "title", "1\nfast = false"),
        (["title=none"], "title", "none"),
        (["folder=/a/b"], "folder", Path("/a/b")),
        (["color=blue"], "color", Color.BLUE),
        (["clip=none"], "clip", None),
        (["clip=-1"], "clip", -1.0),
        (["--clip", "-1"], "clip", -1.0),
        (["clip=inf"], "clip", math.inf),
        (["limit=3"], "limit", 3),
        (["limit=auto"], "limit", "auto"),
        (["roles.my-role.warmup-steps=7"], "roles.my-role.warmup_steps", 7),
        (["weights.my-role=7"], "weights.my-role", 7),
        (["critic={}"], "critic", Optim()),
        (["critic.lr=3", "critic=none"], "critic", None),
        (["critic=none", "critic.lr=3"], "critic.lr", 3.0),
        (["extra.any.thing=[1, {a = 2}]"], "extra.any.thing", [1, {"a": 2}]),
        (["clip=1", "--clip", "2"], "clip", 2.0),
    ],
)
def test_overrides(words, key, value):
    config: Any = overridden(*words)
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    assert config == value
    assert type(config) is type(value) or isinstance(value, (int, Path))


def test_environment_reads_like_overrides():
    environ = {"GONGFU__OPTIM__WARMUP_STEPS": "7", "GONGFU__TITLE": "2024", "GONGFU__WEIGHTS__ACTOR": "0.5"}
    config = load(Recipe, environ=environ).config
    assert (config.optim.warmup_steps, config.title, config.weights) == (7, "2024", {"actor": 0.5})


def test_defaults_below_a_partly_set_table_stay():
    assert overridden("optim.lr=1").optim == Optim(lr=1.0, warmup_steps=5)
    assert overridden("method.std=none").method == Grpo(std="none", group_size=4)
    assert overridden("method.name=grpo").method == Grpo(group_size=4)
    assert overridden("optim={}").optim == Optim(warmup_steps=5)
    assert overridden("optim.lr=1", "optim={}").optim == Optim(lr=1.0, warmup_steps=5)
    assert overridden("weights.proposer=1").weights == {"proposer": 1.0}


def test_another_variant_keeps_what_fits_it(tmp_path):
    file = write(tmp_path, "r.toml", '[method]\nname = "grpo"\nstd = "none"\ngroup_size = 16\n')
    assert load(Recipe, [file], ["method.name=ppo"]).config.method == Ppo(group_size=16)
    assert overridden("method.name=ppo2", "method.lam=0.5").method == Ppo(name="ppo2", lam=0.5)
    # in one layer, or above the choice, it is a mistake
    both = write(tmp_path, "both.toml", '[method]\nname = "ppo"\nstd = "none"\n')
    for message in (problem(files=(both,)), problem("method.name=ppo", "method.std=none")):
        assert "unknown key method.std" in message
        assert 'belongs to name = "grpo", but name is "ppo", "ppo2" here' in message


class Shop(SectionOfRecipes):
    idle: ClassVar = {"file": lambda file: ("size", "seed") if file else ("test",)}
    file: str = ""
    size: int = 5
    seed: int = 0
    test: int = 500


class Stall(Section):
    shop: Shop = Shop()


def test_what_does_nothing_beside_a_setting_of_a_later_layer_is_dropped(tmp_path):
    generated = write(tmp_path, "generated.toml", "[shop]\nsize = 9\nseed = 1\n")
    official = write(tmp_path, "official.toml", '[shop]\nfile = "x"\ntest = 3\n')
    assert load(Stall, [generated], ["shop.file=x"]).config.shop == Shop(file="x")
    assert load(Stall, [generated, official]).config.shop == Shop(file="x", test=3)
    assert load(Stall, [official], environ={"GONGFU__SHOP__FILE": ""}).config.shop == Shop()
    # what stands above the setting stays, and so does what stands beside it, in any order
    assert load(Stall, [official, generated]).config.shop == Shop(file="x", test=3, size=9, seed=1)
    for words in (["shop.size=9", "shop.file=x"], ["shop.file=x", "shop.size=9"]):
        made = load(Stall, overrides=words).config.shop
        assert made == Shop(file="x", size=9) and made.in_vain("file") == ["size"]


def test_the_command_line_is_one_layer_and_so_is_the_environment():
    assert "unknown key method.lam" in problem(environ={"GONGFU__METHOD__LAM": "1", "GONGFU__METHOD__NAME": "grpo"})
    assert "unknown key method.std" in problem("method.std=none", "method.name=ppo")
    assert overridden("optim.lr=1", "optim.lr=2").optim.lr == 2


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("optimm.lr", "optim.lr"),
        ("optim.warmup", "optim.warmup_steps"),
        ("optim.learning_rate", "optim.lr"),
        ("warmup_steps", "optim.warmup_steps"),
        ("method.lamb", "method.lam"),  # inside a variant that is not chosen
        ("method.groupsize", "method.group_size"),
        ("roles.actor.learning_rate", "roles.actor.lr"),
        ("critic.warmupsteps", "critic.warmup_steps"),
        ("titel", "title"),
    ],
)
def test_unknown_keys_name_their_origin_and_the_nearest_key(tmp_path, unknown, nearest):
    file = write(tmp_path, "r.toml", f"{unknown} = 1")
    assert problem(files=(file,)) == f"unknown key {unknown} (from {file}); the nearest valid key is {nearest}"
    assert f"(from override --{unknown})" in problem(f"--{unknown}", "1")
    name = "GONGFU__" + unknown.upper().replace(".", "__")
    assert f"(from environment variable {name})" in problem(environ={name: "1"})


def test_all_unknown_keys_are_listed_and_a_base_is_named(tmp_path):
    base = write(tmp_path, "base.toml", "[optim]\nlearn = 1")
    file = write(tmp_path, "r.toml", 'base = ["base.toml"]\nfastt = true\n[opt]\nlr = 1\n')
    lines = problem(files=(file,)).splitlines()
    assert lines[0] == "3 problems in the configuration:"
    assert f"optim.learn (from {base})" in "".join(lines)
    assert f"fastt (from {file}); the nearest valid key is fast" in "".join(lines)


def test_unknown_key_inside_a_list_of_tables(tmp_path):
    file = write(tmp_path, "r.toml", "[[stages]]\nsteps = 1\n[[stages]]\nstep = 2\n")
    assert problem(files=(file,)) == f"unknown key stages.1.step (from {file}); the nearest valid key is stages.1.steps"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim.lr=-1"], "optim.lr: should be greater than 0 (value -1 from override --optim.lr)"),
        (["optim.lr=fast"], 'optim.lr: should be a valid number (value "fast" from override --optim.lr)'),
        (
            ["optim.warmup_steps='3'"],
            'optim.warmup_steps: should be a valid integer (value "3" from override --optim.warmup_steps)',
        ),
        (
            ["optim.warmup_steps=true"],
            "optim.warmup_steps: should be a valid integer (value true from override --optim.warmup_steps)",
        ),
        (
            ["optim.warmup_steps=1\nfast = false"],  # more than one value is text
            'optim.warmup_steps: should be a valid integer (value "1\\nfast = false" from override --optim.warmup_steps)',
        ),
        (["fast=1"], "fast: should be a valid boolean (value 1 from override --fast)"),
        (["color=green"], "color: should be 'red' or 'blue' (value \"green\" from override --color)"),
        (["limit=1.5"], "limit: should be a valid integer, or should be 'auto' (value 1.5 from override --limit)"),
        (["optim.betas=[1]"], "optim.betas: has too few items (value [1] from override --optim.betas)"),
        (["tags=[1]"], "tags.0: should be a valid string (value 1 from override --tags)"),
        (["optim=3"], "optim: should be a table (value 3 from override --optim)"),
        (["method.name=dqn"], "method.name: must be one of 'grpo', 'ppo', 'ppo2' (value \"dqn\" from override --method.name)"),
        (["method.std=biased"], "method.std: should be 'unbiased' or 'none' (value \"biased\" from override --method.std)"),
        (["method.name=ppo", "method.lam=x"], 'method.lam: should be a valid number (value "x" from override --method.lam)'),
        (["stages=[{}]"], "stages.0.steps: is required and was set nowhere"),
        (["title=forbidden"], "Recipe: title must not be forbidden (set by override --title)"),
    ],
)
def test_values_that_do_not_fit(words, message):
    assert problem(*words) == message


@pytest.mark.parametrize("key", ["optim", "optim.betas", "extra.any"])
def test_brackets_that_are_no_toml_are_text_only_where_text_is_wanted(key):
    for text, form in (('{"size": 3}', "a table as {size = 3}"), ("[a, b]", 'a list as [1, "two"]')):
        message = problem(f"--{key}", text)
        assert message.startswith(f"{key}: {text} from override --{key} is no TOML; write {form}")
        assert overridden("--title", text).title == text
    assert overridden("--extra.any", '"[a, b]"').extra == {"any": "[a, b]"}
    assert overridden("--extra.any", "{size = 3}").extra == {"any": {"size": 3}}


def test_problems_of_values_name_the_file(tmp_path):
    file = write(tmp_path, "r.toml", "[optim]\nlr = 0\nwarmup_steps = 1.5\n")
    message = problem(files=(file,))
    assert f"optim.lr: should be greater than 0 (value 0 from {file})" in message
    assert f"optim.warmup_steps: should be a valid integer (value 1.5 from {file})" in message


@pytest.mark.parametrize("words", [["--fast"], ["--fast", "--title"], ["fast"], ["--optim.lr", "1", "2"]])
def test_overrides_without_a_value(words):
    assert "has no value" in problem(*words)


numbers = st.floats(allow_nan=False)
names = st.text(min_size=1, max_size=6)
# a text that reads "none" means None where None is allowed, so such a key cannot hold it
json_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
optims = st.builds(
    Optim, lr=st.floats(1e-300, math.inf, exclude_min=True), warmup_steps=st.integers(0), betas=st.tuples(numbers, numbers)
)
recipes = st.builds(
    Recipe,
    title=st.text().filter(lambda t: t != "forbidden"),
    folder=st.sampled_from([Path("a/b c"), Path('q"\\'), Path("/é")]),
    fast=st.booleans(),
    color=st.sampled_from(Color),
    clip=st.none() | numbers,
    limit=st.integers() | st.just("auto"),
    tags=st.lists(st.text(), max_size=3).map(tuple),
    kinds=st.frozensets(st.text(max_size=3), max_size=3),
    optim=optims,
    critic=st.none() | optims,
    method=st.builds(Grpo, std=st.sampled_from(("unbiased", "none"))) | st.builds(Ppo, lam=numbers),
    weights=st.dictionaries(names, numbers, max_size=3),
    roles=st.dictionaries(names, optims, max_size=2),
    stages=st.lists(st.builds(Stage, steps=st.integers(), note=st.text()), max_size=2),
    extra=st.dictionaries(names, json_values, max_size=3),
)


@given(recipes)
def test_a_written_recipe_reads_back_the_same(tmp_path_factory, recipe):
    text = to_toml(recipe)
    file = tmp_path_factory.getbasetemp() / "round_trip.toml"
    file.write_text(text, encoding="utf-8", newline="")
    loaded = load(Recipe, [file])
    assert loaded.config == recipe
    assert to_toml(loaded.config) == text
    assert set(loaded.origins.values()) == {str(file)}


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_the_writer_writes_toml(data):
    read = tomllib.loads(toml.write(data))
    assert json.dumps(read, sort_keys=True) == json.dumps(data, sort_keys=True)  # as text: 1, 1.0 and true differ


def test_what_toml_cannot_hold_is_refused():
    class Named(Section):
        name: str | None = "x"

    assert 'name = "none"' in to_toml(Named(name=None))
    with pytest.raises(ConfigError, match="cannot be written as TOML and read back: name"):
        to_toml(Named(name="none"))
    with pytest.raises(ConfigError, match=r"read back: extra\.a"):
        to_toml(Recipe(extra={"a": None}))
    with pytest.raises(TypeError, match="object"):
        toml.value(object())


def test_nan_is_written():
    assert math.isnan(load(Recipe, overrides=["clip=nan"]).config.clip or 0)
    assert "clip = nan" in to_toml(Recipe(clip=math.nan))


def test_resolved_recipe_reads_well():
    text = to_toml(Recipe(critic=Optim(), stages=[Stage(steps=1)]))
    assert text.startswith('title = "run"\nfolder = "runs"\nfast = true\ncolor = "red"\nclip = 3.0\nlimit = "auto"\n')
    assert 'stages = [{steps = 1, note = ""}]\n\n[optim]\nlr = 0.0001\nwarmup_steps = 5\nbetas = [0.9, 0.95]\n' in text
    assert '\n[method]\nname = "grpo"\n' in text
    assert text.endswith("\n[weights]\nactor = 1.0\n\n[roles]\n\n[extra]\n")


def test_loading_imports_no_torch():
    code = "import gongfu.config.load, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == 0
