"""Environments as Ray actors: they bear what worker processes bear, give the same runs, and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine_runs import HOUSEHOLD, SMALL, answers, gongfu, needs, same
from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.errors import EnvError
from gongfu.envs.protocol import Observation
from gongfu.envs.workers import WorkerRunner
from gongfu.run.build import build_runner
from runner_cases import *  # noqa: F403  # its tests
from runner_cases import DEATHS, ToySuite, environment, task

pytestmark = needs("ray")


@pytest.fixture
def kind():
    return "ray"


@pytest.fixture(scope="module")
def workers():
    with WorkerRunner(ToySuite(), workers=3, kind="ray", reset_timeout=2.0, step_timeout=1.5) as runner:
        yield runner


@pytest.fixture
def runner(workers):
    yield workers
    workers.release(["bad", "x", "y", "z"])


@pytest.fixture
def make(workers):
    """Makes runners that share the Ray of `workers`, and closes them."""
    made = []

    def new(suite=None, **settings):
        made.append(WorkerRunner(suite or ToySuite(), kind="ray", **settings))
        return made[-1]

    yield new
    for runner in made:
        runner.close()


def test_a_cluster_without_room_is_an_error_that_says_what_is_free(make, workers, monkeypatch):
    import ray

    total = ray.cluster_resources()["CPU"]
    with monkeypatch.context() as patch:
        patch.setattr("gongfu.envs.ray_worker.START_LIMIT", 2.0)
        free = rf"{total - 0.3:g} of its {total:g} CPUs are free"
        with pytest.raises(EnvError, match=rf"no room for 1000 environment workers of 0.1 CPUs each: {free}"):
            make(workers=1000)
    whole = make(workers=int(10 * total) - 3)  # what was asked for in vain is given back
    assert isinstance(whole.reset({"x": task("fine")})["x"], Observation)


ALONE = """
import psutil, sys
from gongfu.envs.workers import WorkerRunner
from gongfu.run.build import build_runner
from runner_cases import DEATHS, ToySuite, environment, task
if len(sys.argv) > 1:
    import ray
    ray.init(num_cpus=2, include_dashboard=False)
with WorkerRunner(ToySuite(), workers=2, kind="ray") as runner:
    runner.reset({"x": task("fine"), "y": task("fine")})
    children = psutil.Process().children(recursive=True)
    ports = {c.laddr.ip for p in children for c in p.net_connections("inet") if c.status == "LISTEN"}
print(len(sys.argv) > 1 and ray.is_initialized(), ports <= {"127.0.0.1", "::ffff:127.0.0.1"}, bool(ports))
gone, left = psutil.wait_procs(children, timeout=10)
print(len(gone) > 3, len(left) > 3)
"""


@pytest.mark.parametrize(
    ("joined", "said"), [([], ["False True True", "True False"]), (["joined"], ["True True True", "False True"])]
)
def test_a_ray_that_was_started_is_ended_and_one_that_was_joined_is_not(joined, said, tmp_path):
    """In a process of its own. What listens, listens on the loopback interface."""
    bound = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if joined else {}
    words = [sys.executable, "-c", ALONE, *joined]
    done = subprocess.run(words, env={**environment(), **bound}, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == said, done.stderr


def test_a_recipe_says_where_its_environments_play(workers, request):
    words = ["--rollout.workers.kind=ray", "--rollout.workers.count=1", "--rollout.workers.step-timeout=1"]
    recipe = load(Recipe, files=[request.config.rootpath / "recipes" / HOUSEHOLD["grpo"]], overrides=words).config
    with build_runner(recipe, ToySuite()) as runner:
        runner.reset({"x": task("kill")})
        assert DEATHS["kill"]["ray"] in str(runner.step({"x": "go"})["x"])


def test_a_recipe_gives_the_same_run_with_ray_actors(tmp_path, request):
    words = [f"@{request.config.rootpath}/recipes/{HOUSEHOLD['grpo']}", *SMALL["grpo"], f"--run.folder={tmp_path}"]
    for kind in ("process", "ray"):
        workers = [f"--rollout.workers.kind={kind}", "--rollout.workers.count=2"]
        gongfu("train", *words, *workers, f"--run.name={kind}", cwd=tmp_path)
    assert same(tmp_path / "process", tmp_path / "ray", relative=1e-6) > 60
    assert answers(tmp_path / "process") == answers(tmp_path / "ray")
