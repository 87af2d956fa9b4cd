"""Draws from distributions, each row by its own random number."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from gongfu.core.seeds import seed_for


def generator(seed: int, sample: int) -> random.Random:
    """The random numbers of one sample of a request: they depend on nothing else in the batch."""
    return random.Random(seed_for(seed, purpose="sample", rollout=sample))


def draw(logits_BV: Tensor, temperatures: Sequence[float], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Tokens drawn by inverting the cumulative distribution, and their log-probs.

    Log-probs are at each row's temperature; a temperature of 0 takes the likeliest token and its log-prob at 1.
    """
    heat = torch.tensor([t if t > 0 else 1.0 for t in temperatures], device=logits_BV.device)
    logprobs_BV = logits_BV.div_(heat[:, None]).log_softmax(-1)
    if all(t == 0 for t in temperatures):
        tokens_B = logprobs_BV.argmax(-1)
    else:
        cumulated_BV = logprobs_BV.exp().cumsum(-1)
        # Just below 1 in float32: the drawn index always has probability above 0.
        u = torch.tensor(uniforms, device=logits_BV.device).clamp_(max=1 - 2**-24)[:, None]
        tokens_B = torch.searchsorted(cumulated_BV, u * cumulated_BV[:, -1:], right=True)[:, 0]
        tokens_B = tokens_B.clamp_(max=logits_BV.shape[1] - 1)
        if 0 in temperatures:
            greedy = torch.tensor([t == 0 for t in temperatures], device=logits_BV.device)
            tokens_B = torch.where(greedy, logprobs_BV.argmax(-1), tokens_B)
    chosen_B = logprobs_BV.gather(1, tokens_B[:, None])[:, 0]
    return tokens_B.tolist(), chosen_B.tolist()


def pick(logprobs: Sequence[float], temperature: float, uniform: float) -> int:
    """Index drawn from softmax(logprobs / temperature); temperature 0 takes the first best."""
    scores = torch.tensor(logprobs, dtype=torch.float64)
    if temperature == 0:
        return int(scores.argmax())
    cumulated = (scores / temperature).softmax(0).cumsum(0)
    return min(int(torch.searchsorted(cumulated, uniform * float(cumulated[-1]), right=True)), len(logprobs) - 1)
