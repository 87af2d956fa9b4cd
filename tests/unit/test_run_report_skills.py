"""What a report and the console tell of a run with a skill bank."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bank_run import BETTER, FIRST, SECOND, evaluation, learn, make_run, play, proposal
from gongfu.run.folder import RunFolder
from gongfu.run.report import summarize, write_report
from gongfu.run.report_skill_curves import figure_of
from gongfu.run.report_skills import code
from gongfu.run.report_story import find_life, read_story
from gongfu.run.report_words import growth_words, life_words
from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.errors import BankError

pytest.importorskip("matplotlib", reason="reports need the extra train")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that no test may change."""
    return make_run(tmp_path_factory.mktemp("runs") / "a")


@pytest.fixture
def own(tmp_path):
    """A run that a test may change."""
    return make_run(tmp_path / "a")


@pytest.fixture(scope="module")
def sections(run):
    """Text of the report by its headings."""
    return told(run)


def told(run):
    _, *found = re.split("^## ", write_report(run).read_text(), flags=re.MULTILINE)
    return {title: body.strip() for title, body in (part.split("\n", 1) for part in found)}


def rows(text):
    """Cells of each table row by its first cell; a later table's row replaces an earlier one's."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in cells}


def story_of(run):
    folder = RunFolder.open(run, lock=False)
    story = read_story(folder, folder.read_metrics())
    assert story is not None
    return story


def test_the_page_has_a_section_for_each_thing(sections, run):
    assert list(sections) == [
        "Success on seen, before and after",
        "Skills",
        "With and without skills on seen",
        "The bank",
        "Proposals",
        "R_align",
        f"One skill's life: {FIRST.name}",
        "Training",
        "Files",
    ]
    assert sections["Skills"] == "![Skills of the run](skills.png)"
    assert (run / "report" / "skills.png").read_bytes().startswith(b"\x89PNG")
    assert rows(sections["Files"])["`bank.sqlite`"] == ["the skill bank, for `gongfu bank`"]
    assert str(run.parent) not in (run / "report" / "report.md").read_text()


def test_success_with_and_without_skills(sections):
    text = sections["With and without skills on seen"]
    assert text.startswith(
        "Held-out success (seen, 20 tasks), step 0 -> 4: 0.250 -> 0.750 with skills, 0.250 -> 0.500 without.\n"
    )
    assert rows(text)["0"] == ["0.250 [0.050, 0.450], n = 20", "0.250", "+0.000", "0.000"]
    assert rows(text)["4"] == ["0.750 [0.550, 0.950], n = 20", "0.500", "+0.250", "0.900"]


def test_growth_of_the_bank(sections):
    text = sections["The bank"]
    assert text.startswith(
        "The bank, 4 steps: 0 -> 1 skills (1 active); 2 added, 1 updated, 1 retired; 3 of 12 proposals accepted.\n"
    )
    table = rows(text)
    assert table["up to step"] == ["skills", "of them active", "added since", "updated", "retired"]
    assert [table[step] for step in "1234"] == [
        ["0", "0", "0", "0", "0"],
        ["2", "0", "2", "0", "0"],
        ["2", "1", "0", "1", "0"],
        ["1", "1", "0", "0", "1"],
    ]


def test_a_bank_that_the_run_was_given_had_skills_before():
    record = {"bank/skills": 6.0, "bank/active": 3.0, "bank/added": 2.0, "bank/updated": 0.0, "bank/retired": 1.0}
    assert growth_words([record]).startswith("the bank, 1 steps: 5 -> 6 skills (3 active); 2 added,")


def test_a_long_run_has_ten_rows_that_hold_every_edit(tmp_path):
    run = make_run(tmp_path / "long")
    with RunFolder.open(run) as folder:
        for step in range(5, 35):
            size = {"bank/skills": float(step), "bank/active": 1.0, "bank/added": 1.0, "bank/updated": 0.0}
            folder.append_metrics({"step": step, "phase": "train", **size, "bank/retired": 0.0})
    table = rows(told(run)["The bank"])
    assert len(table) == 2 + 10 and table["34"][0] == "34"
    assert sum(int(cells[2]) for step, cells in table.items() if step.isdigit()) == 2 + 30


def test_a_bank_that_was_set_back_is_told(own):
    with RunFolder.open(own) as folder:
        size = {"bank/skills": 1.0, "bank/active": 1.0, "bank/added": 0.0, "bank/updated": 0.0, "bank/retired": 0.0}
        folder.append_metrics({"step": 5, "phase": "train", **size, "canary/rolled_back": 1.0})
    assert "3 of 12 proposals accepted; rollbacks: 1." in told(own)["The bank"]


def test_funnel_of_proposals(sections):
    table = rows(sections["Proposals"])
    assert table["what became of them"] == ["first 1 steps", "last 1 steps", "all steps", "share"]
    assert table["proposals"] == ["0", "4", "12", ""]
    assert table["KEEP, no edit wanted"] == ["0", "4", "5", "0.417"]
    assert table["refused by the critic"] == ["0", "0", "1", "0.083"]
    assert table["Δ+ not above 0"] == ["0", "0", "2", "0.167"]
    assert table["**accepted**"] == ["**0**", "**0**", "**3**", "**0.250**"]
    counted = ("KEEP, no edit wanted", "refused by the critic", "Δ+ not above 0")
    left = 12 - 3 - sum(int(table[name][2]) for name in counted)
    assert left == 1  # the malformed one: every proposal is in one row


def test_shares_of_operations_weigh_every_proposal_alike(sections):
    """12 proposals in three steps of four; the first step had none."""
    table = rows(sections["Proposals"])
    assert table["ADD"] == ["–", "0.000", "0.333"]
    assert table["UPDATE"] == ["–", "0.000", "0.167"]
    assert table["KEEP"] == ["–", "1.000", "0.417"]
    assert table["malformed"] == ["–", "0.000", "0.083"]
    assert table["legal operations below the floor"] == ["–", "0.250", "0.250"]


@pytest.mark.parametrize(("setting", "floor"), [("p_min=0.2", 0.2), ("weight=0", None)])
def test_the_floor_is_the_recipes(tmp_path, setting, floor):
    run = make_run(tmp_path / "a", f"--method.support.{setting}")
    assert ("Below the floor of 0.2," in told(run)["Proposals"]) == bool(floor)
    lines = panels(figure_of(story_of(run)))["What is proposed"].get_lines()
    drawn = [line.get_ydata()[0] for line in lines if str(line.get_label()).startswith("support floor")]
    assert drawn == ([floor] if floor else [])


def test_r_align_of_edits_whose_alignment_was_measured(sections):
    table = rows(sections["R_align"])
    assert table["ADD"] == ["3", "-0.1467", "+0.0200", "0.667"]
    assert table["UPDATE"] == ["1", "+0.0600", "+0.0600", "1.000"]
    assert table["accepted"] == ["3", "+0.0400", "+0.0400", "1.000"]
    assert table["**all**"] == ["4", "-0.0950", "+0.0300", "0.750"]  # a KEEP's is another thing


def test_one_skills_life(sections, run):
    text = sections[f"One skill's life: {FIRST.name}"]
    with SkillBank.open(run, create=False) as bank:
        _, changed, added, _ = (commit.id[:12] for commit in bank.log())
    assert text.startswith(f"Skill `{FIRST.id}`, for tasks of the kind cool")
    assert [line.removeprefix("* ") for line in text.splitlines() if line.startswith("* ")] == [
        "step 2: proposed as ADD after episode 000001:home:a; R_align +0.040, Δ+ +0.030, Δ- -0.010, reward +0.100; "
        "verdict `op ok, content ok`; accepted",
        f"step 2: enters the bank as candidate (commit {added})",
        f"step 3: becomes version 2, R_align +0.060 (commit {changed})",
        f"step 3: candidate -> active, because `4 uses, uplift +0.750` (commit {changed})",
        "version 2: read in 10 episodes, 0.90 of them solved; held back in 5, 0.40 solved: +0.50 with it, "
        "95 % interval [+0.02, +0.79] (all versions: read in 14)",
        f"now active: ``{BETTER}``",
    ]
    table = rows(text)
    assert table["1"] == ["4", "0.75", "2", "0.00", "+0.75 [-0.05, +0.95]", f"`{FIRST.text}`"]
    assert table["2"] == ["10", "0.90", "5", "0.40", "+0.50 [+0.02, +0.79]", f"``{BETTER}``".replace("|", "\\|")]


def test_the_console_says_the_same_words(run, sections):
    success, growth, title, *life = summarize(run)
    assert sections["With and without skills on seen"].startswith(f"{success.capitalize()}.")
    assert sections["The bank"].startswith(f"{growth.capitalize()}.")
    assert title == f"one skill's life: {FIRST.name} ({FIRST.id[:8]}, for cool)"
    bullets = [line for line in sections[f"One skill's life: {FIRST.name}"].splitlines() if line.startswith("* ")]
    assert [line.strip() for line in life[1:-1]] == [b.removeprefix("* ").replace("`", '"') for b in bullets[1:-1]]
    assert life[-1] == f'  now active: "{BETTER}"'
    assert 5 <= len([title, *life]) <= 8


def test_a_long_life_is_shortened_on_the_console_only(own):
    with SkillBank.open(own) as bank:
        for step in range(4, 10):
            learn(bank, step, [Update(FIRST.id, {"text": f"Version of step {step}. " + "Look. " * 50})], [])
    lines = summarize(own)[2:]
    assert len(lines) == 8
    assert lines[3] == "  ... 6 more, see gongfu bank blame ..."
    assert lines[4].startswith("  step 9: becomes version 7") and lines[5].startswith("  step 10: becomes version 8")
    assert lines[7].startswith('  now active: "Version of step 9. Look.') and lines[7].endswith(' …"')
    assert len(lines[7]) < 200
    life = told(own)[f"One skill's life: {FIRST.name}"]
    assert life.count("becomes version") == 7 and "…" not in life


def test_the_skill_with_most_uses_over_all_its_versions_is_told(own):
    """FIRST was read 4 and 10 times; its present version alone 10 times."""
    with SkillBank.open(own) as bank:
        play(bank, SECOND, 4, wins=1, of=11, mode="with")
        play(bank, SECOND, 4, wins=1, of=30, mode="without")  # held back: no use
        assert uses(bank) == (FIRST.id, 14)
        play(bank, SECOND, 5, wins=1, of=2, mode="with")
        assert uses(bank) == (SECOND.id, 15)
        life = find_life(bank, bank.proposals())
    assert life is not None and life.state == "retired"
    assert life.events[0].proposal is not None and life.events[0].proposal.id == "b"  # not FIRST's, of the same commit


def uses(bank):
    life = find_life(bank, [])
    return life.current.skill.id, life.uses


def test_what_people_did_is_told_without_a_step(tmp_path):
    with SkillBank.open(tmp_path) as bank:
        added = bank.commit([Add(FIRST, "active")], parent=bank.head(), message="Import skills")
        bank.quarantine(FIRST.id, "it harms")
        bank.revert("main", message="it does not")
        told = words(bank)
        assert told[1:4] == [
            f"by hand: enters the bank as active (commit {added.id[:12]}): <Import skills>",
            f"by hand: active -> quarantined, because <it harms> (commit {bank.log()[1].id[:12]})",
            f"by hand: is set back to version 1, active (commit {bank.head()[:12]}): <it does not>",
        ]
        assert told[4:] == ["read in 0 episodes", f"now active: <{FIRST.text}>"]


def test_a_skill_that_was_taken_out_again(tmp_path):
    with SkillBank.open(tmp_path) as bank:
        learn(bank, 3, [Add(FIRST)], [])
        bank.revert("main")
        assert words(bank)[2].startswith("by hand: is taken out (commit")
        assert words(bank)[-1] == f"now taken out of the bank: <{FIRST.text}>"


def words(bank):
    life = find_life(bank, bank.proposals())
    assert life is not None
    return life_words(life, lambda text: f"<{text}>")


def test_a_change_of_state_is_not_given_a_proposal(tmp_path):
    """The commit's first edit was proposed, its second was not."""
    with SkillBank.open(tmp_path) as bank:
        learn(bank, 1, [Add(FIRST)], ["a"])
        learn(bank, 2, [Add(SECOND), SetState(FIRST.id, "active")], ["b"])
        bank.record_proposals([proposal("a", 1, "add", FIRST.text, 0.1), proposal("b", 2, "add", SECOND.text, 0.2)])
        life = find_life(bank, bank.proposals())
    assert life is not None
    assert [(e.step, e.op["op"], e.proposal and e.proposal.id) for e in life.events] == [(2, "add", "a"), (3, "state", None)]


def test_what_is_not_known_of_a_proposal_is_left_out(tmp_path):
    with SkillBank.open(tmp_path) as bank:
        bank.record_proposals([proposal("a", 1, "add", FIRST.text, None, verdict="")])
        learn(bank, 1, [Add(FIRST)], ["a"])
        assert words(bank)[1] == "step 2: proposed as ADD after episode 000001:home:a; reward +0.100; no verdict; accepted"


def test_a_run_whose_bank_stayed_empty(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "bank.sqlite").unlink()
    with SkillBank.open(run):
        pass
    found = told(run)
    assert found["One skill's life"] == "No skill has entered the bank." and "R_align" not in found
    assert len(summarize(run)) == 2


def test_a_run_that_was_only_evaluated_yet(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").unlink()
    with RunFolder.open(run) as folder:
        folder.append_metrics(evaluation(0, success=0.25, without=0.25, shown=0.0))
        assert summarize(folder)[0] == "held-out success (seen, 20 tasks), at step 0: 0.250 with skills, 0.250 without"
        found = told(run)  # while it trains
    assert "The bank" not in found and "Proposals" not in found


def test_a_run_whose_bank_is_gone_is_an_error(own):
    (own / "bank.sqlite").unlink()
    with pytest.raises(BankError, match="there is no bank"):
        write_report(own)


def test_a_bank_from_elsewhere_is_read_and_told(tmp_path):
    """The recipe names another run's bank."""
    other = make_run(tmp_path / "other")
    run = make_run(tmp_path / "a", f"--method.bank={other / 'bank.sqlite'}")
    (run / "bank.sqlite").unlink()
    found = told(run)
    assert "given to this run" in found["Skills"] and f"One skill's life: {FIRST.name}" in found
    assert "`bank.sqlite`" not in rows(found["Files"])
    assert str(tmp_path) not in (run / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "`plain`"),
        ("a\n## b", "`a ## b`"),
        ("`", "`` ` ``"),
        ("<img src=x> [a](b)", "`<img src=x> [a](b)`"),
        ("``x` | y", "```" + " ``x` | y " + "```"),
        ("", "`–`"),
    ],
)
def test_words_of_a_model_are_shown_as_they_are(text, shown):
    assert code(text) == shown


def panels(figure):
    return {axes.get_title(): axes for axes in figure.axes}


def test_every_panel_shows_its_numbers(run):
    story = story_of(run)
    found = panels(figure_of(story))
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for a in found.values() for line in a.get_lines()}
    assert lines["seen, with skills"] == [(0, 0.25), (4, 0.75)]
    assert lines["seen, without"] == [(0, 0.25), (4, 0.5)]
    assert lines["in use"] == [(1, 0), (2, 2), (3, 2), (4, 1)]
    assert lines["of them active"] == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert lines["UPDATE"] == [(2, 0), (3, 0.5), (4, 0)]
    assert lines["support floor 0.1"][0][1] == 0.1
    added, updated, retired = ([bar.get_height() for bar in bars] for bars in found["Edits of the bank"].containers)
    assert (added, updated, retired) == ([0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    fates = found["What became of 12 proposals"]
    (bars,) = fates.containers
    widths = dict(zip([t.get_text() for t in fates.get_yticklabels()], [bar.get_width() for bar in bars], strict=True))
    assert widths["accepted"] == 3 and widths["KEEP, no edit wanted"] == 5 and len(widths) == 5


def test_the_histogram_holds_every_measured_edit_the_far_ones_at_its_ends(run):
    story = story_of(run)
    axes = panels(figure_of(story))["R_align of 4 measured edits"]
    accepted, refused = (np.array([bar.get_height() for bar in bars]) for bars in axes.containers)
    assert (accepted.sum(), refused.sum(), refused[0]) == (3, 1, 1)
    assert sorted(line.get_xdata()[0] for line in axes.get_lines()) == [-0.05, 0, 0.05]


def test_panels_without_numbers_say_so(tmp_path):
    run = make_run(tmp_path / "a")
    (run / "metrics.jsonl").unlink()
    (run / "bank.sqlite").unlink()
    with RunFolder.open(run) as folder, SkillBank.open(run):
        folder.append_metrics(evaluation(0, success=0.25, without=0.25, shown=0.0))
    silent = [title for title, axes in panels(figure_of(story_of(run))).items() if axes.texts and axes.texts[0].get_text()]
    assert silent[:3] == ["Skills in the bank", "Edits of the bank", "What is proposed"]


def test_equal_runs_give_equal_pictures(run):
    write_report(run)
    first = (run / "report" / "skills.png").read_bytes()
    write_report(run)
    assert (run / "report" / "skills.png").read_bytes() == first
