import builtins
import io
import logging
import math
import struct
from pathlib import Path

import pytest
from rich.console import Console

from gongfu.core.errors import MissingExtra, RunFolderError
from gongfu.run.folder import RunFolder
from gongfu.run.track import ConsoleSink, TensorboardSink, Tracker

TRAIN = {"rollout/success": 0.25, "actor/kl_k3": 0.0012, "time/step_s": 3.5}
EVAL = {
    "split": "valid_unseen",
    "checkpoint": "step-000003",
    "n": 134,
    "success": 0.5,
    "low": 0.417,
    "high": 0.583,
    "success_by_kind": {"pick": 0.75, "look": math.nan},
}


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", config_toml="", info={}) as folder:
        yield folder


class Recorder:
    name = "recorder"

    def __init__(self, fails_at=None, close_fails=False):
        self.seen, self.closed, self.fails_at, self.close_fails = [], 0, fails_at, close_fails

    def log(self, step, phase, metrics):
        if self.fails_at is not None and step >= self.fails_at:
            raise ConnectionError("no route to host")
        self.seen.append((step, phase, dict(metrics)))

    def close(self):
        self.closed += 1
        if self.close_fails:
            raise ConnectionError("still no route")


def test_every_record_reaches_the_file_and_the_sinks(folder):
    sink = Recorder()
    with Tracker(folder, sinks=[sink]) as tracker:
        tracker.log(3, TRAIN)
        tracker.log(3, {"phase": "eval", "n": 2})
    assert folder.read_metrics() == [{"step": 3, "phase": "train", **TRAIN}, {"step": 3, "phase": "eval", "n": 2}]
    assert sink.seen == [(3, "train", TRAIN), (3, "eval", {"n": 2})]
    assert sink.closed == 1


def test_a_failing_sink_is_reported_once_and_switched_off(folder, caplog):
    bad, good = Recorder(fails_at=2, close_fails=True), Recorder()
    good.name = "good"
    with caplog.at_level(logging.WARNING), Tracker(folder, sinks=[bad, good]) as tracker:
        for step in (1, 2, 3, 4):
            tracker.log(step, TRAIN)
        assert tracker.sinks == ("good",)
    assert [r["step"] for r in folder.read_metrics()] == [1, 2, 3, 4]
    assert ([s for s, *_ in bad.seen], [s for s, *_ in good.seen]) == ([1], [1, 2, 3, 4])
    (message,) = caplog.messages
    assert "recorder failed at step 2 (ConnectionError('no route to host'))" in message
    assert (bad.closed, good.closed) == (1, 1)


def test_a_sink_that_cannot_be_closed_stops_nothing(folder, caplog):
    other = Recorder()
    with Tracker(folder, sinks=[other, Recorder(close_fails=True)]) as tracker:
        tracker.log(1, TRAIN)
    assert other.closed == 1
    assert "could not be closed" in caplog.text


def test_the_file_is_no_sink_its_failure_is_raised(folder):
    tracker = Tracker(folder, sinks=[Recorder()])
    folder.close()
    with pytest.raises(RunFolderError):
        tracker.log(1, TRAIN)


def test_step_is_no_metric(folder):
    with pytest.raises(ValueError, match='"step" is set by the tracker'):
        Tracker(folder).log(1, {"step": 2})


def console(terminal):
    text = io.StringIO()
    return text, Console(file=text, force_terminal=terminal, width=140, color_system=None)


def test_console_prints_a_plain_line_a_step_where_there_is_no_terminal():
    text, out = console(terminal=False)
    sink = ConsoleSink(20, console=out)
    sink.log(3, "train", TRAIN)
    sink.log(3, "eval", EVAL)
    sink.close()
    assert text.getvalue().splitlines() == [
        "step 3/20  success 0.25  kl 0.0012",
        "step 3  eval valid_unseen success 0.500 [0.417, 0.583] n=134",
    ]


def test_console_tells_of_the_bank_where_there_is_one():
    text, out = console(terminal=False)
    sink = ConsoleSink(20, console=out)
    bank = {"proposals/count": 24.0, "proposals/accepted": 3.0, "bank/skills": 12.0, "rollout/skills_shown": 0.875}
    sink.log(3, "train", {**TRAIN, **bank})
    sink.log(4, "train", {**TRAIN, "proposals/count": 0.0, "bank/skills": 12.0, "rollout/skills_shown": 0.5})
    sink.log(4, "eval", {**EVAL, "success_without_skills": 0.25})
    sink.log(5, "train", {**TRAIN, "rollout/skills_shown": 0.0})  # another method: it shows none, and need not say so
    assert text.getvalue().splitlines() == [
        "step 3/20  success 0.25  kl 0.0012  proposals 24  accepted 3  skills 12  shown 88%",
        "step 4/20  success 0.25  kl 0.0012  proposals 0  skills 12  shown 50%",
        "step 4  eval valid_unseen success 0.500 [0.417, 0.583] n=134 without skills 0.250",
        "step 5/20  success 0.25  kl 0.0012",
    ]


NOTHING = {**TRAIN, "train/rows": 0.0, "train/tokens": 0.0, "rollout/valid_format": 0.125, "rollout/admissible": 0.0}


def test_steps_that_train_nothing_are_warned_of_once(folder, capsys):
    some = {**NOTHING, "train/rows": 2.0, "train/tokens": 9.0}
    with Tracker(folder) as tracker:
        for step, metrics in enumerate([NOTHING, NOTHING, some, NOTHING, NOTHING, TRAIN, some, *[NOTHING] * 2], 1):
            tracker.log(step, metrics)
            tracker.log(step, {"phase": "eval", **EVAL})
        assert capsys.readouterr().err == ""
        for step in (10, 11, 12):
            tracker.log(step, NOTHING)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: nothing could be trained in the last 3 steps (up to step 10)")
    assert 'not valid (now rollout/valid_format 0.12, rollout/admissible 0.00): set rollout.mode = "choose"' in warning
    assert "end alike: raise rollout.temperature or method.group_size" in warning


@pytest.mark.parametrize("name", ["train/rows", "train/tokens"])
def test_either_count_says_that_nothing_was_trained(folder, capsys, name):
    with Tracker(folder) as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {**TRAIN, name: 0.0})
    assert "nothing could be trained" in capsys.readouterr().err


def test_a_narrow_terminal_still_shows_the_step():
    text = io.StringIO()
    sink = ConsoleSink(20, console=Console(file=text, force_terminal=True, width=80, color_system=None))
    try:
        sink.log(11, "train", {**TRAIN, "proposals/count": 24.0, "bank/skills": 12.0, "rollout/skills_shown": 0.875})
    finally:
        sink.close()
    assert "11/20" in text.getvalue() and "skills 12" in text.getvalue()


def test_console_shows_a_live_line_on_a_terminal():
    text, out = console(terminal=True)
    sink = ConsoleSink(20, console=out)
    try:
        sink.log(11, "train", TRAIN)
        sink.log(11, "eval", EVAL)
    finally:
        sink.close()
    assert "11/20" in text.getvalue()
    assert "success 0.25  kl 0.0012" in text.getvalue()
    assert "[0.417, 0.583]" in text.getvalue()


def test_progress_and_words_go_to_stderr(folder, capsys):
    with Tracker(folder, total=20) as tracker:
        assert tracker.sinks == ("console",)
        tracker.say("resuming after step 0 [best]")
        tracker.log(1, TRAIN)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "resuming after step 0 [best]\nstep 1/20  success 0.25  kl 0.0012\n"


def test_tensorboard_files_lie_in_the_run_folder(folder):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    with Tracker(folder, tensorboard=True) as tracker:
        tracker.log(1, TRAIN)
        assert tracker.sinks == ("tensorboard",)
    (file,) = (folder.path / "tensorboard").iterdir()
    assert b"train/rollout/success" in file.read_bytes()


def test_tensorboard_files_hold_every_number(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2", reason="needs the extra tensorboard")
    from tensorboardX.record_writer import masked_crc32c

    sink = TensorboardSink(tmp_path)
    sink.log(3, "train", TRAIN)
    sink.log(3, "eval", EVAL)
    sink.close()
    (file,) = tmp_path.iterdir()
    data, events = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked_crc32c(body),)
        events.append(event_pb2.Event.FromString(body))
        data = data[16 + length :]
    assert events[0].file_version == "brain.Event:2"
    read = {value.tag: (event.step, value.simple_value) for event in events[1:] for value in event.summary.value}
    expected = {
        "train/rollout/success": 0.25,
        "train/actor/kl_k3": 0.0012,
        "train/time/step_s": 3.5,
        "eval/valid_unseen/n": 134,
        "eval/valid_unseen/success": 0.5,
        "eval/valid_unseen/low": 0.417,
        "eval/valid_unseen/high": 0.583,
        "eval/valid_unseen/success_by_kind/pick": 0.75,
    }
    assert read == {name: (3, pytest.approx(value)) for name, value in expected.items()}


def test_tensorboard_on_a_full_disk_is_switched_off(folder, tmp_path, caplog):
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    sink = TensorboardSink(tmp_path / "tensorboard")
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    sink._writer._writer = Path("/dev/full").open("wb")  # noqa: SIM115
    with Tracker(folder, sinks=[sink]) as tracker:
        for step in range(1, 30):
            tracker.log(step, TRAIN)
        assert tracker.sinks == ()
    assert len(folder.read_metrics()) == 29
    assert caplog.text.count("tensorboard") == 1


def test_tensorboard_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("tensorboardX"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtra, match=r"gongfu\[tensorboard\]"):
        TensorboardSink(tmp_path)
