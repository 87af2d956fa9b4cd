"""Why a question was not answered, measured from what was done: the failure modes of Role-Agent's search table.

Whether a gold answer and the given one ever stood in a passage decides, and how the searches went.
"""

from __future__ import annotations

from collections.abc import Iterable

from gongfu.core.records import Trajectory
from gongfu.envs.searchqa.candidates import content_words, spans
from gongfu.envs.searchqa.env import NO_TURN_LEFT, NOT_UNDERSTOOD, NOTHING_FOUND, read_action
from gongfu.envs.searchqa.scoring import f1_score, normalize

__all__ = ["FAILURE_MODES", "diagnose"]

FAILURE_MODES = (
    "wrong_answer",
    "insufficient_retrieval",
    "irrelevant_retrieval_query",
    "repeated_retrieval_query",
    "information_misinterpretation",
    "partial_answer",
    "hallucinated_answer",
    "premature_answer",
    "action_format_error",
)

_VERDICTS = ("yes", "no", "noanswer")


def diagnose(trajectory: Trajectory) -> str:
    """The failure mode of a failed episode, one of FAILURE_MODES."""
    turns = trajectory.turns
    after = [*(turn.observation for turn in turns[1:]), trajectory.final_observation]
    made = [(*read_action(turn.action), seen) for turn, seen in zip(turns, after, strict=True) if turn.validity.format]
    made = [(verb, text, seen) for verb, text, seen in made if verb and seen != NOT_UNDERSTOOD]
    if (len(turns) - len(made)) * 2 >= len(turns):
        return "action_format_error"
    made = [one for one in made if one[2] != NO_TURN_LEFT]  # not carried out
    queries = [normalize(text) for verb, text, _ in made if verb == "search"]
    passages = [seen for verb, _, seen in made if verb == "search" and seen != NOTHING_FOUND]
    golds = [str(gold) for gold in trajectory.task.payload["answers"]]
    given = next((text for verb, text, _ in made if verb == "answer"), None)
    if given is not None and not queries:
        return "premature_answer"
    if given is not None and f1_score(given, golds) > 0:
        return "partial_answer"
    if given is not None and any(normalize(gold) in _VERDICTS for gold in golds):
        return "wrong_answer"
    if _stands_in((gold for gold in golds if normalize(gold) not in _VERDICTS), passages):
        told = given is None or _stands_in([given], passages)
        return "information_misinterpretation" if told else "hallucinated_answer"
    if len(queries) - len(set(queries)) >= max(1, len(queries) / 2):
        return "repeated_retrieval_query"
    question = str(trajectory.task.payload["question"])
    if not _stands_in(spans(question) or content_words(question), passages):
        return "irrelevant_retrieval_query"
    if given is not None and not _stands_in([given], passages):
        return "hallucinated_answer"
    return "insufficient_retrieval"


def _stands_in(texts: Iterable[str], passages: Iterable[str]) -> bool:
    """Whether one of the texts stands in one of the passages, word for word."""
    wanted = [f" {normalize(text)} " for text in texts if normalize(text)]
    return any(text in f" {normalize(passage)} " for passage in passages for text in wanted)
