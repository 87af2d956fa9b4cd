"""A word-level tokenizer for small models: one token a word or number of the given texts, bytes for everything else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PIECE = r" ?[A-Za-z']+| ?[0-9]+|[^A-Za-z0-9]"
ROLES = ("system", "user", "assistant")
END, PAD = "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def vocabulary(texts: Iterable[str], *, size: int = 4096) -> list[str]:
    """The most frequent pieces of the texts, most frequent first; ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(PIECE, text))
    return [piece for piece, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]


def write_tokenizer(folder: Path, pieces: Iterable[str]) -> int:
    """Write tokenizer.json and its chat template; returns the vocabulary size.

    Lossless for any text: what is not a known piece is spelled in characters and bytes.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    special = [PAD, END, *(f"<|{role}|>" for role in ROLES)]
    spelled = [chr(c) for c in range(32, 127)] + ["\n"]
    words = [piece for piece in dict.fromkeys(pieces) if piece not in spelled]
    # One whole word must beat its spelling: a word costs 1, a character 4, a byte 16.
    entries = [(token, 0.0) for token in special]
    entries += [(f"<0x{byte:02X}>", -16.0) for byte in range(256)]
    entries += [(c, -4.0) for c in spelled] + [(word, -1.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(entries, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}))
    return len(entries)
