"""Skills for tests: a few plain ones, and hypothesis strategies for any."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import strategies as st

from gongfu.skills.edits import Add
from gongfu.skills.evidence import Use
from gongfu.skills.lexical import words as words_of
from gongfu.skills.skill import Contract, Link, Predicate, Skill, SkillProtocol, Validator

KINDS = ("cool", "heat", "look")


def skill(n: int, kind: str | None = None) -> Skill:
    return Skill(f"Advice number {n}: open receptacle {n} first.", kind=KINDS[n % 3] if kind is None else kind)


def use(of: Skill, commit: str, *, step: int = 1, n: int = 0, mode: str = "with", success: bool = True, **other) -> Use:
    made = {"kind": of.kind, "outcome": "success" if success else "failure", "score": float(success), "turns": 9}
    return Use(f"s{step}-t{n}", step, of.id, of.digest, commit, mode, **{**made, **other})


def add(bank, *skills, state="active", step=1, **more):
    return bank.commit([Add(s, state) for s in skills], parent=bank.head(), step=step, **more)


def full_skill() -> Skill:
    return Skill(
        "Take a cold drink from the fridge; never leave it open.",
        name="cold-drink",
        kind="cool",
        protocol=SkillProtocol(
            preconditions=("there is a fridge",),
            plan=("go to the fridge", "open it", "cool the mug"),
            success=("the mug is cool",),
            abort=("there is no fridge", "twenty steps have passed"),
        ),
        contract=Contract(
            adds=(Predicate("cool(mug)", 12),), deletes=(Predicate("warm(mug)", 11),), events=(Predicate("opened(fridge)"),)
        ),
        validator=Validator("def check(facts):\n\treturn 'cool(mug)' in facts\n", "monty"),
        links=(Link("requires", "0123456789abcdef"),),
    )


class Bagger:
    """An embedder for tests: words hashed into 512 dimensions, and where it counts what it is asked."""

    id = "bagger"

    def __init__(self):
        self.asked: list[str] = []

    def embed(self, texts, *, query):
        self.asked += texts
        vectors = np.full((len(texts), 512), 1e-6, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in words_of(text):
                vectors[row, zlib.crc32(word.encode()) % 512] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _readable(**limits):
    return st.characters(exclude_categories=("Cc", "Cs"), **limits)


lines = st.text(_readable(), min_size=1, max_size=60).filter(lambda text: text.split())
"""Any text that has a word: quotes, markdown, YAML, other scripts."""
tricky = st.sampled_from(
    [
        "---",
        "## Plan",
        "- item",
        "1. step",
        "a: b # c",
        '"quoted" \\',
        "'",
        "adds: x (support 3)",
        "&a *a",
        "{{x}}",
        "功夫",
        "😀",
    ]
)
words = st.one_of(lines, st.lists(st.one_of(tricky, lines), min_size=1, max_size=4).map(" ".join))
names = st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,5}", fullmatch=True)
items = st.lists(words, max_size=3).map(tuple)
protocols = st.builds(lambda *slots: SkillProtocol(*slots) if any(slots) else None, items, items, items, items)
predicates = st.lists(st.builds(Predicate, words, st.integers(0, 10**6)), max_size=3).map(tuple)
contracts = st.builds(lambda *slots: Contract(*slots) if any(slots) else None, predicates, predicates, predicates)
sources = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1).filter(str.strip)
validators = st.none() | st.builds(Validator, sources, st.sampled_from(["monty", "bwrap"]))
links = st.lists(st.builds(Link, words, st.from_regex(r"[0-9a-f]{16}", fullmatch=True)), max_size=2).map(tuple)
skills = st.builds(Skill, words, names, st.just("") | words, protocols, contracts, validators, links)
"""First versions of any skill."""
