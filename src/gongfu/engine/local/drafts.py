"""Guessing how a response goes on from a text that it may be like, so that several of its tokens are computed in one pass.

The sampler draws each token from the model's own distribution by its own random number, and a guess counts only as far as the
draws agree with it: what is sampled is the same, sooner (speculative decoding, arXiv 2211.17192, with draws fixed in advance).
"""

from __future__ import annotations

from collections.abc import Sequence

_FIRST, _MOST = 2, 8
"""Tokens guessed at once: at first, and after guesses that were right."""
_NEAR = 8
"""Places away at which a single token still says where the response goes on."""


class Draft:
    """Follows a response along the tokens that it may be `like`."""

    def __init__(self, like: Sequence[int]) -> None:
        self.like = like
        self.at = 0
        """Place of the token that is expected next."""
        self.size = _FIRST
        self._last: int | None = None
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(like):
            self._places.setdefault(token, []).append(place)

    def guess(self, room: int) -> Sequence[int]:
        """The next tokens, at most `room`."""
        return self.like[self.at : self.at + min(self.size, room)]

    def follow(self, token: int) -> None:
        """The response went on with this token."""
        expected = self.at < len(self.like) and self.like[self.at] == token
        self.at = self.at + 1 if expected else self._after(token)
        self.size = min(2 * self.size, _MOST) if expected else _FIRST
        self._last = token

    def _after(self, token: int) -> int:
        """Where it goes on after an unexpected token: behind the nearest place that reads so, else as if one was exchanged."""
        places = self._places.get(token, ())
        pairs = [p for p in places if p and self.like[p - 1] == self._last]
        near = pairs or [p for p in places if abs(p - self.at) <= _NEAR]
        return min(near, key=lambda p: abs(p - self.at)) + 1 if near else self.at + 1
