import math
from collections import Counter

import numpy as np
import pytest

from gongfu.skills import lexical
from gongfu.skills.bank import SkillBank
from gongfu.skills.dense import DenseRetriever
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.errors import SkillError
from gongfu.skills.lexical import LexicalRetriever, words
from gongfu.skills.retrieve import Query
from gongfu.skills.skill import Skill
from skill_support import Bagger


@pytest.fixture
def bank(tmp_path):
    with SkillBank.open(tmp_path / "bank.sqlite") as opened:
        yield opened


def fill(bank, n):
    skills = [Skill(f"Advice {k}: receptacle {k % 17} and {k % 5}.") for k in range(n)]
    bank.commit([Add(s, "active") for s in skills], parent=bank.head())
    return skills


def test_bm25_is_the_formula(bank):
    bank.commit([Add(Skill("Red fox.")), Add(Skill("red RED dog barks"))], parent=bank.head())
    retriever = LexicalRetriever()
    retriever.rank([], bank.at())
    index = retriever.index
    scores = dict(zip([s.text for s in index.skills], index.scores("red cat"), strict=True))
    # two texts of 2 and 4 words, "red" in both, "cat" in none; k1 = 1.2, b = 0.75
    red, cat = math.log(1 + 0.5 / 2.5), math.log(1 + 2.5 / 0.5)
    assert scores["Red fox."] == pytest.approx(red * 1 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3)) / (red + cat))
    assert scores["red RED dog barks"] == pytest.approx(red * 2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 3)) / (red + cat))
    assert np.isneginf(index.scores("cat")).all() and np.isneginf(index.scores("")).all()


def test_a_score_may_say_how_much_of_the_skill_applies(bank):
    """ "Red fox." stands in the query as a whole, of the other text only "red" does; the query's other words do not matter."""
    bank.commit([Add(Skill("Red fox.")), Add(Skill("red dog barks"))], parent=bank.head())
    retriever = LexicalRetriever(relative_to="skill", floor=0.5)
    (hits,) = retriever.rank([Query("the quick red fox jumps, and the red fox rests")], bank.at())
    assert [(hit.skill.text, hit.score) for hit in hits] == [("Red fox.", pytest.approx(1.0))]
    (some,) = LexicalRetriever(relative_to="skill", top_k=2).rank([Query("red fox")], bank.at())
    red, dog = math.log(1 + 0.5 / 2.5), math.log(1 + 1.5 / 1.5)
    assert some[1].score == pytest.approx(red / (red + 2 * dog)), "its three words have one weight of length"


def test_words_are_found_in_any_script():
    assert words("Put 2 Mugs-on the desk_lamp!") == ["put", "2", "mugs", "on", "the", "desk", "lamp"]
    assert words("打开冰箱 fridge") == ["打", "开", "冰", "箱", "fridge"]
    assert words("Élan") == ["élan"]


def test_five_edits_index_five_skills(bank, monkeypatch):
    skills = fill(bank, 300)
    retriever = LexicalRetriever()
    retriever.rank([], bank.at())
    read = Counter()
    monkeypatch.setattr(lexical, "words", lambda text: (read.update([text]), words(text))[1])
    bank.commit([Update(s.id, {"text": f"New {s.text}"}) for s in skills[:5]], parent=bank.head())
    bank.commit([SetState(skills[9].id, "retired")], parent=bank.head())
    retriever.rank([], bank.at())
    assert read == Counter([s.text for s in (*skills[:5], skills[9])] + [f"New {s.text}" for s in skills[:5]])
    index = retriever.index
    retriever.rank([], bank.at())
    assert retriever.index is index


def test_places_of_gone_skills_are_used_again(bank):
    skills = fill(bank, 10)
    retriever = LexicalRetriever()
    for n in range(5):
        retriever.rank([], bank.at())
        bank.commit([SetState(skills[n].id, "retired"), Add(Skill(f"Another one, {n}."))], parent=bank.head())
    retriever.rank([], bank.at())
    assert len(retriever.index.skills) <= 11 and len(retriever.index.free) <= 1
    assert all(len(posting.places) for posting in retriever.index.postings.values())


def test_five_edits_embed_five_skills_and_the_bank_keeps_the_vectors(bank, monkeypatch):
    skills = fill(bank, 50)
    embedder, looked_up, load = Bagger(), [], bank.load_embeddings
    monkeypatch.setattr(bank, "load_embeddings", lambda name, digests: (looked_up.append(len(digests)), load(name, digests))[1])
    retriever = DenseRetriever(embedder, bank)
    retriever.rank([Query("advice")], bank.at())
    assert Counter(embedder.asked) == Counter([*(s.text for s in skills), "advice"])
    embedder.asked.clear()
    bank.commit([Update(s.id, {"text": f"New {s.text}"}) for s in skills[:5]], parent=bank.head())
    bank.commit([Update(s.id, {"kind": "cool"}) for s in skills[5:9]], parent=bank.head())
    retriever.rank([Query("advice"), Query("advice"), Query("other")], bank.at())
    assert Counter(embedder.asked) == Counter([*(f"New {s.text}" for s in skills[:5]), "other"])
    assert looked_up == [50, 9]  # of the nine that changed, four say the same: the bank knows them
    embedder.asked.clear()
    again = DenseRetriever(embedder, bank)
    again.rank([], bank.at())
    assert embedder.asked == [] and (again.snapshot.vectors == retriever.snapshot.vectors).all()


def test_vectors_of_another_embedder_are_not_mixed_in(bank):
    fill(bank, 3)
    DenseRetriever(Bagger(), bank).rank([Query("advice")], bank.at())
    other = Bagger()
    other.id = "another"
    DenseRetriever(other, bank).rank([Query("advice")], bank.at())
    assert len(other.asked) == 4


@pytest.mark.parametrize("vectors", [np.ones((1, 4)), np.zeros((3, 4)), np.full((3, 4), np.nan), np.ones(3)])
def test_an_embedder_that_gives_no_unit_vectors_is_named(bank, vectors):
    fill(bank, 3)
    broken = Bagger()
    broken.embed = lambda texts, *, query: vectors
    with pytest.raises(SkillError, match="embedder bagger gave no row of length 1 for each of 3 texts"):
        DenseRetriever(broken, bank).rank([Query("advice")], bank.at())
