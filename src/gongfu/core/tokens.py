"""Spans of text in sampled tokens, found by decoding prefixes of the sampled ids (nothing is ever re-encoded)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gongfu.core.errors import TokenError

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "�"  # what a decoder prints for a character whose bytes are not complete yet


def prefix_lengths(decode: Decode, ids: Sequence[int]) -> list[int]:
    """Number of characters that `ids[:k]` settles, for k = 0..len(ids). Never decreases.

    Raises TokenError if a prefix decodes to text that the whole does not start with.
    """
    whole = decode(ids)
    lengths = [0]
    for k in range(1, len(ids) + 1):
        text = decode(ids[:k])
        if k < len(ids):
            text = text.rstrip(_UNFINISHED)
        if not whole.startswith(text):
            raise TokenError(
                f"the first {k} of {len(ids)} tokens decode to {text[-40:]!r}, which the whole text does not start with; "
                "spans cannot be mapped with this tokenizer's decoder"
            )
        lengths.append(max(lengths[-1], len(text)))
    return lengths


def token_span(decode: Decode, ids: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """Half-open range of tokens that overlap the characters `start:end` of `decode(ids)`.

    A token that straddles a border is inside when it holds at least one character of the span.
    Raises TokenError for a span that is empty or outside the text.
    """
    lengths = prefix_lengths(decode, ids)
    if not 0 <= start < end <= lengths[-1]:
        raise TokenError(f"span {start}:{end} is empty or outside the text of {lengths[-1]} characters")
    first = next(k for k in range(len(ids)) if lengths[k + 1] > start)
    last = next(k for k in range(len(ids)) if lengths[k + 1] >= end)
    return first, last + 1
