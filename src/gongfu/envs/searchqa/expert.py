"""Scripted searchers: one that understands the questions of generated worlds, one that is told the evidence of a file's."""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

from gongfu.core.errors import TaskError
from gongfu.envs.protocol import Observation
from gongfu.envs.searchqa.grammar import Chain, Comparison, read_fact, read_question
from gongfu.envs.searchqa.scoring import normalize

__all__ = ["InformedSearcher", "WorldSearcher"]

_TASK = re.compile(r'Your task is to: answer "(.+)"\.')


class _Searcher(ABC):
    """`noise` is the probability, at each step, of a search for something else that was named; it never ends the episode."""

    def __init__(self, rng: random.Random, noise: float) -> None:
        if not 0 <= noise <= 1:
            raise ValueError(f"noise is a probability, got {noise}")
        self._rng = rng
        self._noise = noise
        self._text = ""
        self._searched: set[str] = set()
        self._taken = 0
        self.question = ""
        self.explored = False
        """Whether the last action was noise: not a thing to imitate."""

    def act(self, observation: Observation) -> str:
        """The next action. Raises TaskError if no question was ever shown."""
        if task := _TASK.search(observation.text):
            self.question = task[1]
        else:
            self._text += f"\n{observation.text}"
        if not self.question:
            raise TaskError("the searcher must see the question first")
        self._taken += 1
        searches = [action for action in observation.actions or () if action.startswith("search[")]
        self.explored = self._rng.random() < self._noise and bool(searches)
        return self._rng.choice(searches) if self.explored else self._decide()

    @abstractmethod
    def _decide(self) -> str:
        """The next action that the searcher wants."""

    def _look_up(self, *queries: str) -> str:
        """A search for the first of the queries that was not made yet; empty if all were."""
        for query in queries:
            if query not in self._searched:
                self._searched.add(query)
                return f"search[{query}]"
        return ""


class WorldSearcher(_Searcher):
    """Knows no more than an agent: it understands the question, looks up one name after the other and reads what it finds.

    Implements `gongfu.envs.protocol.Expert`.
    """

    def __init__(self, rng: random.Random, *, noise: float = 0.0) -> None:
        super().__init__(rng, noise)

    def _decide(self) -> str:
        match read_question(self.question):
            case Chain(start, relations):
                name = start
                for relation in relations:
                    found = read_fact(self._text, name, relation)
                    if not found:
                        return self._look_up(name, f"{relation} of {name}", self.question) or f"answer[{name}]"
                    name = found
                return f"answer[{name}]"
            case Comparison(names, relation):
                years = {name: read_fact(self._text, name, relation) for name in names}
                for name, year in years.items():
                    if not year:
                        return self._look_up(name, f"{relation} of {name}", self.question) or f"answer[{names[0]}]"
                return f"answer[{min(names, key=lambda name: int(years[name]))}]"
        raise TaskError(f"the searcher does not understand the question {self.question!r}")


class InformedSearcher(_Searcher):
    """Is told the gold answers and the titles of the evidence, and answers only with what it has found.

    It looks up the evidence, then, if the answer was not there, the question itself. An answer that no passage held is not
    given ("yes" and "no" are, once something was read), so that nobody learns from it to answer without a source.
    Implements `gongfu.envs.protocol.Expert`.
    """

    def __init__(
        self, rng: random.Random, answers: Sequence[str], support: Sequence[str], *, turns: int, noise: float = 0.0
    ) -> None:
        super().__init__(rng, noise)
        self._answers = tuple(answers)
        self._support = tuple(support)
        self._turns = turns

    def _decide(self) -> str:
        last = self._taken >= self._turns
        if not last and (search := self._look_up(*self._support)):
            return search
        answer = self._found()
        if not answer and not last and (search := self._look_up(self.question)):
            return search
        return f"answer[{answer or 'unknown'}]"

    def _found(self) -> str:
        """A gold answer that was read; "yes" or "no" when anything was."""
        read = f" {normalize(self._text)} "
        for answer in self._answers:
            if f" {normalize(answer)} " in read or (self._text and normalize(answer) in ("yes", "no")):
                return answer
        return ""
