import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gongfu.core.errors import RunFolderError
from gongfu.run import folder as module
from gongfu.run.folder import RunFolder, comparable, read_metrics, write_atomic

CONFIG = "seed = 3\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "first"


def make(path, **info):
    return RunFolder.create(path, config_toml=CONFIG, info=info or {"seed": 3})


def leftovers(path):
    return [p.name for p in Path(path).rglob(".tmp-*")]


def test_create_lays_out_the_folder_and_open_reads_it_back(path):
    with make(path, seed=3, data={"train": "abc"}) as folder:
        assert {p.name for p in path.iterdir()} >= {"config.toml", "run.json", "trajectories", "checkpoints", "report"}
        created = folder.created
    with RunFolder.open(path) as folder:
        assert folder.info == {"seed": 3, "data": {"train": "abc"}}
        assert (folder.created, folder.config_toml()) == (created, CONFIG)
        assert folder.versions["python"] == sys.version.split()[0]
        assert {"gongfu", "numpy"} <= folder.versions.keys()


def test_create_refuses_a_run_and_a_foreign_folder(path, tmp_path):
    make(path).close()
    with pytest.raises(RunFolderError, match=r"already holds a run: go on with --resume .*first"):
        make(path)
    with pytest.raises(RunFolderError, match=r"is not empty and holds no run \(it has 'runs'\)"):
        make(tmp_path)
    assert not (tmp_path / ".lock").exists()


def test_a_run_that_fails_before_it_recorded_anything_leaves_its_name_free(path):
    with pytest.raises(ZeroDivisionError), make(path) as folder:
        (path / "bank.sqlite").write_text("an empty bank")
        raise ZeroDivisionError
    assert not path.exists()
    with pytest.raises(ZeroDivisionError), make(path.with_name("paid")):
        (path.with_name("paid") / "teacher.sqlite").write_text("answers that were paid for")
        raise ZeroDivisionError
    assert path.with_name("paid").exists()
    with pytest.raises(ZeroDivisionError), make(path) as folder:
        folder.append_metrics({"step": 0})
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), RunFolder.open(path):
        raise ZeroDivisionError
    assert read_metrics(path / "metrics.jsonl") == [{"step": 0}]


def test_a_create_that_was_killed_before_run_json_can_be_repeated(path):
    make(path).close()
    for later in ("run.json", "metrics.jsonl"):
        (path / later).unlink()
    (path / ".tmp-run.json-77-1").write_text('{"form')
    with make(path) as folder:
        assert folder.info == {"seed": 3}
    assert not leftovers(path)


@pytest.mark.parametrize("content", [None, '{"format": 1', '{"format": 99, "created": 0, "versions": 0}', "[]"])
def test_open_refuses_what_is_no_run(path, content):
    path.mkdir(parents=True)
    if content is not None:
        (path / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match=r"run\.json"):
        RunFolder.open(path)


def test_open_refuses_a_config_that_was_edited_but_a_reader_may_look(path):
    make(path).close()
    (path / "config.toml").write_text("seed = 4\n")
    with pytest.raises(RunFolderError, match=r"config\.toml was changed"):
        RunFolder.open(path)
    assert RunFolder.open(path, lock=False).config_toml() == "seed = 4\n"
    (path / "config.toml").write_text(CONFIG)
    RunFolder.open(path).close()  # the refused open has given the lock back


HOLD = """
import sys
from gongfu.run.folder import RunFolder
folder = RunFolder.open(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_by_pid_and_a_kill_frees_the_lock(path):
    make(path).close()
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=rf"in use by process {child.pid} on"):
            RunFolder.open(path)
        assert RunFolder.open(path, lock=False).info == {"seed": 3}
    finally:
        child.kill()
        child.communicate()
    RunFolder.open(path).close()


def test_the_lock_also_holds_within_one_process(path):
    with make(path), pytest.raises(RunFolderError, match=f"process {os.getpid()} "):
        RunFolder.open(path)


def test_metrics_come_back_and_stay_strict_json(path):
    records = [
        {"step": 1, "phase": "train", "actor/loss": math.nan, "a": math.inf, "b": -math.inf},
        {"step": 1, "phase": "eval", "split": "valid_unseen", "success_by_kind": {"pick": 0.5, "清洁": math.nan}},
    ]
    with make(path) as folder:
        for record in records:
            folder.append_metrics(record)
        folder.append_metrics({"step": 2, "actor/kl_k3": np.float32(0.5)})
        read = folder.read_metrics()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    for line in (path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    assert repr(read[:2]) == repr(records)  # repr, since NaN is not equal to itself
    assert read[2] == {"step": 2, "actor/kl_k3": 0.5}


def test_a_record_without_a_step_is_refused(path):
    with make(path) as folder, pytest.raises(ValueError, match='integer "step"'):
        folder.append_metrics({"phase": "train"})


def test_a_torn_last_line_is_dropped_and_the_next_record_starts_clean(path):
    with make(path) as folder:
        folder.append_metrics({"step": 1})
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "rollout/succ')
    assert read_metrics(path / "metrics.jsonl") == [{"step": 1}]
    with RunFolder.open(path) as folder:
        folder.append_metrics({"step": 2})
    assert (path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_damaged_line_in_the_middle_is_named(path):
    with make(path) as folder:
        (path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2"):
            folder.read_metrics()


def test_truncated_metrics_then_continued_equal_an_uninterrupted_run(path, tmp_path):
    def record(step):
        return {"step": step, "phase": "train", "rollout/success": step / 7, "actor/loss": math.nan}

    with make(path) as folder:
        for step in (1, 2, 3, 4):
            folder.append_metrics(record(step))
        assert folder.truncate_metrics(2) == 2
        for step in (3, 4, 5):
            folder.append_metrics(record(step))
        assert folder.truncate_metrics(5) == 0
    with make(tmp_path / "whole") as folder:
        for step in (1, 2, 3, 4, 5):
            folder.append_metrics(record(step))
    assert (path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_reader_cannot_write(path):
    make(path).close()
    reader = RunFolder.open(path, lock=False)
    with pytest.raises(RunFolderError, match="for reading only"):
        reader.append_metrics({"step": 1})
    with pytest.raises(RunFolderError, match="for reading only"):
        reader.truncate_metrics(0)


def test_comparable_drops_the_clock_only():
    assert comparable({"step": 1, "time/step_s": 2.0, "perf/tokens_per_s": 3.0, "timeouts": 1, "actor/kl_k3": 0.1}) == {
        "step": 1,
        "timeouts": 1,
        "actor/kl_k3": 0.1,
    }


def test_write_atomic_replaces_and_leaves_no_temporary_file(tmp_path):
    file = tmp_path / "a.txt"
    write_atomic(file, "功夫")
    write_atomic(file, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert file.read_bytes() == b"new"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, code):
    file = tmp_path / "a.txt"
    write_atomic(file, "old")

    def full(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"no space left while writing .*a\.txt.*--resume"):
        write_atomic(file, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert file.read_text() == "old"


def test_an_unwritable_place_is_named(tmp_path):
    with pytest.raises(RunFolderError, match=r"cannot write .*nowhere"):
        write_atomic(tmp_path / "nowhere" / "a.txt", "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        make(tmp_path / "file" / "run")


FILL = """
import sys
from gongfu.core.errors import RunFolderError
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.folder import RunFolder, write_atomic

folder = RunFolder.create(sys.argv[1], config_toml="seed = 3", info={})
folder.append_metrics({"step": 1})
store = CheckpointStore(folder.checkpoints)
store.save(1, lambda path: {"step": 1} if (path / "w").write_bytes(b"w" * 1000) else {})


def fails(act):
    try:
        act()
    except RunFolderError as e:
        assert "no space left" in str(e), e
        return
    raise AssertionError("the disk was not full")


big = "x" * 400_000
fails(lambda: write_atomic(folder.path / "config.toml", big))
fails(lambda: folder.append_metrics({"step": 2, "text": big}))
fails(lambda: store.save(2, lambda path: {"n": (path / "w").write_text(big)}))
folder.append_metrics({"step": 2})
"""


def check_filled(path):
    with RunFolder.open(path) as folder:
        assert folder.read_metrics() == [{"step": 1}, {"step": 2}]
    assert not leftovers(path)
    assert [p.name for p in (path / "checkpoints").iterdir()] == ["step-000001"]


def test_a_file_size_limit_corrupts_nothing(path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    subprocess.run([sys.executable, "-c", FILL, str(path)], check=True, preexec_fn=limit, timeout=60)
    check_filled(path)


def test_a_full_file_system_corrupts_nothing(tmp_path):
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, text=True)
    if mount.returncode != 0:
        pytest.skip(f"cannot mount here: {mount.stderr.strip()}")
    try:
        subprocess.run([sys.executable, "-c", FILL, str(disk / "run")], check=True, timeout=60)
        check_filled(disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
