"""`gongfu pretrain`: the nano model, a small Llama trained from scratch on a suite's own transcripts.

So that learning curves of several seeds can be had on a laptop CPU: about a million parameters, one token a word.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gongfu.config.schema import PretrainConfig, Recipe
from gongfu.core.records import Row, Trajectory
from gongfu.core.seeds import rng_for, seed_for
from gongfu.engine.words import vocabulary, write_tokenizer
from gongfu.envs.protocol import Suite
from gongfu.run.demonstrations import texts, transcripts
from gongfu.run.proposals import PROPOSAL_NOISE, proposal_stream, skill_texts, taught_rules

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY_EPISODES = 1500
VERB_EPISODES = 512
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class WeightedRow:
    """Token ids and the weight of each in the loss (the first token has none)."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]


def verb_weights(trajectories: Sequence[Trajectory], *, most: float = 10.0) -> dict[int, float]:
    """Weight of an expert action by its first token, so that every kind of action counts the same in all.

    Without it the many moves of a search, whose order is random anyway, drown the few that show what the goal asks for.
    """
    counts = Counter(
        turn.call.response[0] for t in trajectories for turn in t.turns if turn.call is not None and turn.call.role == "expert"
    )
    even = sum(counts.values()) / max(1, len(counts))
    return {token: min(most, even / count) for token, count in counts.items()}


def weighted_row(trajectory: Trajectory, observation_weight: float, verbs: Mapping[int, float]) -> WeightedRow:
    """The whole conversation; expert actions weigh as `verbs` says, random ones 0, everything else `observation_weight`."""
    last = trajectory.turns[-1].call
    assert last is not None
    tokens = last.prompt + last.response
    weights = [observation_weight] * len(tokens)
    weights[0] = 0.0
    for turn in trajectory.turns:
        call = turn.call
        assert call is not None
        start, end = len(call.prompt), len(call.prompt) + len(call.response)
        weight = verbs.get(call.response[0], 1.0) if call.role == "expert" else 0.0
        weights[start:end] = [weight] * (end - start)
    return WeightedRow(tokens, tuple(weights))


def proposal_row(row: Row, observation_weight: float) -> WeightedRow:
    """A teacher's proposal: the answer weighs 1 a token, the two episodes before it `observation_weight`."""
    weights = [1.0 if scored else observation_weight for scored in row.mask]
    return WeightedRow(row.tokens, (0.0, *weights[1:]))


def interleave(
    first: Iterator[WeightedRow], second: Iterator[WeightedRow], *, share: float, seed: int
) -> Iterator[WeightedRow]:
    """Endless rows of two streams; a row is of the second one with probability `share`."""
    rng = rng_for(seed, purpose="interleave")
    while True:
        yield next(second) if rng.random() < share else next(first)


def batches(rows: Iterator[WeightedRow], tokens: int, *, pool: int = 8) -> Iterator[list[WeightedRow]]:
    """Batches of at most `tokens` padded tokens: `pool` batches' worth of rows is sorted by length, cut, and shuffled."""
    import random

    number = 0
    while True:
        window: list[WeightedRow] = []
        while sum(len(r.tokens) for r in window) < pool * tokens:
            window.append(next(rows))
        window.sort(key=lambda r: len(r.tokens))
        cut: list[list[WeightedRow]] = [[]]
        for row in window:
            if (len(cut[-1]) + 1) * len(row.tokens) > tokens and cut[-1]:
                cut.append([])
            cut[-1].append(row)
        random.Random(number).shuffle(cut)
        yield from cut
        number += 1


def pretrain(
    recipe: Recipe,
    suite: Suite,
    make_collector: Callable[[Any], Any],
    out: Path,
    *,
    report: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
    snapshots: Sequence[int] = (),
) -> Path:
    """Train a nano model and write it to `out` (a model folder with the recipe that made it).

    `make_collector(tokenizer)` gives the collector whose text rules the model learns. `snapshots` are steps whose weights
    are kept too, in `out`-step-N.
    """
    import torch

    from gongfu.engine.tokenizer import HFTokenizer

    settings, seed = recipe.pretrain, recipe.run.seed
    teaches = settings.skills.share > 0 or settings.skills.proposals > 0
    torch.manual_seed(seed_for(seed, purpose="pretrain"))
    if settings.start_from:
        model = _load(Path(settings.start_from), out)
        tokenizer = HFTokenizer(out)
    else:
        words = itertools.chain(
            texts(suite, episodes=VOCABULARY_EPISODES, seed=seed),
            skill_texts(suite, taught_rules(recipe), episodes=VOCABULARY_EPISODES, seed=seed) if teaches else (),
        )
        size = write_tokenizer(out, vocabulary(words, size=settings.vocabulary))
        tokenizer = HFTokenizer(out)
        model = _new_model(settings, size, tokenizer.stop_ids[0])
    optimisers = _optimisers(model, settings)
    collector = make_collector(tokenizer)
    stream = transcripts(
        collector,
        suite,
        tokenizer,
        seed=seed,
        noise=settings.noise,
        random_share=settings.random_share,
        informed_share=settings.informed_share,
        skills=settings.skills,
    )
    first = list(itertools.islice(stream, VERB_EPISODES))
    verbs = verb_weights(first) if settings.balance_verbs else {}
    rows = (weighted_row(t, settings.observation_weight, verbs) for t in itertools.chain(first, stream))
    if settings.skills.proposals:
        written = proposal_stream(collector, suite, tokenizer, taught_rules(recipe), seed=seed, noise=PROPOSAL_NOISE)
        answers = (proposal_row(row, settings.observation_weight) for row in written)
        rows = interleave(rows, answers, share=settings.skills.proposals, seed=seed)
    started, seen = time.perf_counter(), 0
    for step, batch in zip(range(1, settings.steps + 1), batches(rows, settings.batch_tokens), strict=False):
        for optimiser, lr in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = lr * _schedule(step, settings)
        loss, accuracy = _loss(model, batch, settings.observation_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, _ in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        seen += sum(len(r.tokens) for r in batch)
        if step % 20 == 0 or step == settings.steps:
            speed = seen / (time.perf_counter() - started)
            report(
                step, {"loss": float(loss.detach()), "accuracy": accuracy, "tokens": float(seen), "perf/tokens_per_s": speed}
            )
        if step in snapshots:
            _save(model, tokenizer_from=out, out=out.with_name(f"{out.name}-step-{step}"), recipe=recipe)
    _save(model, tokenizer_from=out, out=out, recipe=recipe)
    return out


def _load(folder: Path, out: Path) -> Any:
    """The model of a folder in float32; its tokenizer is copied to `out`."""
    import shutil

    import torch
    from transformers import AutoModelForCausalLM

    from gongfu.engine.models import resolve_model

    folder = resolve_model(str(folder))
    out.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if folder.resolve() != out.resolve():
            shutil.copyfile(folder / name, out / name)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


def _new_model(settings: PretrainConfig, vocabulary_size: int, end: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=settings.hidden,
        intermediate_size=settings.mlp,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.positions,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def _optimisers(model: Any, settings: PretrainConfig) -> list[tuple[Any, float]]:
    """(optimiser, peak learning rate): Muon for the matrices of the blocks, AdamW for embeddings and norms."""
    import torch

    from gongfu.run.muon import Muon

    blocks = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is b for b in blocks)]
    adamw = torch.optim.AdamW(others, lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.01)
    return [(Muon(blocks, lr=settings.matrix_lr), settings.matrix_lr), (adamw, settings.lr)]


def _schedule(step: int, settings: PretrainConfig, warmup: int = 50) -> float:
    """Linear warm-up, constant, then down to a tenth over the last `decay` of the steps."""
    left = (settings.steps - step) / (settings.decay * settings.steps) if settings.decay else 1.0
    return min(step / warmup, 1.0, 0.1 + 0.9 * left)


def _loss(model: Any, batch: Sequence[WeightedRow], observation_weight: float) -> tuple[Tensor, float]:
    """Weighted mean cross entropy, and the greedy accuracy on action tokens. Right padding needs no attention mask."""
    import torch
    import torch.nn.functional as F

    width = max(len(r.tokens) for r in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    weights = torch.zeros(len(batch), width)
    for i, row in enumerate(batch):
        ids[i, : len(row.tokens)] = torch.tensor(row.tokens)
        weights[i, : len(row.weights)] = torch.tensor(row.weights)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    kept = weights[:, 1:] > 0
    logits, targets, weights = model.lm_head(hidden[kept]), ids[:, 1:][kept], weights[:, 1:][kept]
    loss = (F.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
    actions = weights > observation_weight
    right = (logits.argmax(-1) == targets)[actions].float().mean()
    return loss, float(right)


def _save(model: Any, *, tokenizer_from: Path, out: Path, recipe: Recipe) -> None:
    import shutil

    from gongfu.config.load import to_toml

    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    for name in TOKENIZER_FILES:
        if out != tokenizer_from:
            shutil.copyfile(tokenizer_from / name, out / name)
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, "pad_token_id": 0}))
    (out / "recipe.toml").write_text(to_toml(recipe))
