"""One question: search, read, search again, answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gongfu.core.errors import EnvError
from gongfu.envs.protocol import Observation, Step
from gongfu.envs.searchqa import candidates
from gongfu.envs.searchqa.corpus import Passage
from gongfu.envs.searchqa.index import Retriever
from gongfu.envs.searchqa.scoring import exact_match, f1_score

__all__ = ["SearchQAEnv", "read_action"]

NOT_UNDERSTOOD = "Nothing happens. Answer with search[...] or answer[...]."
NOTHING_FOUND = "Nothing was found."
NO_TURN_LEFT = "No turn is left."
_ACTION = re.compile(r"\s*(search|answer)\s*\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)
_LONGEST_QUERY = 2000  # characters; a run-away query must not become a slow one


def read_action(action: str) -> tuple[str, str]:
    """("search" or "answer", its text), or two empty strings.

    >>> read_action("Search[ Red Hill ]")
    ('search', 'Red Hill')
    """
    match = _ACTION.fullmatch(action)
    return (match[1].lower(), " ".join(match[2].split())) if match else ("", "")


class SearchQAEnv:
    """One episode. Implements `gongfu.envs.protocol.Env`.

    `search[text]` shows the `top_k` best passages, `answer[text]` ends the episode: outcome "success" by exact match, score and
    reward the F1 with the best gold answer (`score="f1"`) or the exact match (`score="em"`). A search on the last of
    `max_steps` steps is not carried out. `candidates`: list likely actions; every other text is accepted all the same.
    """

    def __init__(
        self,
        question: str,
        goal: str,
        answers: Sequence[str],
        retriever: Callable[[], Retriever],
        *,
        top_k: int = 3,
        max_steps: int = 6,
        list_candidates: bool = True,
        score: str = "f1",
    ) -> None:
        self._question = question
        self._goal = goal
        self._answers = tuple(answers)
        self._retriever = retriever
        self._top_k = top_k
        self._max_steps = max_steps
        self._list_candidates = list_candidates
        self._score = score
        self._phase = "new"
        self._steps = 0
        self._seen: dict[Passage, None] = {}

    def reset(self) -> Observation:
        if self._phase != "new":
            raise EnvError(f"a search environment plays one episode; this one is {self._phase}: make a new one")
        self._phase = "running"
        return self._observe(f"Your task is to: {self._goal}.")

    def step(self, action: str) -> Step:
        if self._phase != "running":
            raise EnvError(f"cannot step a search environment that is {self._phase}")
        self._steps += 1
        verb, text = read_action(action)
        if verb == "answer":
            return self._end(text)
        last = self._steps >= self._max_steps
        if last:
            self._phase = "over"
            return Step(self._observe(NO_TURN_LEFT), truncated=True, outcome="failure", score=0.0)
        return Step(self._observe(self._search(text) if verb else NOT_UNDERSTOOD))

    def close(self) -> None:
        self._phase = "closed"

    def _search(self, query: str) -> str:
        found = self._retriever().search(query[:_LONGEST_QUERY], self._top_k)
        self._seen |= dict.fromkeys(found)
        return "\n".join(str(passage) for passage in found) or NOTHING_FOUND

    def _end(self, answer: str) -> Step:
        self._phase = "over"
        right = exact_match(answer, self._answers)
        score = f1_score(answer, self._answers) if self._score == "f1" else float(right)
        said = self._observe("Your answer is right." if right else "Your answer is wrong.")
        return Step(said, reward=score, terminated=True, outcome="success" if right else "failure", score=score)

    def _observe(self, text: str) -> Observation:
        return Observation(text, candidates.actions(self._question, self._seen) if self._list_candidates else None)
