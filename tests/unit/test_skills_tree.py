import pytest
from hypothesis import given
from hypothesis import strategies as st

from gongfu.skills.errors import SkillError
from gongfu.skills.tree import STATES, Entry, Tree, known_states

ids = st.sampled_from([f"{place:02x}{n:014x}" for place in (0, 1, 255) for n in range(5)])
entries = st.builds(Entry, st.sampled_from(["a" * 64, "b" * 64]), st.just(1), st.sampled_from(STATES), st.just(1))
steps = st.lists(st.dictionaries(ids, st.none() | entries, max_size=4), max_size=8)


@given(steps, steps)
def test_a_tree_is_what_it_holds_however_it_came_to_be(one, two):
    trees, contents = [], []
    for changes in (one, two):
        tree, plain = Tree(), {}
        for change in changes:
            before, known = tree, dict(tree.items())
            tree = tree.changed(change)
            assert dict(before.items()) == known  # the old tree stays
            plain = {k: v for k, v in {**plain, **change}.items() if v is not None}
        assert list(tree.items()) == sorted(plain.items()) and len(tree) == len(plain)
        assert tree.digest == Tree().changed(plain).digest
        trees.append(tree)
        contents.append(plain)
    a, b = contents
    assert (trees[0].digest == trees[1].digest) == (a == b)
    expected = [(k, a.get(k), b.get(k)) for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k)]
    assert list(trees[0].difference(trees[1])) == expected


def test_unchanged_parts_are_shared():
    tree = Tree().changed({f"{n:02x}" + "0" * 14: Entry("a" * 64, 1, "active", 1) for n in range(256)})
    after = tree.changed({"07" + "0" * 14: None})
    assert sum(a is b for a, b in zip(tree._buckets, after._buckets, strict=True)) == 255


def test_what_is_no_id_is_not_there_and_what_is_no_state_is_refused():
    assert Tree().get("") is Tree().get("zz") is None
    assert known_states(["retired", "active"]) == ("active", "retired")
    for states in ([], ["actve"]):
        with pytest.raises(SkillError, match="states are candidate, active"):
            known_states(states)
