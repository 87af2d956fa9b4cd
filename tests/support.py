"""A tiny random Llama with a word-level tokenizer, written into a folder: the model of everybody's tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TEXT = (
    "look go to open close take put from in on with the a and you see is are nothing cabinet drawer fridge microwave "
    "sinkbasin countertop desk desklamp shelf apple mug pen plate book 1 2 3 4 5 clean heat cool use examine "
    "action : , . > system user assistant think hello bye"
)
WORDS = tuple(_TEXT.split())
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "\n")
TEMPLATE = (
    "{% for m in messages %}<s> {{ m['role'] }} \n {{ m['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<s> assistant \n{% endif %}"
)


def tiny_model(folder: Path, vocab: Sequence[str] = WORDS, seed: int = 0, family: str = "Llama", **shape: Any) -> Path:
    """Write a random model (40 thousand parameters, fp32, 512 positions) and its tokenizer into `folder`; returns it.

    `family`: Llama or Qwen2. `shape` overrides its config (hidden_size, num_hidden_layers, ..., dtype="bfloat16").
    """
    import torch
    import transformers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ids = tiny_tokenizer(folder, vocab)
    settings: dict[str, Any] = {
        "vocab_size": len(ids),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": ids["<s>"],
        "eos_token_id": ids["</s>"],
        "pad_token_id": ids["<pad>"],
        "initializer_range": 0.3,  # sharp enough that log-probs differ and attention matters
    }
    config = getattr(transformers, f"{family}Config")(**{**settings, **shape})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    if config.dtype is not None:
        model = model.to(config.dtype)
    model.save_pretrained(folder)
    return folder


def tiny_tokenizer(folder: Path, vocab: Sequence[str] = WORDS) -> dict[str, int]:
    """Write a word-level tokenizer (words between blanks) with a chat template; returns the ids of its words."""
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    ids = {word: i for i, word in enumerate((*SPECIAL, *dict.fromkeys(vocab)))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex("[ ]+"), "removed")
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in ("<pad>", "<s>", "</s>", "<unk>")])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    )
    _write(folder / "generation_config.json", {"eos_token_id": ids["</s>"]})
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return ids


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")
