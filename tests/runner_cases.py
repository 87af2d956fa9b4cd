"""What every runner must bear, and every kind of worker: imported by the tests of processes and by those of Ray actors.

The fixtures are the importing module's: `runner`, `workers` (three, dead-lines of 2 and 1.5 s, shared by a module), `make` (a
new WorkerRunner of its kind) and `kind`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from gongfu.core.errors import EnvError, EnvTimeout
from gongfu.core.records import Task
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.runner import EnvRunner


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
        ("raise", r"RuntimeError: the toy broke \(.*runner_cases.py:\d+\)"),
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


DEATHS = {
    "exit": {
        "process": "exited with status 3; its last output: 'last words'",
        "ray": "the Ray actor died: its worker process has died",
    },
    "kill": {"process": "was killed by SIGKILL", "ray": "the Ray actor died: its worker process has died"},
}


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("hang", EnvTimeout, "no answer within 1.5 s"),
        ("hang at reset", EnvTimeout, "reset: no answer within 2 s"),
        ("exit", EnvError, DEATHS["exit"]),
        ("leave", EnvError, "SystemExit: leaving"),
        ("kill", EnvError, DEATHS["kill"]),
    ],
)
def test_a_worker_that_hangs_or_dies_costs_that_episode_and_is_replaced(workers, kind, what, error, message):
    message = message if isinstance(message, str) else message[kind]
    try:
        first = workers.reset({"bad": task(what), "x": task("fine")})
        begin = time.monotonic()
        bad = first["bad"]
        if isinstance(bad, Observation):
            answers = workers.step({"bad": "go", "x": "1"})
            bad = answers["bad"]
            assert answers["x"].observation.text == "1"
        assert type(bad) is error and message in str(bad) and f"t-{what} (episode bad)" in str(bad)
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
        again = runner.reset({key: task("fine") for key in ("x", "y", "z")})  # as many as there are workers
        assert all(isinstance(answer, Observation) for answer in again.values())
    assert "the toy broke" in caplog.text


def test_a_worker_that_died_while_idle_is_replaced(make):
    runner = make(workers=1)
    pid = pid_of(runner.reset({"x": task("fine")})["x"])
    runner.release(["x"])
    assert runner._place.wait([runner._free[0].handle], 10.0)  # the environment is closed
    os.kill(pid, signal.SIGKILL)
    ends(pid, 10.0)
    assert pid_of(runner.reset({"x": task("fine")})["x"]) != pid


def test_a_suite_that_cannot_travel_fails_at_once(make):
    suite = ToySuite()
    suite.hook = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match="cannot be sent to a worker"):
        make(suite, workers=1)
    with pytest.raises(EnvError, match=r"cannot be loaded in a worker: LookupError: only process \d+ knows"):
        make(ForeignSuite(), workers=1)
    with pytest.raises(EnvError, match="at least one worker"):
        make(workers=0)


def test_close_is_idempotent_and_leaves_no_process(make, kind):
    runner = make(workers=2)
    pids = [pid_of(o) for o in runner.reset({"x": task("fine"), "y": task("hang at close")}).values()]
    runner.close()
    runner.close()
    for pid in pids:
        ends(pid, 0.0 if kind == "process" else 10.0)
    with pytest.raises(EnvError, match="closed"):
        runner.reset({"z": task("fine")})


def test_an_interrupted_batch_leaves_no_stale_answers(make, monkeypatch):
    runner = make(workers=2)
    runner.reset({"x": task("slow"), "y": task("fine")})
    with monkeypatch.context() as patch:
        patch.setattr(runner._place, "wait", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            runner.step({"x": "go"})
    assert runner.step({"y": "mine"})["y"].observation.text == "mine"
    assert isinstance(runner.reset({"x": task("fine")})["x"], Observation)
    assert runner.step({"x": "new"})["x"].observation.text == "new"


def test_a_close_that_hangs_holds_up_nobody_while_there_is_room(make):
    runner = make(workers=2, step_timeout=30.0)
    runner.reset({"x": task("hang at close")})
    runner.release(["x"])
    begin = time.monotonic()
    assert isinstance(runner.reset({"y": task("fine")})["y"], Observation)
    assert time.monotonic() - begin < 20


def test_a_close_that_hangs_is_ended_where_its_worker_is_needed(make):
    runner = make(workers=1, step_timeout=1.5)
    pid = pid_of(runner.reset({"x": task("hang at close")})["x"])
    runner.release(["x"])
    assert pid_of(runner.reset({"y": task("fine")})["y"]) != pid
    assert runner._alive == 1


def play(runner: EnvRunner, name: str, episodes: int = 4) -> list[str]:
    """What is answered in some episodes, one after the other."""
    said = []
    for number in range(episodes):
        assert isinstance(runner.reset({name: task("fine")})[name], Observation)
        said += [runner.step({name: f"{name}-{number}-{turn}"})[name].observation.text for turn in range(3)]
        runner.release([name])
    return said


def test_threads_play_side_by_side_and_one_that_hangs_holds_up_no_other(make):
    names = [f"e{i}" for i in range(8)]
    runner = make(workers=8, step_timeout=4.0)
    runner.reset({name: task("fine") for name in names})  # all workers are started
    runner.release(names)
    alone = {name: play(runner, name) for name in names[1:]}
    together: dict[str, list[str]] = {}
    ended: dict[str, float] = {}
    hung: list[object] = []

    def hang() -> None:
        runner.reset({names[0]: task("hang")})
        ready.wait()
        hung.append(runner.step({names[0]: "go"})[names[0]])
        ended[names[0]] = time.monotonic()

    def other(name: str) -> None:
        ready.wait()
        together[name] = play(runner, name)
        ended[name] = time.monotonic()

    ready = threading.Barrier(8)
    threads = [threading.Thread(target=hang), *(threading.Thread(target=other, args=[name]) for name in names[1:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
    assert type(hung[0]) is EnvTimeout and max(ended[name] for name in names[1:]) < ended[names[0]]
    assert runner._alive == len(runner._free) == 7


def pid_of(observation: Observation) -> int:
    return int(observation.text.split()[1])


def environment() -> dict[str, str]:
    """Of a process that can import this module."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def ends(pid: int, within: float) -> None:
    deadline = time.monotonic() + within
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


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
