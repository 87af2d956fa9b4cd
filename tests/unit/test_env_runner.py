"""Runners: what an environment does wrong costs its own episode, in this process and in worker processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

from gongfu.envs.runner import InlineRunner
from gongfu.envs.workers import WorkerRunner
from runner_cases import *  # noqa: F403  # its tests
from runner_cases import ToySuite, ends, environment, task


@pytest.fixture
def kind():
    return "process"


@pytest.fixture(scope="module")
def workers():
    with WorkerRunner(ToySuite(), workers=3, reset_timeout=2.0, step_timeout=1.5) as runner:
        yield runner


@pytest.fixture(params=["inline", "workers"])
def runner(request):
    if request.param == "inline":
        with InlineRunner(ToySuite()) as inline:
            yield inline
    else:
        shared = request.getfixturevalue("workers")
        yield shared
        shared.release(["bad", "x", "y", "z"])


@pytest.fixture
def make():
    """Makes runners, and closes them."""
    made = []

    def new(suite=None, **settings):
        made.append(WorkerRunner(suite or ToySuite(), **settings))
        return made[-1]

    yield new
    for runner in made:
        runner.close()


def test_workers_have_no_torch(workers):
    workers.reset({"x": task("fine")})
    loaded = set(workers.step({"x": "modules"})["x"].observation.text.split())
    assert "gongfu.envs.process_worker" in loaded
    assert not loaded & {"torch", "transformers", "numpy"}
    workers.release(["x"])


SCRIPT = """
    import sys, time
    from pathlib import Path
    {guard}
    with Path({out!r}).open("a") as f:
        f.write("main was imported\\n")
    {toys}
    if {condition}:
        from gongfu.core.records import Task
        from gongfu.envs.workers import WorkerRunner
        runner = WorkerRunner(ToySuite(), workers=1)
        first = runner.reset({{"x": Task("t", "toy", {kind!r}, "", "train")}})["x"]
        print(first.text, flush=True)
        {then}
"""


def script(tmp_path, *, out: str, kind: str = "fine", own: bool = False, then: str = "runner.close()") -> str:
    if own:
        toys, guard, condition = (
            "class ToySuite(runner_cases.ToySuite): pass",
            "import runner_cases",
            "__name__ == '__main__'",
        )
    else:
        toys, guard, condition = "", "from runner_cases import ToySuite", "True"
    path = tmp_path / "main_script.py"
    path.write_text(textwrap.dedent(SCRIPT).format(out=out, kind=kind, toys=toys, guard=guard, condition=condition, then=then))
    return str(path)


@pytest.mark.parametrize("own", [False, True])
def test_workers_import_the_main_script_only_for_a_suite_of_its_own(tmp_path, own):
    out = tmp_path / "out.txt"
    path = script(tmp_path, out=str(out), own=own)
    done = subprocess.run([sys.executable, path], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("ready"), done.stderr
    assert out.read_text().count("main was imported") == (2 if own else 1)


@pytest.mark.parametrize("busy", [False, True])
def test_workers_die_with_their_parent(tmp_path, busy):
    """An idle worker when the line is closed; one that hangs by itself, soon after its dead-line."""
    hang = "import gongfu.envs.process_worker as w; w._GRACE = -118.5; runner._step_timeout = 120; runner.step({'x': 'go'})"
    path = script(tmp_path, out=str(tmp_path / "out.txt"), kind="hang", then=hang if busy else "time.sleep(60)")
    with subprocess.Popen([sys.executable, path], env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        time.sleep(0.5 if busy else 0.0)
        parent.kill()
    ends(child, 10.0)
