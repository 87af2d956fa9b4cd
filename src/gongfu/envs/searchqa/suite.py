"""The search suite: generated worlds, or questions of the usual files over a corpus of passages."""

from __future__ import annotations

import difflib
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from gongfu.core.errors import TaskError
from gongfu.core.records import Task, Trajectory
from gongfu.envs.protocol import Env, Expert
from gongfu.envs.searchqa.corpus import Passage, check_corpus, distinct, read_corpus
from gongfu.envs.searchqa.env import SearchQAEnv
from gongfu.envs.searchqa.expert import InformedSearcher, WorldSearcher
from gongfu.envs.searchqa.failures import FAILURE_MODES, diagnose
from gongfu.envs.searchqa.index import BM25, Dense, Embedder, Retriever
from gongfu.envs.searchqa.readers import Question, find_files, read_questions
from gongfu.envs.searchqa.world import KINDS, MOST_PEOPLE, World, WorldQuestion, make_world

__all__ = ["GENERATED_SPLITS", "SearchQASuite"]

GENERATED_SPLITS = ("train", "seen", "unseen")
"""Training questions; other questions about the same worlds; questions about worlds that training never shows."""

_INSTRUCTIONS = """You answer a question by searching a collection of passages. Each turn, answer with one of:
search[X] | answer[X]
search[X] shows the passages that fit the text X best. answer[X] gives your answer, a name, number or short phrase, and ends \
the task. A question may need several searches: look up a name in it, then the names that you find."""


class SearchQASuite:
    """Questions to be answered by search. Implements `gongfu.envs.protocol.Suite`.

    `source`: "generated" (splits train, seen, unseen); a file of questions (those of about one id in ten, by a hash, are the
    split seen, the others train); or a folder with one such file a split, named by the split (train.jsonl, hotpotqa.json, ...).
    `corpus`: the file of passages that file questions are searched in; empty = those that the questions bring along.
    `retriever`: "bm25"; "dense", by the vectors of `embedder()`; "server", a search server at `url`.
    `kinds`: the kinds of questions to keep; empty = all. `top_k`: passages a search shows.
    `candidates`: list likely actions. `score`: what an episode is scored, "f1" or "em" (exact match); success is exact match.
    For generated worlds only: `worlds` and `unseen_worlds`, `people` (in each), `sizes` (tasks per split), `seed`.

    Raises TaskError for an unknown kind, setting or split, and for missing, unreadable or empty data.
    """

    name = "searchqa"

    def __init__(
        self,
        source: str | Path = "generated",
        corpus: str | Path = "",
        kinds: Sequence[str] | None = None,
        *,
        retriever: Literal["bm25", "dense", "server"] = "bm25",
        embedder: Callable[[], Embedder] | None = None,
        url: str = "",
        top_k: int = 3,
        max_steps: int = 6,
        candidates: bool = True,
        score: Literal["f1", "em"] = "f1",
        worlds: int = 16,
        unseen_worlds: int = 4,
        people: int = 16,
        sizes: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        self.generated = str(source) == "generated"
        if retriever not in ("bm25", "dense", "server") or score not in ("f1", "em"):
            raise TaskError(f"cannot use retriever {retriever!r} (bm25, dense, server) with score {score!r} (f1, em)")
        if (retriever == "dense") != (embedder is not None):
            raise TaskError('retriever "dense" goes with an embedder, and an embedder with it')
        if (retriever == "server") != bool(url):
            raise TaskError('retriever "server" goes with a url, and a url with it')
        if self.generated and (corpus or retriever == "server"):
            raise TaskError("generated worlds bring their own passages: leave out corpus and url, or give source a file")
        if retriever == "server" and corpus:
            raise TaskError("a search server has its own passages: leave out corpus")
        if top_k < 1 or max_steps < 1 or worlds < 1 or unseen_worlds < 0 or not 4 <= people <= MOST_PEOPLE:
            raise TaskError(
                f"cannot use top_k={top_k}, max_steps={max_steps}, worlds={worlds}, unseen_worlds={unseen_worlds}, "
                f"people={people} (4 to {MOST_PEOPLE})"
            )
        self.max_steps = max_steps
        self._kinds = tuple(kinds or ())
        self._retriever_name = retriever
        self._embedder = embedder
        self._url = url
        self._top_k = top_k
        self._candidates = candidates
        self._score = score
        self._people = people
        self._seed = seed
        self._corpus = Path(corpus).expanduser() if corpus else None
        self._tasks: dict[str, tuple[Task, ...]] = {}
        self._sizes = {"train": 480, "seen": 120, "unseen": 120}
        self._files: Mapping[str, Path] = {}
        self._source = Path(source).expanduser()
        self._retriever: Retriever | None = None
        if self.generated:
            self.splits: tuple[str, ...] = GENERATED_SPLITS
            self._numbers = {"train": range(worlds), "seen": range(worlds), "unseen": range(worlds, worlds + unseen_worlds)}
            for split, size in (sizes or {}).items():
                self._sizes[self._known(split)] = size
            self.kinds = _known_kinds(self._kinds, KINDS) or KINDS
        elif self._source.is_file():
            self.splits = ("train", "seen")
        else:
            self._files = find_files(self._source)
            self.splits = tuple(self._files)
        if self._corpus is not None:
            check_corpus(self._corpus)

    def __getstate__(self) -> dict[str, Any]:
        """Without the index: a worker process builds its own."""
        return {**self.__dict__, "_retriever": None}

    # ------------------------------------------------------------------ protocol

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, always the same. Raises TaskError if it is unknown or empty."""
        if self._known(split) not in self._tasks:
            tasks = self._generated_tasks(split) if self.generated else self._file_tasks(split)
            if not tasks:
                of = " of these kinds" if self._kinds else ""
                dealt = f": by their ids all of {self._source} are in the other split" if self._source.is_file() else ""
                raise TaskError(f"searchqa split {split!r} has no questions{of or dealt}")
            self._tasks[split] = tuple(tasks)
        return self._tasks[split]

    def prepare(self) -> None:
        """Reads and indexes the whole corpus of file questions. Raises TaskError naming the file and the line."""
        if not self.generated:
            self._file_retriever()

    def make(self, task: Task) -> Env:
        """A new environment for one episode of a task of this suite."""
        try:
            question, answers = task.payload["question"], task.payload["answers"]
            world = int(task.payload["world"]) if "world" in task.payload else None
            people = int(task.payload["people"]) if world is not None else 0
        except (KeyError, TypeError, ValueError) as e:
            raise TaskError(f"task {task.id} is no question: its payload lacks or misstates {e}") from e

        def retriever() -> Retriever:
            return self._file_retriever() if world is None else self._world_retriever(task.seed, world, people)

        return SearchQAEnv(
            question,
            task.goal,
            answers,
            retriever,
            top_k=self._top_k,
            max_steps=self.max_steps,
            list_candidates=self._candidates,
            score=self._score,
        )

    def instructions(self) -> str:
        return _INSTRUCTIONS

    def expert(self, task: Task, rng: random.Random, *, noise: float = 0.0) -> Expert:
        """A scripted searcher for one episode. For a question of a file it is told answers and evidence; see its class."""
        if "world" in task.payload:
            return WorldSearcher(rng, noise=noise)
        support = task.payload.get("support", ())
        return InformedSearcher(rng, task.payload["answers"], support, turns=self.max_steps, noise=noise)

    failure_modes = FAILURE_MODES

    def diagnose(self, trajectory: Trajectory) -> str:
        """Why an episode failed, measured; see `gongfu.envs.searchqa.failures`."""
        return diagnose(trajectory)

    # ------------------------------------------------------------------ what is behind a task

    def world(self, task: Task) -> World:
        """The world of a generated task."""
        if "world" not in task.payload:
            raise TaskError(f"task {task.id} is a question of a file; it has no generated world")
        return make_world(task.seed, task.payload["world"], task.payload["people"])

    def _world_retriever(self, seed: int, number: int, people: int) -> Retriever:
        if self._embedder is None:
            return _world_bm25(seed, number, people)
        return _world_dense(seed, number, people, self._embedder)

    def _file_retriever(self) -> Retriever:
        if self._retriever is None:
            if self._retriever_name == "server":
                from gongfu.envs.searchqa.remote import SearchServer

                self._retriever = SearchServer(self._url)
            else:
                passages = read_corpus(self._corpus) if self._corpus else self._own_passages()
                self._retriever = Dense(passages, self._embedder) if self._embedder else BM25(passages)
        return self._retriever

    def _own_passages(self) -> tuple[Passage, ...]:
        paths = self._files.values() or [self._source]
        passages = distinct(p for path in paths for question in _questions(path) for p in question.passages)
        if not passages:
            raise TaskError(f"the questions at {self._source} bring no passages: set suite.corpus to a file of them")
        return passages

    # ------------------------------------------------------------------ making tasks

    def _known(self, split: str) -> str:
        if split in self.splits:
            return split
        near = difflib.get_close_matches(split, self.splits, n=1, cutoff=0)
        raise TaskError(f"searchqa has no split {split!r}; did you mean {near[0]!r}? It has {', '.join(self.splits)}")

    def _generated_tasks(self, split: str) -> list[Task]:
        """Kinds take turns, and so do worlds. Of a world's questions every fifth is kept for the split seen."""
        numbers, tasks = self._numbers[split], []
        if not numbers:
            return []
        for i in range(self._sizes[split]):
            kind = self.kinds[i % len(self.kinds)]
            turn = i // len(self.kinds)
            number = numbers[turn % len(numbers)]
            listed = _questions_of(self._seed, number, self._people, kind, split)
            if turn // len(numbers) >= len(listed):
                raise TaskError(
                    f"searchqa split {split!r} wants {self._sizes[split]} tasks, but world {number} has only {len(listed)} "
                    f"{kind} questions for it: ask for fewer tasks, more worlds or more people"
                )
            question = listed[turn // len(numbers)]
            payload = {"question": question.text, "answers": [question.answer], "world": number, "people": self._people}
            tasks.append(self._task(split, kind, f"{i:05d}", payload, seed=self._seed))
        return tasks

    def _file_tasks(self, split: str) -> list[Task]:
        if self._corpus is None and self._retriever_name != "server":
            self._own_passages()  # questions without anything to search are an error now, not in the first episode
        if self._files:
            questions = _questions(self._files[split])
        else:
            questions = tuple(q for q in _questions(self._source) if _is_kept(q.id) == (split == "seen"))
        _known_kinds(self._kinds, sorted({q.kind for q in questions}))
        tasks = []
        for q in questions:
            if not self._kinds or q.kind in self._kinds:
                payload = {"question": q.text, "answers": [*q.answers], "support": [*q.support]}
                tasks.append(self._task(split, q.kind, q.id, payload))
        return tasks

    def _task(self, split: str, kind: str, number: str, payload: dict[str, Any], seed: int = 0) -> Task:
        goal = f'answer "{payload["question"]}"'
        return Task(f"searchqa/{split}/{kind}/{number}", self.name, kind, goal, split, seed, payload)


def _known_kinds(kinds: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    for kind in kinds:
        if kind not in known:
            near = difflib.get_close_matches(kind, known, n=1, cutoff=0)[0]
            raise TaskError(f"searchqa has no kind {kind!r}; did you mean {near!r}? It has {', '.join(known)}")
    if len(set(kinds)) < len(kinds):
        raise TaskError(f"kinds must name each kind at most once, got {list(kinds)}")
    return tuple(kinds)


def _is_kept(id: str) -> bool:
    """Whether a question of a single file belongs to the split seen: 26 of 256 values of a hash of its id."""
    return hashlib.blake2b(id.encode(), digest_size=1).digest()[0] % 10 == 0


@lru_cache(maxsize=16)
def _questions(path: Path) -> tuple[Question, ...]:
    return tuple(read_questions(path))


@lru_cache(maxsize=512)
def _questions_of(seed: int, number: int, people: int, kind: str, split: str) -> tuple[WorldQuestion, ...]:
    listed = make_world(seed, number, people).questions[kind]
    return listed if split == "unseen" else tuple(q for i, q in enumerate(listed) if (i % 5 == 4) == (split == "seen"))


@lru_cache(maxsize=64)
def _world_bm25(seed: int, number: int, people: int) -> BM25:
    return BM25(make_world(seed, number, people).passages)


@lru_cache(maxsize=64)
def _world_dense(seed: int, number: int, people: int, embedder: Callable[[], Embedder]) -> Dense:
    return Dense(make_world(seed, number, people).passages, embedder)
