"""A small suite in which luck already pays, and a tiny random agent that speaks it: for tests that run the real commands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from gongfu.core.errors import EnvError
from gongfu.core.records import Task
from gongfu.envs.protocol import Observation, Step

WORDS = ("apple", "bread", "candle", "drawer", "egg", "fork")
TURNS = 3

TOY_RECIPE = [
    "--suite.name=custom",
    "--suite.object=toy:ToySuite",
    "--rollout.mode=choose",
    "--rollout.max-context=400",
    "--method.tasks=2",
    "--method.group-size=4",
    "--optim.lr=1e-2",
    "--eval.tasks=8",
    "--eval.every=2",
    "--eval.temperature=1",
    "--run.checkpoint-every=1",
    "--run.threads=1",
]


class ToySuite:
    """Three times: pick the named word out of three. The score is the share of right picks."""

    name = "toy"
    splits = ("train", "seen")
    max_steps = TURNS

    def tasks(self, split: str) -> Sequence[Task]:
        return [
            Task(f"toy/{split}/{i}", self.name, WORDS[i % len(WORDS)], f"pick the {WORDS[i % len(WORDS)]}", split, seed=i)
            for i in range(24)
        ]

    def make(self, task: Task) -> ToyEnv:
        return ToyEnv(task)

    def instructions(self) -> str:
        return "Pick the word you are asked for."

    def expert(self, task: Task, rng: random.Random, *, noise: float = 0.0) -> ToyExpert:
        return ToyExpert(task.kind)


class ToyExpert:
    def __init__(self, word: str) -> None:
        self.word = word

    def act(self, observation: Observation) -> str:
        return self.word


class ToyEnv:
    def __init__(self, task: Task) -> None:
        self.task, self.turn, self.right = task, 0, 0
        self.rng = random.Random(f"{task.id}")

    def reset(self) -> Observation:
        return self._observation()

    def step(self, action: str) -> Step:
        if self.turn == TURNS:
            raise EnvError("the episode is over")
        self.right += action == self.task.kind
        self.turn += 1
        over = self.turn == TURNS
        outcome = ("success" if self.right == TURNS else "failure") if over else None
        score = self.right / TURNS if over else None
        return Step(self._observation(), float(action == self.task.kind), over, False, outcome, score)

    def close(self) -> None:
        pass

    def _observation(self) -> Observation:
        others = self.rng.sample([w for w in WORDS if w != self.task.kind], 2)
        shown = sorted([self.task.kind, *others])
        return Observation(f"Turn {self.turn}: {self.task.goal} out of {', '.join(shown)}.", tuple(shown))


def tiny_agent(folder: Path, seed: int = 0) -> Path:
    """Write a random Llama of 20 thousand parameters with a word-level tokenizer of the toy suite."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from gongfu.engine.words import vocabulary, write_tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    texts = [ToyEnv(task).reset().text for task in ToySuite().tasks("train")]
    size = write_tokenizer(
        folder, vocabulary([*texts, *WORDS, ToySuite().instructions(), "Answer with one action and nothing else."])
    )
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
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
