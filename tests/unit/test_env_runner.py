"""Runners: what an environment does wrong costs its own episode, in this process and in workers."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from gongfu.core.errors import EnvError, EnvTimeout
from gongfu.core.records import Task
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.runner import EnvRunner, InlineRunner
from gongfu.envs.workers import WorkerRunner


class Toy:
    """Does what it is told: the kind of its task says what goes wrong, and when."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.said: list[str] = []

    def reset(self) -> Observation:
        self._misbehave("reset")
        return Observation(f"ready {os.getpid()}", actions=("a", "b"))

    def step(self, action: str) -> Step:
        self.said.append(action)
        self._misbehave(action)
        if self.kind == "garbage" and action == "go":
            return "not a step"  # type: ignore[return-value]
        if self.kind == "bad score" and action == "go":
            return Step(Observation("end"), terminated=True, outcome="success", score=7.0)
        if self.kind == "unpicklable" and action == "go":
            return Step(Observation(lambda: 1))  # type: ignore[arg-type]
        if action == "modules":
            return Step(Observation(" ".join(sorted(sys.modules))))
        if action == "end":
            return Step(Observation("over"), 1.0, terminated=True, outcome="success")
        return Step(Observation(" ".join(self.said)), 0.5)

    def close(self) -> None:
        self._misbehave("close")

    def _misbehave(self, when: str) -> None:
        what, _, at = self.kind.partition(" at ")
        if when != (at or "go"):
            return
        match what:
            case "raise":
                raise RuntimeError("the toy broke")
            case "hang":
                time.sleep(60)
            case "exit":
                print("last words", flush=True)
                os._exit(3)
            case "leave":
                sys.exit("leaving")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "print":
                os.write(1, b"\x80\x02garbage\x00" * 1000)
                print("🙂 \ud800")
            case "slow":
                time.sleep(0.5)


class ToySuite:
    name = "toy"
    splits = ("train",)
    max_steps = 5

    def tasks(self, split: str) -> list[Task]:
        return [task("fine")]

    def make(self, task: Task) -> Toy:
        return Toy(task.kind)

    def instructions(self) -> str:
        return ""


class ForeignSuite(ToySuite):
    """Cannot be loaded anywhere else."""

    def __reduce__(self):
        return (_fail_elsewhere, (os.getpid(),))


def _fail_elsewhere(pid: int):
    raise LookupError(f"only process {pid} knows this suite")


def task(kind: str) -> Task:
    return Task(f"t-{kind}", "toy", kind, "", "train")


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


def test_both_are_runners(runner):
    assert isinstance(runner, EnvRunner)


def test_episodes_play_side_by_side_in_the_order_asked(runner):
    assert list(runner.reset({"y": task("fine"), "x": task("fine")})) == ["y", "x"]
    for turn in range(3):
        answers = runner.step({"x": f"x{turn}", "y": f"y{turn}"})
        assert list(answers) == ["x", "y"]
        for key, answer in answers.items():
            assert answer == Step(Observation(" ".join(f"{key}{i}" for i in range(turn + 1))), 0.5)
    assert runner.step({}) == {} == runner.reset({})
    assert runner.step({"x": "end"})["x"].outcome == "success"
    assert runner.step({"y": "still"})["y"].observation.text == "y0 y1 y2 still"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raise", r"RuntimeError: the toy broke \(.*test_env_runner.py:\d+\)"),
        ("garbage", r"expected a Step, got 'not a step'"),
        ("unpicklable", r"the text of an observation is <function"),
        ("bad score", r"from 0 to 1, got 7.0"),
    ],
)
def test_a_bad_step_costs_that_episode_only(runner, kind, message):
    runner.reset({"bad": task(kind), "x": task("fine"), "y": task("fine")})
    runner.step({"bad": "calm", "x": "1", "y": "1"})
    answers = runner.step({"x": "2", "bad": "go", "y": "2"})
    assert type(answers["bad"]) is EnvError
    with pytest.raises(EnvError, match=rf"toy environment of task t-{kind} \(episode bad\), step 2: .*{message}"):
        raise answers["bad"]
    assert answers["x"].observation.text == answers["y"].observation.text == "1 2"
    with pytest.raises(EnvError, match="'bad' is not running"):
        runner.step({"x": "never sent", "bad": "go"})
    assert isinstance(runner.reset({"bad": task("fine")})["bad"], Observation)  # the key is free again
    assert runner.step({"x": "3"})["x"].observation.text == "1 2 3"


def test_a_bad_reset_costs_that_episode_only(runner):
    answers = runner.reset({"bad": task("raise at reset"), "x": task("fine")})
    assert "t-raise at reset (episode bad), reset: RuntimeError" in str(answers["bad"])
    assert answers["x"].actions == ("a", "b")
    assert runner.step({"x": "go on"})["x"].observation.text == "go on"


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("hang", EnvTimeout, "no answer within 1.5 s"),
        ("hang at reset", EnvTimeout, "reset: no answer within 2 s"),
        ("exit", EnvError, "exited with status 3; its last output: 'last words'"),
        ("leave", EnvError, "SystemExit: leaving"),
        ("kill", EnvError, "was killed by SIGKILL"),
    ],
)
def test_a_worker_that_hangs_or_dies_costs_that_episode_and_is_replaced(workers, kind, error, message):
    try:
        first = workers.reset({"bad": task(kind), "x": task("fine")})
        begin = time.monotonic()
        bad = first["bad"]
        if isinstance(bad, Observation):
            answers = workers.step({"bad": "go", "x": "1"})
            bad = answers["bad"]
            assert answers["x"].observation.text == "1"
        assert type(bad) is error and message in str(bad) and f"t-{kind} (episode bad)" in str(bad)
        assert time.monotonic() - begin < 4
        again = workers.reset({"bad": task("fine"), "y": task("fine")})
        assert all(isinstance(answer, Observation) for answer in again.values())
        assert workers.step({"x": "2", "bad": "b"})["bad"].observation.text == "b"
    finally:
        workers.release(["bad", "x", "y"])


def test_what_an_environment_prints_disturbs_nobody(workers, capfd):
    workers.reset({"x": task("print"), "y": task("fine")})
    answers = workers.step({"x": "go", "y": "go"})
    assert [answer.observation.text for answer in answers.values()] == ["go", "go"]
    workers.release(["x", "y"])
    assert capfd.readouterr().out == ""


def test_a_batch_runs_in_parallel_and_workers_are_reused(workers):
    first = workers.reset({"x": task("slow"), "y": task("slow"), "z": task("slow")})
    begin = time.monotonic()
    workers.step({"x": "go", "y": "go", "z": "go"})
    assert time.monotonic() - begin < 1.4  # three times 0.5 s one after the other would be 1.5 s
    workers.release(["x", "y", "z"])
    second = workers.reset({"x": task("fine"), "y": task("fine"), "z": task("fine")})
    assert {o.text for o in first.values()} == {o.text for o in second.values()}
    assert len({o.text for o in second.values()}) == 3
    workers.release(["x", "y", "z"])


def test_more_episodes_than_workers_is_an_error_before_anything_starts(workers):
    assert workers.capacity == 3
    workers.reset({"x": task("fine"), "y": task("fine")})
    with pytest.raises(EnvError, match="2 more episodes beside 2 running ones, but there are 3 workers"):
        workers.reset({"bad": task("fine"), "z": task("fine")})
    assert workers.step({"x": "1"})["x"].observation.text == "1"
    assert isinstance(workers.reset({"z": task("fine")})["z"], Observation)
    workers.release(["x", "y", "z"])


def test_keys_are_checked(runner):
    runner.reset({"x": task("fine")})
    with pytest.raises(EnvError, match="'x' is running already"):
        runner.reset({"x": task("fine")})
    with pytest.raises(EnvError, match="'y' is not running"):
        runner.step({"y": "a"})
    runner.release(["x", "y"])
    runner.release(["x"])
    with pytest.raises(EnvError, match="'x' is not running"):
        runner.step({"x": "a"})


def test_a_close_that_fails_costs_nothing(runner, caplog):
    runner.reset({"x": task("raise at close")})
    with caplog.at_level(logging.WARNING):
        runner.release(["x"])
        assert isinstance(runner.reset({"y": task("fine")})["y"], Observation)
    assert "the toy broke" in caplog.text


def test_workers_have_no_torch(workers):
    workers.reset({"x": task("fine")})
    loaded = set(workers.step({"x": "modules"})["x"].observation.text.split())
    assert "gongfu.envs.workers" in loaded
    assert not loaded & {"torch", "transformers", "numpy"}
    workers.release(["x"])


def test_a_worker_that_died_while_idle_is_replaced():
    with WorkerRunner(ToySuite(), workers=1) as runner:
        pid = int(runner.reset({"x": task("fine")})["x"].text.split()[1])
        runner.release(["x"])
        assert isinstance(runner.reset({"x": task("fine")})["x"], Observation)
        runner.release(["x"])
        runner.reset({})  # takes the answer to close
        os.kill(pid, signal.SIGKILL)
        runner._idle[0].process.join()
        assert int(runner.reset({"x": task("fine")})["x"].text.split()[1]) != pid


def test_a_suite_that_cannot_travel_fails_at_once():
    suite = ToySuite()
    suite.hook = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match="cannot be sent to a worker process"):
        WorkerRunner(suite, workers=1)
    with pytest.raises(EnvError, match=r"cannot be loaded in a worker: LookupError: only process \d+ knows"):
        WorkerRunner(ForeignSuite(), workers=1)
    with pytest.raises(EnvError, match="at least one worker"):
        WorkerRunner(ToySuite(), workers=0)


def test_close_is_idempotent_and_leaves_no_process():
    runner = WorkerRunner(ToySuite(), workers=2)
    pids = [int(o.text.split()[1]) for o in runner.reset({"x": task("fine"), "y": task("hang")}).values()]
    runner.close()
    runner.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(EnvError, match="closed"):
        runner.reset({"z": task("fine")})


def test_an_interrupted_batch_leaves_no_stale_answers(monkeypatch):
    with WorkerRunner(ToySuite(), workers=2) as runner:
        runner.reset({"x": task("slow"), "y": task("fine")})
        with monkeypatch.context() as patch:
            patch.setattr("gongfu.envs.workers.wait", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                runner.step({"x": "go"})
        assert runner.step({"y": "mine"})["y"].observation.text == "mine"
        assert isinstance(runner.reset({"x": task("fine")})["x"], Observation)
        assert runner.step({"x": "new"})["x"].observation.text == "new"


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
            "class ToySuite(test_env_runner.ToySuite): pass",
            "import test_env_runner",
            "__name__ == '__main__'",
        )
    else:
        toys, guard, condition = "", "from test_env_runner import ToySuite", "True"
    path = tmp_path / "main_script.py"
    path.write_text(textwrap.dedent(SCRIPT).format(out=out, kind=kind, toys=toys, guard=guard, condition=condition, then=then))
    return str(path)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}  # noqa: PTH120


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
    hang = "import gongfu.envs.workers as w; w._GRACE = -118.5; runner._step_timeout = 120; runner.step({'x': 'go'})"
    path = script(tmp_path, out=str(tmp_path / "out.txt"), kind="hang", then=hang if busy else "time.sleep(60)")
    with subprocess.Popen([sys.executable, path], env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        time.sleep(0.5 if busy else 0.0)
        parent.kill()
    deadline = time.monotonic() + 10
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as f:  # noqa: PTH123
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"  # a zombie waits for an init that does not reap
    except OSError:
        return True
