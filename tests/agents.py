"""A tiny random agent that speaks the household suite: for tests that run the real commands."""

from __future__ import annotations

from pathlib import Path

TINY_RECIPE = [
    "--suite.max-steps=4",
    "--suite.train=24",
    "--suite.seen=8",
    "--suite.unseen=8",
    "--rollout.instructions=false",
    "--rollout.max-response=6",
    "--rollout.max-context=600",
    "--method.tasks=2",
    "--method.group-size=4",
    "--eval.tasks=4",
    "--eval.every=2",
    "--run.checkpoint-every=1",
    "--run.threads=1",
]


def tiny_agent(folder: Path, seed: int = 0) -> Path:
    """Write a random Llama of 20 thousand parameters with a word-level tokenizer of the household suite."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from gongfu.engine.words import vocabulary, write_tokenizer
    from gongfu.envs.household.suite import HouseholdSuite
    from gongfu.run.demonstrations import texts

    folder.mkdir(parents=True, exist_ok=True)
    suite = HouseholdSuite(sizes={"train": 24, "seen": 8, "unseen": 8})
    size = write_tokenizer(folder, vocabulary(texts(suite, episodes=4, seed=0), size=200))
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
