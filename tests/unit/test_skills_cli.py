import json

import pytest

from gongfu.cli.main import main
from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.folder import read_folder
from skill_support import full_skill, skill, use


@pytest.fixture
def folder(tmp_path):
    """A run folder with a bank of four commits."""
    with SkillBank.open(tmp_path) as bank:
        first = bank.commit([Add(full_skill(), "active"), Add(skill(1))], parent=bank.head(), step=1, message="found")
        bank.record_uses(
            [use(full_skill(), first.id, n=n, mode="with" if n < 6 else "without", success=n < 5) for n in range(10)]
        )
        bank.commit([Update(skill(1).id, {"text": "Look."})], parent=bank.head(), step=2)
        bank.commit([SetState(skill(1).id, "retired", "useless")], parent=bank.head(), step=3)
    return tmp_path


@pytest.fixture
def gongfu(folder, monkeypatch, capsys):
    """Runs `gongfu bank COMMAND BANK ...`; exit code, standard output, standard error."""

    def run(command, *arguments, bank=folder):
        monkeypatch.setattr("sys.argv", ["gongfu", "bank", command, str(bank), *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main()
        out = capsys.readouterr()
        return stopped.value.code or 0, out.out, " ".join(out.err.split())

    return run


def read(run):
    code, out, err = run
    assert code == 0, err
    return json.loads(out)


def test_log_lists_commits_newest_first(gongfu):
    found = read(gongfu("log", "--json"))
    assert [(c["step"], c["message"]) for c in found] == [(3, ""), (2, ""), (1, "found"), (0, "an empty bank")]
    assert read(gongfu("log", "--json", "-n", "1", "--ref", "main~2"))[0]["message"] == "found"
    code, out, _ = gongfu("log")
    assert code == 0 and "2 add" in out and found[0]["id"][:12] in out


def test_show_lists_skills_with_what_they_are_worth(gongfu):
    found = {s["name"]: s for s in read(gongfu("show", "--json"))}
    assert (found["cold-drink"]["state"], found[skill(1).name]["state"]) == ("active", "retired")
    assert found["cold-drink"]["evidence"]["with_success"] == 5 and found["cold-drink"]["evidence"]["without_n"] == 4
    _, out, _ = gongfu("show")
    assert "5/6" in out and "0/4" in out and "+0.83" in out
    one = read(gongfu("show", full_skill().id[:6], "--json"))
    assert one["text"] == full_skill().text and one["protocol"]["plan"][1] == "open it"
    _, out, _ = gongfu("show", skill(1).name, "--ref", "main~2")
    assert f"\n\n{skill(1).text}\n" in out and 'state: "candidate"' in out
    assert 'with: "5/6"' in gongfu("show", "cold-drink")[1]


def test_diff_and_blame_tell_what_changed(gongfu):
    (change,) = read(gongfu("diff", "main~2", "main", "--json"))
    assert (change["before"]["text"], change["after"]["text"], change["state"]) == (
        skill(1).text,
        "Look.",
        ["candidate", "retired"],
    )
    code, out, _ = gongfu("diff", "main~2", "main")
    assert code == 0 and f"  - {skill(1).text}\n  + Look.\n" in out and "candidate -> retired; text, state" in out
    told = read(gongfu("blame", skill(1).name, "--json"))
    assert [(t["op"]["op"], t["fields"]) for t in told] == [
        ("add", ["text", "name", "kind", "state"]),
        ("update", ["text"]),
        ("state", ["state"]),
    ]
    assert "useless" in gongfu("blame", skill(1).id)[1]


def test_revert_and_quarantine_change_the_bank(gongfu, folder):
    code, out, err = gongfu("revert", "main", "-m", "not useless")
    with SkillBank.open(folder) as bank:
        assert (code, out.strip(), bank.log()[0].message) == (0, bank.head(), "not useless"), err
        assert bank.at().state(skill(1).id) == "candidate"
    code, out, err = gongfu("quarantine", "cold-drink", "--why", "it harms")
    with SkillBank.open(folder) as bank:
        assert (code, out.strip()) == (0, bank.head()), err
        assert bank.at().state(full_skill().id) == "quarantined" and bank.log()[0].ops[0]["reason"] == "it harms"


def test_verify_says_what_is_wrong_by_its_exit_code(gongfu, folder):
    assert gongfu("verify")[0] == 0
    with SkillBank.open(folder) as bank, bank._engine.execution_options(writes=True).begin() as behind:
        behind.exec_driver_sql("DROP TRIGGER commits_no_update")
        behind.exec_driver_sql("UPDATE commits SET message = 'evil' WHERE step = 1")
    code, _, err = gongfu("verify")
    assert code == 1 and "1 thing(s) wrong" in err and "was changed" in err


def test_skills_travel_between_banks(gongfu, folder, tmp_path):
    out, archive, other = tmp_path / "skills", tmp_path / "skills.tar.gz", tmp_path / "other.sqlite"
    assert gongfu("export", out)[0] == gongfu("export", archive, "--state", "retired", "--state", "active")[0] == 0
    assert read_folder(out) == [full_skill()] and len(read_folder(archive)) == 2
    code, _, err = gongfu("import", archive, bank=other)
    assert code == 0, err
    with SkillBank.open(other) as bank:
        assert {bank.at().state(s) for s in bank.at()} == {"candidate"} and len(bank.at()) == 2
    assert "nothing to do" in gongfu("import", out, bank=other)[2]
    page = out / "cold-drink/SKILL.md"
    page.write_text(page.read_text().replace("2. open it", "2. open it gently"))
    code, _, err = gongfu("import", out, bank=other)
    assert code == 2 and "say that you want that" in err
    assert gongfu("import", out, "--update", bank=other)[0] == 0
    assert read(gongfu("show", "cold-drink", "--json", bank=other))["version"] == 2
    (out / "cold-drink/big").write_bytes(bytes(2**20))
    assert gongfu("import", out, "--max-mib", "1", bank=other)[0] == 2
    assert gongfu("import", out, "--max-mib", "2", bank=other)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("log", "--ref", "nothing"), 2, "no branch, tag or commit 'nothing'"),
        (("show", "nobody"), 2, "'nobody' should be the name"),
        (("revert", "main~9"), 2, "before the empty bank"),
        (("quarantine", "nobody", "--why", "x"), 2, "'nobody'"),
        (("import", "nowhere"), 2, "no folder or archive nowhere"),
        (("export", ".", "--state", "actve"), 2, "got actve"),
    ],
)
def test_mistakes_are_told_in_one_line(gongfu, arguments, code, says):
    got, _, err = gongfu(*arguments)
    assert (got, "Traceback" in err) == (code, False) and says in err


def test_a_mistyped_bank_is_not_made(gongfu, tmp_path):
    for command in ("log", "show", "verify"):
        code, _, err = gongfu(command, bank=tmp_path / "nowhere.sqlite")
        assert code == 1 and "there is no bank at" in err
    assert not (tmp_path / "nowhere.sqlite").exists()
