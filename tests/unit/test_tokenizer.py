import json
import shutil

import pytest

from gongfu.core.errors import ModelError, TokenError
from gongfu.core.tokens import token_span
from gongfu.engine.protocol import Tokenizer
from gongfu.engine.tokenizer import HFTokenizer
from support import tiny_tokenizer

TALK = [{"role": "system", "content": "look"}, {"role": "user", "content": "open fridge 1"}]


def test_encodes_without_special_tokens_and_shows_them_when_decoding(tiny_folder):
    tokenizer = HFTokenizer(tiny_folder)
    assert isinstance(tokenizer, Tokenizer)
    ids = tokenizer.encode("open fridge 1")
    assert len(ids) == 3
    assert tokenizer.decode([*ids, *tokenizer.stop_ids]) == "open fridge 1 </s>"
    assert tokenizer.encode("open </s>")[-1] == tokenizer.stop_ids[0]


def test_renders_as_transformers_does(tiny_folder):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer = HFTokenizer(tiny_folder)
    for generation in (False, True):
        text = tokenizer.render(TALK, generation=generation)
        assert text == reference.apply_chat_template(TALK, tokenize=False, add_generation_prompt=generation)
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
    assert text.endswith("<s> assistant \n")


def test_spans_of_text_map_to_tokens(tiny_folder):
    tokenizer = HFTokenizer(tiny_folder)
    ids = tokenizer.encode("go to fridge 1")
    start = tokenizer.decode(ids).index("fridge")
    assert token_span(tokenizer.decode, ids, start, start + len("fridge 1")) == (2, 4)


@pytest.fixture
def folder(tmp_path):
    tiny_tokenizer(tmp_path)
    return tmp_path


def write(path, **data):
    path.write_text(json.dumps(data))


def test_stop_ids_join_generation_settings_and_tokenizer(folder):
    end = HFTokenizer(folder).encode("</s>")[0]
    write(folder / "generation_config.json", eos_token_id=[7, 8])
    assert HFTokenizer(folder).stop_ids == (7, 8, end)
    (folder / "generation_config.json").unlink()
    assert HFTokenizer(folder).stop_ids == (end,)


def test_stop_ids_fall_back_to_the_models_configuration_or_fail(folder):
    (folder / "generation_config.json").unlink()
    write(folder / "tokenizer_config.json")
    with pytest.raises(ModelError, match="end token"):
        HFTokenizer(folder)
    write(folder / "config.json", eos_token_id=5)
    assert HFTokenizer(folder).stop_ids == (5,)


def test_template_kinds(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        HFTokenizer(folder).render(TALK, generation=False)
    body = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% continue %}{% endif %}{% endfor %}"
    )
    write(folder / "tokenizer_config.json", bos_token={"content": "<s>"}, eos_token="</s>", chat_template=body)
    assert HFTokenizer(folder).render(TALK, generation=False) == "<s>open fridge 1"
    named = [
        {"name": "tool_use", "template": "x"},
        {"name": "default", "template": "{% if tools is not none %}tools{% endif %}ok"},
    ]
    write(folder / "tokenizer_config.json", eos_token="</s>", chat_template=named)
    assert HFTokenizer(folder).render(TALK, generation=False) == "ok"


def test_a_template_can_refuse(folder):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TokenError, match="roles must alternate"):
        HFTokenizer(folder).render(TALK, generation=False)
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelError, match="does not compile"):
        HFTokenizer(folder).render(TALK, generation=False)


def test_damaged_folders(folder, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ModelError, match="missing"):
        HFTokenizer(empty)
    shutil.copy(folder / "chat_template.jinja", empty / "tokenizer.json")
    with pytest.raises(ModelError, match="damaged"):
        HFTokenizer(empty)


def test_padding_and_truncation_settings_are_ignored(folder):
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.enable_truncation(2)
    raw.enable_padding(length=9)
    raw.save(str(folder / "tokenizer.json"))
    assert len(HFTokenizer(folder).encode("go to fridge 1")) == 4
