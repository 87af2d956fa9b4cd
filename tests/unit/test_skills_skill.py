import dataclasses
import hashlib
import json
import pickle

import pytest
from hypothesis import given

from gongfu.skills.canonical import canonical_json
from gongfu.skills.errors import SkillError
from gongfu.skills.skill import Contract, Link, Predicate, Skill, SkillProtocol, Validator, slug
from skill_support import full_skill, skills, words


def test_id_and_digest_are_those_of_the_written_canonical_json():
    skill = Skill("Open  the\nfridge.", kind="cool", protocol=SkillProtocol(plan=("open it",)))
    says = '"kind":"cool","name":"open-the-fridge","protocol":{"plan":["open it"]},"text":"Open the fridge."}'
    assert skill.id == hashlib.sha256(("{" + says).encode()).hexdigest()[:16]
    body = f'{{"id":"{skill.id}",{says}'
    assert skill.body == body
    assert skill.digest == hashlib.sha256(body.encode()).hexdigest()


def test_a_later_version_keeps_the_id_and_has_another_digest():
    first = full_skill()
    second = first.revised(2, text="Say something else.")
    assert (second.id, second.version, second.name) == (first.id, 2, first.name)
    assert second.digest != first.digest
    assert second.revised(3, text=first.text).digest not in (first.digest, second.digest)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Skill) if f.name not in ("id", "version")])
def test_every_field_is_in_the_digest(name):
    first = full_skill()
    other = {"text": "x", "name": "x", "kind": "x", "protocol": None, "contract": None, "validator": None, "links": ()}[name]
    assert first.revised(2, **{name: other}).digest != first.revised(2).digest
    fresh = {**{f.name: getattr(first, f.name) for f in dataclasses.fields(Skill)}, name: other, "id": ""}
    assert Skill(**fresh).id != first.id


@given(skills)
def test_any_skill_comes_back_from_its_body(skill):
    again = Skill.from_body(skill.body)
    assert again == skill and again.digest == skill.digest
    assert canonical_json(json.loads(skill.body)) == skill.body


@given(words)
def test_a_name_made_from_any_text_is_a_name(text):
    assert Skill(text).name == slug(text)


def test_text_is_one_paragraph_and_lists_become_tuples():
    skill = Skill("\u2028 a\tb\r\n\n c ", protocol=SkillProtocol(plan=["go  on"]), contract=Contract(adds=[Predicate(" x ")]))
    assert skill.text == "a b c"
    assert skill.protocol.plan == ("go on",) and skill.contract.adds[0].text == "x"
    assert hash(skill) == hash(pickle.loads(pickle.dumps(skill)))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Skill(" \n "), "text is empty"),
        (lambda: Skill("a\x07b"), r"U\+0007"),
        (lambda: Skill("a\ud800b"), r"U\+D800"),
        (lambda: Skill("a", name="Not a slug"), "no skill name"),
        (lambda: Skill("a", name="a--b"), "no skill name"),
        (lambda: Skill("a", name="a" * 65), "at most 64"),
        (lambda: Skill("a", kind="k" * 201), "at most 200"),
        (lambda: Skill("a", version=0), "count from 1"),
        (lambda: Skill("a", version=2), "no skill id"),
        (lambda: Skill("a", id="0123456789abcdef"), "made from another first version"),
        (lambda: Skill("a", id="0123456789ABCDEF", version=2), "no skill id"),
        (lambda: SkillProtocol(), "says nothing"),
        (lambda: SkillProtocol(plan="go"), "list of items"),
        (lambda: SkillProtocol(plan=("go", " ")), "plan, item 2 is empty"),
        (lambda: Contract(), "promises nothing"),
        (lambda: Predicate("x", -1), "negative support"),
        (lambda: Validator(" ", "monty"), "needs a source"),
        (lambda: Validator("x\0", "monty"), r"U\+0000"),
        (lambda: Link("requires", "x"), "no skill id"),
    ],
)
def test_what_is_no_skill_is_refused_by_name(make, says):
    with pytest.raises(SkillError, match=says):
        make()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"colour": "red"}, "colour"),
        ({"version": "1"}, "version"),
        ({"text": 3}, "text"),
        ({"protocol": {"plan": ["a"], "goal": "b"}}, "protocol.goal"),
        ({"text": "something else"}, "another first version"),
    ],
)
def test_a_body_is_read_strictly(change, says):
    body = json.dumps(json.loads(full_skill().body) | change)
    with pytest.raises(SkillError, match=says):
        Skill.from_body(body)
    with pytest.raises(SkillError):
        Skill.from_body("{")
