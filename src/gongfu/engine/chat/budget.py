"""What may be spent on an endpoint: set aside before a request, settled after it."""

from __future__ import annotations

import asyncio

from gongfu.config.schema import ChatConfig
from gongfu.engine.chat.records import BudgetSpent, ChatCounters, Usage

_POLL = 0.02  # seconds between two looks at the budget while it is set aside for others


class Budget:
    """Holds `budget_tokens` and `budget_usd` of the settings; spending is counted in `counters`."""

    def __init__(self, settings: ChatConfig, counters: ChatCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._held = Usage()

    async def reserve(self, estimate: Usage) -> None:
        """Set aside what a request may cost at most. Raises BudgetSpent if that is not left.

        Where it is only set aside for requests in flight, waits for them: most cost less than they might.
        """
        while self._lacking(self._held + estimate):
            if lacking := self._lacking(estimate):
                raise BudgetSpent(f"the budget for {self._settings.model} is spent: {lacking}")
            await asyncio.sleep(_POLL)
        self._held += estimate

    def settle(self, estimate: Usage, used: Usage) -> None:
        """Give back what was set aside and count what was used."""
        self._held -= estimate
        self._counters.tokens_in += used.tokens_in
        self._counters.tokens_out += used.tokens_out
        self._counters.usd += self._usd(used)

    def _usd(self, usage: Usage) -> float:
        return (usage.tokens_in * self._settings.price_in + usage.tokens_out * self._settings.price_out) / 1e6

    def _lacking(self, more: Usage) -> str:
        """Which limit `more` would break, as a sentence; "" = none."""
        tokens, limit = self._counters.tokens_in + self._counters.tokens_out, self._settings.budget_tokens
        if limit and tokens + more.tokens_in + more.tokens_out > limit:
            return (
                f"{tokens} of budget_tokens = {limit} tokens are used and the request may take "
                f"{more.tokens_in + more.tokens_out}; raise budget_tokens or lower max_tokens"
            )
        usd, limit = self._counters.usd, self._settings.budget_usd
        if limit and usd + self._usd(more) > limit:
            return (
                f"{usd:.4f} of budget_usd = {limit} USD are used and the request may cost {self._usd(more):.4f}; "
                "raise budget_usd or lower max_tokens"
            )
        return ""
