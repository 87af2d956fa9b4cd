"""Batches of similar length under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def micro_batches(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices of rows of similar length, longest first, padded area at most `limit` (a longer row goes alone)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > limit:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
