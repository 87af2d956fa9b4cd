"""What every retriever does, on a bank that changes under it."""

from __future__ import annotations

import random

import pytest

from gongfu.skills.bank import SkillBank
from gongfu.skills.dense import DenseRetriever
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.errors import SkillError
from gongfu.skills.lexical import LexicalRetriever
from gongfu.skills.neighbours import DatabaseSnapshot, MemorySnapshot
from gongfu.skills.retrieve import Query
from gongfu.skills.skill import Skill
from gongfu.skills.tree import STATES
from skill_support import Bagger


@pytest.fixture(params=["lexical", "numpy", "pgvector"])
def sort(request):
    return request.param


@pytest.fixture
def bank(sort, request, tmp_path):
    where = request.getfixturevalue("vector_location") if sort == "pgvector" else tmp_path / "bank.sqlite"
    with SkillBank.open(where) as opened:
        yield opened


@pytest.fixture
def make(sort, bank):
    """Makes a retriever of one sort."""
    if sort == "lexical":
        return lambda **options: LexicalRetriever(**options)

    def dense(**options):
        retriever = DenseRetriever(Bagger(), bank, **options)
        assert isinstance(retriever.snapshot, DatabaseSnapshot if sort == "pgvector" else MemorySnapshot)
        return retriever

    return dense


TEXTS = {
    "cool": "To cool an apple open the fridge and put the apple in it.",
    "heat": "To heat an apple open the microwave and put the apple in it.",
    "": "Search every drawer for a key before you give up.",
}


@pytest.fixture
def three(bank):
    bank.commit([Add(Skill(text, kind=kind), "active") for kind, text in TEXTS.items()], parent=bank.head())
    return bank


def told(hits):
    return [[(hit.skill.text, hit.score) for hit in found] for found in hits]


def test_the_best_skills_come_first_and_scores_lie_in_range(three, make):
    queries = [Query("put a cool apple in the fridge"), Query("find the key in a drawer")]
    (apple, key) = make(top_k=3).rank(queries, three.at())
    assert apple[0].skill.text == TEXTS["cool"] and key[0].skill.text == TEXTS[""]
    for found in (apple, key):
        scores = [hit.score for hit in found]
        assert scores == sorted(scores, reverse=True) and 0 < scores[-1] < scores[0] <= 1
    assert told(make(top_k=3).rank(queries[::-1], three.at())) == told([key, apple])
    assert told(make(top_k=1).rank(queries, three.at())) == told([apple[:1], key[:1]])


def test_nothing_below_the_floor_is_returned(three, make):
    query = Query("put a cool apple in the fridge")
    (found,) = make(top_k=3).rank([query], three.at())
    best, second = found[0].score, found[1].score
    assert len(make(top_k=3, floor=(best + second) / 2).rank([query], three.at())[0]) == 1
    assert len(make(top_k=3, floor=second).rank([query], three.at())[0]) == 2
    assert make(top_k=3, floor=best + 1e-6).rank([query], three.at()) == [[]]


def test_a_query_with_a_kind_gets_skills_of_that_kind_or_of_any(three, make):
    text = "put an apple in it, open the drawer"
    kinds = {
        kind: {h.skill.kind for h in make(top_k=3).rank([Query(text, kind)], three.at())[0]} for kind in ("cool", "mop", "")
    }
    assert kinds == {"cool": {"cool", ""}, "mop": {""}, "": {"cool", "heat", ""}}
    (free,) = make(top_k=3, per_kind=False).rank([Query(text, "cool")], three.at())
    assert len(free) == 3


def test_only_skills_in_the_asked_states_are_found(three, make):
    first = next(s for s in three.at().skills() if s.kind == "cool")
    retriever = make(top_k=3)
    query = Query("cool an apple in the fridge")
    assert retriever.rank([query], three.at())[0][0].skill == first
    three.quarantine(first.id, "harmful")
    assert first not in [h.skill for h in retriever.rank([query], three.at())[0]]
    assert [h.skill for h in make(top_k=3, states=("quarantined",)).rank([query], three.at())[0]] == [first]


def test_equal_skills_come_by_id(bank, make):
    same = [Skill("Open the fridge.", name=f"name-{n}") for n in range(9)]
    bank.commit([Add(s) for s in same], parent=bank.head())
    (found,) = make(top_k=4).rank([Query("open the fridge")], bank.at())
    assert [h.skill.id for h in found] == sorted(s.id for s in same)[:4]


def test_an_empty_bank_gives_nothing(bank, make):
    assert make().rank([Query("anything"), Query("")], bank.at()) == [[], []]
    assert make().rank([], bank.at()) == []


@pytest.mark.parametrize("options", [{"top_k": 0}, {"states": ()}, {"states": ("actve",)}])
def test_impossible_options_are_refused(make, options):
    with pytest.raises(SkillError, match=r"top_k|states"):
        make(**options)


def test_following_the_bank_gives_what_starting_afresh_gives(bank, make):
    """Edits of every sort, forwards and back to older commits: the same hits with exactly the same scores."""
    rng = random.Random(0)
    nouns = ["fridge", "drawer", "apple", "key", "mug", "lamp", "desk", "open", "close", "take", "put", "in", "the"]

    def text():
        return " ".join(rng.choices(nouns, k=rng.randint(1, 9)))

    retriever, visited = make(top_k=5), [bank.head()]
    for step in range(30):
        view = bank.at()
        edits = [Add(Skill(f"{text()} {step}", kind=rng.choice(["", "cool"])), rng.choice(["active", "candidate"]))]
        for n, skill in enumerate(rng.sample(list(view), min(3, len(view)))):
            if n == 2:
                edits.append(SetState(skill, rng.choice([s for s in STATES if s != view.state(skill)])))
            else:
                edits.append(Update(skill, {"text": f"{text()} again {step}"} if n else {"kind": f"k{step}"}))
        visited.append(bank.commit(edits, parent=bank.head(), step=step).id)
        view = bank.at(rng.choice(visited) if step % 3 == 0 else "main")
        queries = [Query(text(), rng.choice(["", "cool"])) for _ in range(4)]
        assert told(retriever.rank(queries, view)) == told(make(top_k=5).rank(queries, view))
