"""A search server over HTTP, spoken to as Search-R1's: for corpora that fit no machine of the run (all of Wikipedia)."""

from __future__ import annotations

from typing import Any

import httpx

from gongfu.core.errors import EnvError
from gongfu.envs.searchqa.corpus import Passage, passage_of

__all__ = ["SearchServer"]


class SearchServer:
    """POSTs {"queries": [query], "topk": k, "return_scores": true}; expects {"result": [[{"document": passage}, ...]]}.

    Raises EnvError when the server does not answer in `timeout` seconds or says something else: it costs the episode.
    """

    def __init__(self, url: str, *, timeout: float = 60.0, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._client = httpx.Client(timeout=timeout, transport=transport)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        try:
            answer = self._client.post(self.url, json={"queries": [query], "topk": k, "return_scores": True})
            answer.raise_for_status()
            (hits,) = answer.json()["result"]
            return tuple(passage_of(_document(hit)) for hit in hits[:k])
        except httpx.HTTPError as e:
            raise EnvError(f"the search server at {self.url} failed: {type(e).__name__}: {e}") from e
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise EnvError(f"the search server at {self.url} answered in another form: {type(e).__name__}: {e}") from e


def _document(hit: Any) -> Any:
    return hit.get("document", hit)
