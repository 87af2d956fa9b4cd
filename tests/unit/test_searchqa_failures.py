"""Failure modes of search episodes."""

from __future__ import annotations

import pytest

from gongfu.core.records import Task, Trajectory, Turn, Validity
from gongfu.envs.searchqa.env import NO_TURN_LEFT, NOT_UNDERSTOOD, NOTHING_FOUND
from gongfu.envs.searchqa.failures import FAILURE_MODES, diagnose
from gongfu.envs.searchqa.suite import SearchQASuite

QUESTION = "Where was the director of Red Hill born?"
HILL = ("search[Red Hill]", "Red Hill: Red Hill is a film that was directed by Ada Berg.")
BERG = ("search[Ada Berg]", "Ada Berg: Ada Berg was born in New Aldern. She lived in Porto.")
LAKE = ("search[lake]", "Lake Orm: Lake Orm is a lake.")
WRONG, NO_TURN = "Your answer is wrong.", ("search[x]", NO_TURN_LEFT)


def failed(*steps: tuple[str, str], golds=("New Aldern",), format=True, question=QUESTION) -> Trajectory:
    """An episode of (action, what was seen then)."""
    payload = {"question": question, "answers": list(golds)}
    task = Task("t", "searchqa", "bridge", question, "train", payload=payload)
    seen = [question, *(after for _, after in steps)]
    turns = tuple(
        Turn(before, None, None, action, Validity(format, True), 0.0) for (action, _), before in zip(steps, seen, strict=False)
    )
    return Trajectory("e", task, "g", (), turns, seen[-1], "failure", 0.0, "terminated")


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("premature_answer", [("answer[Porto]", WRONG)]),
        ("partial_answer", [HILL, BERG, ("answer[Aldern]", WRONG)]),
        ("information_misinterpretation", [HILL, BERG, ("answer[Porto]", WRONG)]),
        ("information_misinterpretation", [HILL, BERG, NO_TURN]),
        ("hallucinated_answer", [HILL, BERG, ("answer[Rome]", WRONG)]),
        ("hallucinated_answer", [HILL, ("answer[Rome]", WRONG)]),
        ("insufficient_retrieval", [HILL, ("answer[Ada Berg]", WRONG)]),
        ("insufficient_retrieval", [HILL, NO_TURN]),
        ("repeated_retrieval_query", [HILL, HILL, ("answer[Ada Berg]", WRONG)]),
        ("irrelevant_retrieval_query", [LAKE, ("answer[Lake Orm]", WRONG)]),
        ("irrelevant_retrieval_query", [("search[red]", NOTHING_FOUND), ("answer[Porto]", WRONG)]),
        ("action_format_error", [("look", NOT_UNDERSTOOD), ("answer[Porto]", WRONG)]),
    ],
)
def test_what_was_done_decides_the_mode(mode, steps):
    assert diagnose(failed(*steps)) == mode


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("insufficient_retrieval", [HILL, NO_TURN]),
        ("hallucinated_answer", [HILL, ("answer[Rome]", WRONG)]),
        ("irrelevant_retrieval_query", [LAKE, NO_TURN]),
    ],
)
def test_a_question_without_capitals_is_known_by_its_longer_words(mode, steps):
    assert diagnose(failed(*steps, question="where was the director of red hill born")) == mode


@pytest.mark.parametrize("gold", ["yes", "no"])
def test_a_search_that_was_not_carried_out_found_nothing(gold):
    assert diagnose(failed(HILL, NO_TURN, golds=(gold,))) == "insufficient_retrieval"
    assert diagnose(failed(HILL, (HILL[0], NO_TURN_LEFT))) == "insufficient_retrieval"


def test_a_wrong_verdict():
    assert diagnose(failed(HILL, ("answer[no]", WRONG), golds=("yes",))) == "wrong_answer"


def test_the_form_of_the_answers_comes_first():
    assert diagnose(failed(HILL, BERG, format=False)) == "action_format_error"


def test_the_suite_tells_why_an_episode_failed():
    suite = SearchQASuite(worlds=1, unseen_worlds=0, people=6, sizes={"train": 2})
    assert suite.diagnose(failed(("answer[Porto]", WRONG))) == "premature_answer"
    assert len(set(suite.failure_modes)) == len(FAILURE_MODES) == 9
