import errno
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gongfu.core.errors import CheckpointError, RunFolderError
from gongfu.run.checkpoint import CheckpointStore


def writer(step, size=100):
    def write(path):
        (path / "engine" / "actor").mkdir(parents=True)
        (path / "engine" / "actor" / "adapter.safetensors").write_bytes(bytes([step % 256]) * size)
        (path / "bank.sqlite").write_bytes(b"bank")
        return {"step": step, "rng": [step, 2**70], "engine": "engine", "mean": 0.1 * step, "best": None}

    return write


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep_last=9)


def names(store):
    return sorted(p.name for p in store.folder.iterdir())


def test_a_checkpoint_comes_back_with_its_files_and_state(store):
    assert (store.latest(), store.list(), store.resume_point()) == (None, [], None)
    for step in (20, 40):
        store.save(step, writer(step))
    assert (store.latest(), store.list(), names(store)) == (40, [20, 40], ["step-000020", "step-000040"])
    for ref in (20, "step-000020"):
        path, state = store.load(ref)
        assert path == store.folder / "step-000020"
        assert (path / "engine/actor/adapter.safetensors").read_bytes() == b"\x14" * 100
        assert state == {"step": 20, "rng": [20, 2**70], "engine": "engine", "mean": 2.0, "best": None}
    assert store.load("latest")[0].name == "step-000040"
    point = store.resume_point()
    assert point is not None
    assert (point.step, point.path.name, point.state["step"], point.refused) == (40, "step-000040", 40, ())


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


ADAPTER = "engine/actor/adapter.safetensors"


@pytest.mark.parametrize(
    ("name", "harm", "says"),
    [
        (ADAPTER, truncate, "has 99 bytes, it was written with 100"),
        (ADAPTER, flip, "was changed after it was written"),
        (ADAPTER, Path.unlink, "is missing"),
        ("manifest.json", truncate, "is damaged"),
        ("manifest.json", flip, "is damaged"),
        ("manifest.json", Path.unlink, "is missing"),
        ("engine/other.safetensors", Path.touch, "is not part of the checkpoint"),
    ],
)
def test_harm_is_named_with_the_last_good_checkpoint_and_passed_over(store, name, harm, says):
    for step in (20, 40, 60):
        store.save(step, writer(step))
    harm(store.path(60) / name)
    if harm is truncate and name == "manifest.json":  # its last byte is the line end: cut into the JSON too
        harm(store.path(60) / name)
    with pytest.raises(CheckpointError, match=rf"step-000060/{name}.*{says}.*; the last good one is step-000040"):
        store.load(60)
    with pytest.raises(CheckpointError, match="the last good one is step-000040"):
        store.verify("latest")
    point = store.resume_point()
    assert point is not None
    assert (point.step, len(point.refused)) == (40, 1)
    assert name in point.refused[0]
    store.verify(40)


def test_a_state_edited_by_hand_is_refused(store):
    file = store.save(20, writer(20)) / "manifest.json"
    file.write_text(file.read_text().replace('"mean": 2.0', '"mean": 3.0'))
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged.*digest; no other checkpoint is good"):
        store.load(20)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is good"):
        store.resume_point()


def test_a_checkpoint_under_a_wrong_name_is_refused(store):
    store.save(20, writer(20)).rename(store.path(40))
    with pytest.raises(CheckpointError, match="belongs to step 20"):
        store.load(40)


@pytest.mark.parametrize("ref", [7, "latest", "best", "step-7", "/etc"])
def test_an_unknown_ref_says_what_there_is(store, ref):
    with pytest.raises(CheckpointError, match="it has none"):
        store.load(ref)


def test_an_unknown_step_lists_the_steps(store):
    store.save(20, writer(20))
    with pytest.raises(CheckpointError, match=r"there is no checkpoint 7 .*it has the steps 20"):
        store.load(7)
    with pytest.raises(CheckpointError, match="step 7 cannot be the best"):
        store.mark_best(7)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"rng": (1, 2)}, r"state\['rng'\] is a tuple"),
        ({"seen": [{3: "x"}]}, r"state\['seen'\]\[0\] has the key 3"),
        ("saved", "is a dict, got str"),
    ],
)
def test_a_state_that_json_would_change_is_refused(store, state, says):
    store.save(20, writer(20))
    with pytest.raises(CheckpointError, match=says):
        store.save(40, lambda path: state)
    assert names(store) == ["step-000020"]


def test_a_state_that_names_the_temporary_folder_is_refused(store):
    with pytest.raises(CheckpointError, match="relative to the checkpoint's folder"):
        store.save(20, lambda path: {"engine": str(path / "engine")})


def test_links_and_a_manifest_of_the_writer_are_refused(store):
    def link(path):
        (path / "weights").symlink_to("/etc/hostname")
        return {}

    def manifest(path):
        (path / "manifest.json").write_text("{}")
        return {}

    with pytest.raises(CheckpointError, match="symbolic link"):
        store.save(20, link)
    with pytest.raises(CheckpointError, match="another name"):
        store.save(20, manifest)
    assert names(store) == []


def test_what_is_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=2, keep_every=30)
    kept = []
    for step in range(10, 80, 10):
        store.save(step, writer(step))
        if step == 20:
            store.mark_best(20, success=0.5)
        kept.append(store.list())
    assert kept == [
        [10],
        [10, 20],
        [20, 30],
        [20, 30, 40],
        [20, 30, 40, 50],
        [20, 30, 50, 60],
        [20, 30, 60, 70],
    ]
    assert store.best() == {"step": 20, "success": 0.5}
    assert store.load("best")[1]["step"] == 20
    store.mark_best(70)
    store.save(80, writer(80))
    assert store.list() == [30, 60, 70, 80]


def test_a_run_resumed_earlier_discards_the_later_checkpoints(store):
    for step in (20, 40, 60):
        store.save(step, writer(step))
    store.mark_best(60)
    assert store.discard_after(20) == [40, 60]
    assert (store.list(), store.best()) == ([20], None)
    store.mark_best(20)
    assert store.discard_after(20) == []
    assert store.best() == {"step": 20}


def test_saving_a_step_again_replaces_it(store):
    store.save(20, writer(20))
    store.save(20, writer(20, size=7))
    assert len((store.load(20)[0] / ADAPTER).read_bytes()) == 7
    assert names(store) == ["step-000020"]


def test_a_replacement_killed_between_its_two_renames_keeps_the_old_checkpoint(store):
    store.save(20, writer(20)).rename(store.folder / ".old-step-000020")
    (store.folder / ".tmp-step-000020").mkdir()
    point = store.resume_point()
    assert point is not None and point.step == 20
    assert names(store) == ["step-000020"]


def test_a_reader_leaves_a_save_in_progress_alone(store):
    def write(path):
        reader = CheckpointStore(store.folder)
        assert reader.list() == [20]
        assert reader.load("latest")[1]["step"] == 20
        assert path.exists()
        return {}

    store.save(20, writer(20))
    store.save(40, write)
    assert store.list() == [20, 40]


class SafetensorError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        SafetensorError('Error while serializing: I/O error: Os { code: 28, message: "No space left on device" }'),
    ],
)
def test_a_full_disk_leaves_the_earlier_checkpoints(store, error):
    store.save(20, writer(20))

    def full(path):
        (path / "half").write_bytes(b"half")
        raise error

    with pytest.raises(RunFolderError, match=r"no space left while writing .*step-000040.*--resume"):
        store.save(40, full)
    assert names(store) == ["step-000020"]
    store.verify(20)


def test_another_error_of_the_writer_passes_through_and_leaves_nothing(store):
    def broken(path):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.save(20, broken)
    assert names(store) == []


def test_keep_settings_are_checked(tmp_path):
    with pytest.raises(ValueError, match="keep_last"):
        CheckpointStore(tmp_path, keep_last=0)


SAVE_FOREVER = """
import sys
from gongfu.run.checkpoint import CheckpointStore
store = CheckpointStore(sys.argv[1], keep_last=2)
point = store.resume_point()
step = point.step if point else 0
def write(path):
    for name in "abc":
        (path / name).write_bytes(bytes([step % 256]) * 30_000)
    return {"step": step}
print("ready", flush=True)
while True:
    step += 1
    store.save(step, write)
    print(step, flush=True)
    if step % 3 == 0:
        store.mark_best(step)
"""


def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path):
    """20 kills at random moments: what was reported as saved is there, whatever is visible verifies."""
    moments = random.Random(20)
    store = CheckpointStore(tmp_path, keep_last=2)
    interrupted = reached = 0
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        start = time.perf_counter()
        reported = [int(child.stdout.readline()) for _ in range(moments.randrange(1, 5))]
        # then somewhere within the next save, however fast this machine is now
        time.sleep(moments.random() * (time.perf_counter() - start) / len(reported))
        child.kill()
        reported += [int(line) for line in child.communicate()[0].splitlines()]
        reached = max([reached, *reported])
        interrupted += any(p.name.startswith(".") for p in tmp_path.iterdir())
        visible = store.list()
        for step in visible:
            store.verify(step)
        point = store.resume_point()
        assert (point.step if point else 0) in (reached, reached + 1)  # saved, but killed before it said so
        reached = max(reached, point.step if point else 0)
        assert store.list() == visible
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
        if (best := store.best()) is not None:
            assert best["step"] in visible
        if point is not None:
            assert point.state == {"step": point.step}
            assert (point.path / "c").read_bytes() == bytes([point.step % 256]) * 30_000
            assert not point.refused
    assert reached >= 20
    assert interrupted > 0, "no kill fell into a write"


def test_the_manifest_is_readable_and_complete(store):
    manifest = json.loads((store.save(20, writer(20)) / "manifest.json").read_text())
    assert manifest["step"] == 20
    assert set(manifest["files"]) == {ADAPTER, "bank.sqlite"}
    assert manifest["files"]["bank.sqlite"] == {  # as `printf bank | sha256sum` says
        "sha256": "4381dc2ab14285160c808659aee005d51255add7264b318d07c7417292c7442c",
        "bytes": 4,
    }
