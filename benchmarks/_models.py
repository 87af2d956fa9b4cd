"""A random model of nano's shape that speaks the household worlds: for counting and quick checks, whatever the weights."""

from __future__ import annotations

from pathlib import Path

from gongfu.config.schema import PretrainConfig


def random_nano(folder: Path, *, hidden: int = 128, layers: int = 4, seed: int = 0) -> Path:
    """Write the model and its tokenizer into `folder`; returns it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from gongfu.engine.tokenizer import HFTokenizer
    from gongfu.engine.words import vocabulary, write_tokenizer
    from gongfu.envs.household.suite import HouseholdSuite
    from gongfu.run.demonstrations import texts

    shape = PretrainConfig()
    size = write_tokenizer(folder, vocabulary(texts(HouseholdSuite(), episodes=60, seed=seed)))
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=HFTokenizer(folder).stop_ids[0],
        pad_token_id=0,
        initializer_range=0.1,
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
