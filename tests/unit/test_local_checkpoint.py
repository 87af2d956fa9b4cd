import asyncio
import json
import shutil

import pytest
import torch

from gongfu.core.errors import CheckpointError, EngineError
from gongfu.core.records import Row
from gongfu.engine.local import LocalEngine, checkpoint
from gongfu.engine.protocol import LoraSpec, OptimParams, SampleRequest
from support import tiny_model

ACTOR, PROPOSER = LoraSpec(rank=4), LoraSpec(rank=2, alpha=4.0, targets=("q_proj", "v_proj"), seed=3)


@pytest.fixture
def make(tiny_folder, tmp_path):
    def make(*adapters, folder=tiny_folder):
        engine = LocalEngine(folder, store=tmp_path / "store", threads=1)
        for name, spec in adapters:
            engine.create_adapter(name, spec)
        return engine

    return make


@pytest.fixture
def trained(make):
    engine = make(("actor", ACTOR), ("proposer", PROPOSER))
    train(engine, 3)
    engine.sync()
    return engine


def train(engine, steps, first=0):
    for step in range(first, first + steps):
        for name in ("actor", "proposer"):
            rows = [Row(f"r{i}", tuple(range(5 + step, 20 + i)), (False, *(True,) * (14 + i - step))) for i in range(3)]
            engine.forward_backward(rows, lambda b, lps: (-torch.cat(list(lps)).sum(), {}), adapter=name)
            engine.optim_step(OptimParams(lr=0.01, weight_decay=0.1), adapter=name)


def state(engine):
    """Everything that training and sampling depend on."""
    flat = {}
    for adapter in engine._adapters:
        for key, p in adapter.parameters.items():
            flat[adapter.name, key] = p.detach().clone()
            flat[adapter.name, key, "published"] = adapter.published[key].clone()
            for moment, value in adapter.optimizer.state[p].items():
                flat[adapter.name, key, moment] = value.clone()
    return flat


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_resuming_is_bit_exact(make, trained):
    ref = trained.save("step-3")
    train(trained, 3, first=3)
    trained.sync()
    fresh = make()  # creates the adapters itself
    fresh.load(ref)
    assert fresh.version == 1 and [a.steps for a in fresh._adapters] == [3, 3]
    train(fresh, 3, first=3)
    fresh.sync()
    assert same(state(fresh), state(trained)) and fresh.version == trained.version == 2


def test_loading_into_existing_adapters_replaces_weights_and_optimiser(make, trained):
    ref = trained.save("a")
    saved = state(trained)
    train(trained, 2, first=3)
    trained.sync()
    assert not same(state(trained), saved)
    trained.load(ref)
    assert same(state(trained), saved) and trained.version == 1


def test_a_checkpoint_from_before_training_resets_the_optimiser(make):
    once, twice = (make(("actor", ACTOR), ("proposer", PROPOSER)) for _ in range(2))
    ref = twice.save("start")
    train(twice, 2)
    twice.load(ref)
    for engine in (once, twice):
        train(engine, 2)
        engine.sync()
    assert same(state(once), state(twice))


def test_the_sampler_serves_what_was_loaded(make, trained):
    request = SampleRequest(tuple(range(5, 15)), "actor", seed=0, max_tokens=5, temperature=0, session="s")
    sample = asyncio.run(trained.sample([request]))[0][0]
    ref = trained.save("a")
    fresh = make(("actor", ACTOR))
    before = asyncio.run(fresh.sample([request]))[0][0]
    fresh.load(ref)
    after = asyncio.run(fresh.sample([request]))[0][0]
    assert after == sample and after != before


def test_adapters_that_the_checkpoint_lacks_are_left_alone(make, trained):
    ref = trained.save("a")
    other = make(("critic", ACTOR))
    before = {k: p.detach().clone() for k, p in other._adapters["critic"].parameters.items()}
    other.load(ref)
    assert {a.name for a in other._adapters} == {"critic", "actor", "proposer"}
    assert all(torch.equal(p, before[k]) for k, p in other._adapters["critic"].parameters.items())


def test_files_are_safetensors_and_a_manifest(trained):
    folder = trained.store / trained.save("a")
    names = {f"{a}.{part}.safetensors" for a in ("actor", "proposer") for part in ("weights", "optimizer")}
    assert {p.name for p in folder.iterdir()} == names | {"manifest.json"}
    assert set(json.loads((folder / "manifest.json").read_text())["files"]) == names
    assert [p.name for p in trained.store.iterdir()] == ["a"]


def test_saving_again_replaces(make, trained):
    trained.save("a")
    train(trained, 1)
    trained.sync()
    trained.save("a")
    fresh = make()
    fresh.load("a")
    assert same(state(fresh), state(trained))
    assert [p.name for p in trained.store.iterdir()] == ["a"]


def test_an_interrupted_save_is_invisible_and_harmless(make, trained, monkeypatch):
    trained.save("a")
    saved = state(trained)
    train(trained, 1)

    def die(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_flush", die)
        for name in ("a", "b"):
            with pytest.raises(KeyboardInterrupt):
                trained.save(name)
    fresh = make()
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        fresh.load("b")
    fresh.load("a")
    assert same(state(fresh), saved)
    trained.save("b")
    fresh.load("b")


def test_damage_is_found_before_anything_changes(make, trained):
    folder = trained.store / trained.save("a")
    for kind in ("weights", "optimizer"):
        path = folder / f"actor.{kind}.safetensors"
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[-1] ^= 1
        for damage in (whole[:-1], bytes(flipped), b""):
            path.write_bytes(damage)
            fresh = make()
            with pytest.raises(CheckpointError, match=rf"actor\.{kind}\.safetensors is torn or was changed.*earlier"):
                fresh.load("a")
            assert not list(fresh._adapters)
        path.unlink()
        with pytest.raises(CheckpointError, match="is missing"):
            make().load("a")
        path.write_bytes(whole)
    make().load("a")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "adapters": {"x": {}}, "files": {}}'])
def test_a_damaged_manifest(make, trained, text):
    (trained.store / trained.save("a") / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        make().load("a")


def test_checkpoints_of_another_model_or_shape_are_refused(make, trained, tmp_path):
    ref = trained.save("a")
    with pytest.raises(CheckpointError, match="another base model"):
        make(folder=tiny_model(tmp_path / "other", seed=1)).load(ref)
    with pytest.raises(CheckpointError, match="adapter 'actor' was saved as"):
        make(("actor", LoraSpec(rank=8))).load(ref)
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        trained.load("nowhere")


def test_a_checkpoint_may_move_with_its_folder(make, trained, tmp_path):
    trained.save("a")
    shutil.move(trained.store / "a", tmp_path / "moved")
    fresh = make()
    fresh.load(str(tmp_path / "moved"))
    assert same(state(fresh), state(trained))


def test_half_a_step_is_not_saved(trained):
    row = Row("r", (5, 6), (False, True))
    trained.forward_backward([row], lambda b, lps: (lps[0].sum(), {}), adapter="actor")
    with pytest.raises(EngineError, match="gradients that no optim_step has used"):
        trained.save("a")


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden"])
def test_names_stay_inside_the_store(trained, name):
    with pytest.raises(EngineError, match="checkpoint name"):
        trained.save(name)
