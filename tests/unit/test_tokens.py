"""Spans of text in sampled ids are found by decoding prefixes; nothing is re-encoded."""

import pytest

from gongfu.core.errors import TokenError
from gongfu.core.tokens import prefix_lengths, token_span

WORDS = ["<think>", "go", " north", "</", "think>", "<action>", "open", " the box", "</action>", "!"]


def decode(ids):
    return "".join(WORDS[i] for i in ids)


def test_span_covers_exactly_the_tokens_of_the_text():
    ids = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    text = decode(ids)
    start = text.index("open the box")
    assert token_span(decode, ids, start, start + len("open the box")) == (6, 8)


def test_straddling_token_is_inside_when_it_holds_a_character_of_the_span():
    ids = [1, 2]  # "go north"
    assert token_span(decode, ids, 1, 3) == (0, 2)
    assert token_span(decode, ids, 2, 8) == (1, 2)


def test_the_same_text_in_other_tokens_gives_other_spans():
    """Re-encoding would give one canonical split; the sampled one is what counts."""
    split = ["ab", "c", "a", "bc"]

    def decode_split(ids):
        return "".join(split[i] for i in ids)

    assert token_span(decode_split, [0, 1], 1, 3) == (0, 2)
    assert token_span(decode_split, [2, 3], 1, 3) == (1, 2)


def test_unfinished_characters_settle_only_with_their_last_byte():
    data = [b"a", b"\xe5\x8a", b"\x9f", b"b"]

    def decode_bytes(ids):
        return b"".join(data[i] for i in ids).decode("utf-8", "replace")

    assert prefix_lengths(decode_bytes, [0, 1, 2, 3]) == [0, 1, 1, 2, 3]
    assert token_span(decode_bytes, [0, 1, 2, 3], 1, 2) == (2, 3)


@pytest.mark.parametrize("span", [(0, 0), (3, 2), (0, 99), (-1, 1)])
def test_spans_outside_the_text_are_refused(span):
    with pytest.raises(TokenError, match="outside"):
        token_span(decode, [1, 2], *span)


def test_a_decoder_that_rewrites_earlier_text_is_refused():
    with pytest.raises(TokenError, match="cannot be mapped"):
        prefix_lengths(lambda ids: "ab"[len(ids) - 1] * len(ids) if ids else "", [0, 1])
