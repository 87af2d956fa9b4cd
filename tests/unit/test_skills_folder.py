import contextlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skills_ref.validator import validate

from gongfu.skills import intake
from gongfu.skills.bank import SkillBank
from gongfu.skills.commit import ROOT
from gongfu.skills.edits import Add, SetState, Update
from gongfu.skills.errors import EditError, FolderError
from gongfu.skills.folder import CONTRACT, PROVENANCE, export, export_archive, import_edits, read_folder
from gongfu.skills.page import description
from gongfu.skills.skill import Skill
from gongfu.skills.tree import STATES
from skill_support import full_skill, skill, skills, use, words

FRONT = "---\nname: {}\ndescription: What it is for.\n---\n"


@pytest.fixture
def bank(tmp_path):
    with SkillBank.open(tmp_path / "bank.sqlite") as opened:
        yield opened


def add(bank, *new, state="active"):
    return bank.commit([Add(s, state) for s in new], parent=bank.head(), step=1, message="found in play")


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}


# Out and in again


@pytest.fixture(scope="module")
def two_banks(tmp_path_factory):
    place = tmp_path_factory.mktemp("two")
    with SkillBank.open(place / "one.sqlite") as one, SkillBank.open(place / "two.sqlite") as two:
        yield one, two


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(skills, min_size=1, max_size=4, unique_by=lambda s: s.id), words)
def test_any_skills_come_back_as_they_were_and_pass_the_public_validator(two_banks, some, text):
    bank, copy = two_banks
    for each in two_banks:
        each.reset(ROOT.id, "the next example")
    add(bank, *some)
    second = some[0].revised(2, text=text)
    if second.text != some[0].text:
        bank.commit([Update(second.id, {"text": text})], parent=bank.head())
    view = bank.at()
    with tempfile.TemporaryDirectory() as folder:
        out, archive = Path(folder, "out"), Path(folder, "out.tar.gz")
        names = export(view, bank, out)
        export_archive(view, bank, archive)
        read = read_folder(out)
        assert sorted(read, key=lambda s: s.id) == list(view.skills())
        assert read_folder(archive) == read
        assert [validate(out / name) for name in names] == [[]] * len(names)
    copy.commit(import_edits(read, copy.at()), parent=ROOT.id)
    assert copy.at().skills() == view.skills()


def test_the_page_is_for_people(bank, tmp_path):
    add(bank, full_skill())
    export(bank.at(), bank, tmp_path / "out")
    page = (tmp_path / "out/cold-drink/SKILL.md").read_text()
    front, body = re.fullmatch(r"---\n(.*)\n---\n\n(.*)", page, re.S).groups()
    assert 'name: "cold-drink"' in front and 'org.gongfu.state: "active"' in front
    assert 'description: "Take a cold drink from the fridge; never leave it open. Use for tasks of kind cool."' in front
    assert body == (
        "Take a cold drink from the fridge; never leave it open.\n\n"
        "## When it applies\n\n- there is a fridge\n\n"
        "## Plan\n\n1. go to the fridge\n2. open it\n3. cool the mug\n\n"
        "## Done when\n\n- the mug is cool\n\n"
        "## Stop when\n\n- there is no fridge\n- twenty steps have passed\n\n"
        "## What changes\n\n- adds: cool(mug) (support 12)\n- deletes: warm(mug) (support 11)\n"
        "- event: opened(fridge) (support 0)\n"
    )
    contract = json.loads((tmp_path / "out/cold-drink" / CONTRACT).read_text())
    assert contract["digest"] == full_skill().digest and contract["skill"]["validator"]["sandbox"] == "monty"
    done = subprocess.run(
        [Path(sys.executable).with_name("agentskills"), "validate", tmp_path / "out/cold-drink"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_long_text_is_cut_in_the_description_only(bank, tmp_path):
    long = Skill("Look everywhere. " * 200, name="long", kind="look")
    add(bank, long)
    export(bank.at(), bank, tmp_path / "out")
    assert validate(tmp_path / "out/long") == [] and read_folder(tmp_path / "out") == [long]
    assert description(long).endswith("… Use for tasks of kind look.") and 1000 < len(description(long)) <= 1024


def test_provenance_tells_history_and_evidence_and_is_never_read_back(bank, tmp_path):
    first = add(bank, full_skill())
    bank.record_uses([use(full_skill(), first.id, n=n, success=n > 0) for n in range(4)])
    bank.commit([SetState(full_skill().id, "retired", "too old")], parent=first.id, step=5)
    export(bank.at(), bank, tmp_path / "out", states=STATES)
    file = tmp_path / "out/cold-drink" / PROVENANCE
    told = json.loads(file.read_text())
    assert [(h["op"], h["step"], h["message"]) for h in told["history"]] == [("add", 1, "found in play"), ("state", 5, "")]
    assert told["history"][1]["reason"] == "too old" and told["state"] == "retired"
    assert (told["evidence"]["with_n"], told["evidence"]["with_success"]) == (4, 3)
    file.write_text('{"evidence": {"with_n": 1000}, "state": "active"')
    assert read_folder(tmp_path / "out") == [full_skill()]
    with SkillBank.open(tmp_path / "copy.sqlite") as copy:
        assert import_edits(read_folder(tmp_path / "out"), copy.at()) == [Add(full_skill(), "candidate")]


def test_equal_banks_export_equal_bytes(bank, tmp_path):
    add(bank, full_skill(), skill(1), skill(2))
    export(bank.at(), bank, tmp_path / "out")
    export_archive(bank.at(), bank, tmp_path / "out.tar.gz")
    with SkillBank.open(tmp_path / "other.sqlite") as other:
        add(other, full_skill(), skill(1), skill(2))
        export(other.at(), other, tmp_path / "again")
        export_archive(other.at(), other, tmp_path / "again.tar.gz")
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    packed = (tmp_path / "out.tar.gz").read_bytes()
    assert packed == (tmp_path / "again.tar.gz").read_bytes() and packed[4:8] == bytes(4)  # no clock in it
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        assert {m.name: archive.extractfile(m).read() for m in archive} == contents(tmp_path / "out")


def test_equal_names_get_a_number_and_come_back_without_it(bank, tmp_path):
    long = "a" * 64
    same = [Skill(f"Text {n}.", name=name) for n, name in enumerate(["same"] * 3 + ["same-2"] + [long] * 2)]
    add(bank, *same)
    names = export(bank.at(), bank, tmp_path / "out")
    assert len(set(names)) == 6 and {"same", "same-2", "same-3", long, "a" * 62 + "-2"} < set(names)
    assert {(s.id, s.name) for s in read_folder(tmp_path / "out")} == {(s.id, s.name) for s in same}


def test_an_export_goes_to_a_new_place_whole_or_not_at_all(bank, tmp_path, monkeypatch):
    add(bank, skill(1), skill(2))
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    for write, path in ((export, out), (export_archive, out / "mine")):
        with pytest.raises(FolderError, match="exists already"):
            write(bank.at(), bank, path)
    (out / "mine").unlink()
    written = []

    def fail_late(path, content):
        written.append(path)
        if len(written) == 4:
            raise OSError("no space left")
        return len(content)

    monkeypatch.setattr(Path, "write_bytes", fail_late)
    with pytest.raises(FolderError, match="no space left"):
        export(bank.at(), bank, out)
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir() if "bank" not in p.name) == ["out"] and not any(out.iterdir())
    assert len(export(bank.at(), bank, out)) == 2
    assert export(bank.at("main~1"), bank, tmp_path / "empty") == [] and (tmp_path / "empty").is_dir()


# Edited by hand


@pytest.fixture
def page(bank, tmp_path):
    """SKILL.md of a skill that was exported."""
    add(bank, full_skill())
    export(bank.at(), bank, tmp_path / "out")
    return tmp_path / "out/cold-drink/SKILL.md"


def edit(page, old, new):
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new))
    return read_folder(page.parent.parent)[0]


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("never leave it open.\n\n##", "leave it\nopen.\n\n##", "text", "Take a cold drink from the fridge; leave it open."),
        ("2. open it", "2. open it\n   gently", "protocol.plan", ("go to the fridge", "open it gently", "cool the mug")),
        ("- there is a fridge\n", "- a fridge\n- a mug\n", "protocol.preconditions", ("a fridge", "a mug")),
        ("(support 12)", "(support 13)", "contract.adds", None),
        ("## Stop when\n\n- there is no fridge\n- twenty steps have passed\n\n", "", "protocol.abort", ()),
    ],
)
def test_an_edited_page_is_the_next_version(page, bank, old, new, field, value):
    read = edit(page, old, new)
    assert (read.id, read.version) == (full_skill().id, 2)
    found = read
    for name in field.split("."):
        found = getattr(found, name)
    assert found[0].support == 13 if value is None else found == value
    assert (read.validator, read.links, read.kind) == (full_skill().validator, full_skill().links, full_skill().kind)
    with pytest.raises(EditError, match="say that you want that"):
        import_edits([read], bank.at())
    bank.commit(import_edits([read], bank.at(), update=True), parent=bank.head())
    assert bank.at().get(read.id) == read and bank.at().state(read.id) == "candidate"


def test_line_ends_of_windows_change_nothing(page):
    page.write_bytes(page.read_bytes().replace(b"\n", b"\r\n"))
    assert read_folder(page.parent) == [full_skill()]


def test_a_renamed_skill_is_the_next_version(page):
    page.write_text(page.read_text().replace('name: "cold-drink"', "name: cooler"))
    page.parent.rename(page.parent.with_name("cooler"))
    (read,) = read_folder(page.parent.parent)
    assert (read.name, read.version, read.text) == ("cooler", 2, full_skill().text)


def test_an_import_passes_over_what_is_there_and_keeps_a_quarantine(page, bank):
    assert import_edits(read_folder(page.parent), bank.at()) == []
    bank.quarantine(full_skill().id, "harmful")
    read = edit(page, "2. open it", "2. close it")
    bank.commit(import_edits([read, read], bank.at(), update=True), parent=bank.head())
    assert bank.at().state(read.id) == "quarantined"


def test_an_import_on_an_older_version_is_refused(page, bank):
    bank.commit([Update(full_skill().id, {"kind": "heat"})], parent=bank.head())
    for skills_read in ([full_skill()], [edit(page, "2. open it", "2. close it")]):
        with pytest.raises(EditError, match=r"written on version \d of skill .* at version 2 in the bank: export it again"):
            import_edits(skills_read, bank.at(), update=True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('description: "Take', 'description: "Never take', "edited description"),
        ("## Plan", "## Plans", "section 'Plans'; there may be one each of When it applies, Plan"),
        ("## Stop when", "## Done when", "section 'Done when'"),
        ("- the mug is cool", "the mug is cool", "'the mug is cool' is no item"),
        ("(support 12)", "(support many)", "adds: holding"),
        ("adds: cool", "gives: cool", "adds: holding"),
        ("2. open it", "2. open\x07it", r"no usable skill: .*U\+0007"),
        ('name: "cold-drink"', 'name: "other"', "name is 'other', but its folder is called 'cold-drink'"),
    ],
)
def test_a_page_that_cannot_be_understood_is_refused(page, old, new, says):
    with pytest.raises(FolderError, match=says):
        edit(page, old, new)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace('"version"', '"v"').replace("fridge", "freezer", 1), "digest does not fit|damaged"),
        (lambda text: text.replace("monty", "none"), "damaged|digest does not fit"),
        (lambda text: text.replace("gongfu-skill/1", "gongfu-skill/9"), "format 'gongfu-skill/9'"),
        (lambda text: text[:-20], "damaged"),
        (lambda text: "[" * 100_000, "damaged"),
        (lambda text: "[]", "damaged"),
    ],
)
def test_a_contract_that_was_edited_is_refused(page, change, says):
    contract = page.parent / CONTRACT
    contract.write_text(change(contract.read_text()))
    with pytest.raises(FolderError, match=says):
        read_folder(page.parent)


def test_a_contract_of_a_later_version_is_held_to_its_digest(bank, tmp_path):
    add(bank, full_skill())
    bank.commit([Update(full_skill().id, {"kind": "heat"})], parent=bank.head())
    export(bank.at(), bank, tmp_path / "out")
    contract = tmp_path / "out/cold-drink" / CONTRACT
    contract.write_text(contract.read_text().replace("monty", "none"))
    with pytest.raises(FolderError, match=r"contract\.json was edited \(its digest does not fit\); edit SKILL\.md"):
        read_folder(tmp_path / "out")


# From elsewhere


def test_a_foreign_skill_is_a_candidate_of_its_own(tmp_path, bank):
    folder = tmp_path / "pdf-tools"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts/run.py").write_text("raise SystemExit('executed')")
    (folder / "SKILL.md").write_text(
        "\ufeff---\nname: pdf-tools\ndescription: >\n  Read PDF\n  files.\nlicense: MIT\n"
        "allowed-tools: [a, b]\n---\n# PDF\n\n* step 1\n"
    )
    expected = Skill("Read PDF files. # PDF * step 1", name="pdf-tools")
    assert read_folder(folder) == read_folder(tmp_path) == [expected]
    bank.commit(import_edits([expected], bank.at()), parent=bank.head())
    assert bank.at().state(expected.id) == "candidate"


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("", "begin with front matter"),
        ("# no front matter", "begin with front matter"),
        ("---\nname: x", "end its front matter"),
        ("---\n- a\n---\n", "no mapping"),
        ("---\nname: evil\n---\n", "no description"),
        ("---\nname: 3\ndescription: x\n---\n", "no name"),
        ("---\nname: [evil\ndescription: x\n---\n", "cannot be read"),
        ("---\nname: evil\nname: good\ndescription: x\n---\n", "given twice"),
        ("---\nname: evil\ndescription: !!python/object/apply:os.system [id]\n---\n", "cannot be read"),
        ("---\nname: evil\ndescription: &a x\nmetadata: {b: *a}\n---\n", "aliases are not allowed"),
        ("---\nname: evil\ndescription: x\nmetadata: " + "[" * 1000 + "]" * 1000 + "\n---\n", "nested more than"),
        ("---\nname: evil\ndescription: " + "x" * 70_000 + "\n---\n", "characters of front matter"),
        ("---\nname: evil\ndescription: 2026-99-99\n---\n", "cannot be read"),
        ("---\nname: evil\n? [a, b]\n: x\ndescription: x\n---\n", "cannot be read"),
        (FRONT.format("Evil Name") + "x", "folder is called|no skill name"),
        (FRONT.format("other") + "x", "its folder is called 'evil'"),
        (FRONT.format("evil") + "a\0b", r"no usable skill: .*U\+0000"),
        (FRONT.format("evil").encode() + b"\xff\xfe", "not in UTF-8"),
    ],
)
def test_hostile_pages_are_refused(tmp_path, page, says):
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/SKILL.md").write_bytes(page if isinstance(page, bytes) else page.encode())
    with pytest.raises(FolderError, match=says):
        read_folder(tmp_path)


def test_a_laughing_page_is_refused_at_once(tmp_path):
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/SKILL.md").write_text("---\na0: &a0 lol\n" + "\n".join(lines) + "\n---\n")
    with pytest.raises(FolderError, match="aliases are not allowed"):
        read_folder(tmp_path)


def good(folder):
    (folder / "good").mkdir(parents=True)
    (folder / "good/SKILL.md").write_text(FRONT.format("good") + "Look.")
    return folder / "good"


@pytest.mark.parametrize("make", ["file link", "folder link", "dangling link", "fifo", "socket", "device"])
def test_links_and_devices_in_a_folder_are_refused(tmp_path, make):
    inside = good(tmp_path / "skills")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/SKILL.md").write_text("secret")
    target = inside / "thing"
    if make.endswith("link"):
        target.symlink_to(
            {"file": tmp_path / "secret/SKILL.md", "folder": tmp_path / "secret", "dangling": "nowhere"}[make.split()[0]]
        )
    elif make == "fifo":
        os.mkfifo(target)
    elif make == "socket":
        import socket

        monkey = socket.socket(socket.AF_UNIX)
        monkey.bind(os.path.relpath(target))
    else:
        if os.geteuid() != 0:
            pytest.skip("making a device needs root")
        os.mknod(target, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    with pytest.raises(FolderError, match="thing is a link or a device"):
        read_folder(tmp_path / "skills")


def test_a_file_that_is_exchanged_for_a_link_is_not_followed(tmp_path, monkeypatch):
    inside = good(tmp_path / "skills")
    real = intake._open_regular

    def exchange(path):
        path.unlink()
        path.symlink_to(tmp_path / "secret")
        return real(path)

    (tmp_path / "secret").write_text("secret")
    monkeypatch.setattr(intake, "_open_regular", exchange)
    with pytest.raises(FolderError, match="cannot be read"):
        read_folder(inside)


def test_a_folder_that_is_too_large_or_too_deep_is_refused(tmp_path):
    inside = good(tmp_path / "skills")
    with (inside / "big.bin").open("wb") as big:
        big.truncate(11 * 2**20)  # a hole: it costs nothing
    with pytest.raises(FolderError, match="more than 10 MiB"):
        read_folder(tmp_path / "skills")
    assert len(read_folder(tmp_path / "skills", max_bytes=12 * 2**20)) == 1
    (inside / "big.bin").unlink()
    (inside / "/".join("d" * 20)).mkdir(parents=True)
    with pytest.raises(FolderError, match="16 folders deep"):
        read_folder(tmp_path / "skills")
    shutil.rmtree(inside / "d")
    (inside / ".git").symlink_to("/")  # what begins with a dot is nobody's skill
    assert len(read_folder(tmp_path / "skills")) == 1
    for missing in (tmp_path / "nowhere", tmp_path / "skills/good/scripts"):
        with pytest.raises(FolderError, match="there is no folder or archive"):
            read_folder(missing)
    (inside / "SKILL.md").unlink()
    with pytest.raises(FolderError, match=r"holds no SKILL\.md"):
        read_folder(tmp_path / "skills")


PAGE = (FRONT.format("good") + "Look.").encode()


def tar(path, *members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                archive.addfile(member)
    return path


def pack(path, *members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("pack_as", ["a.tar", "a.tar.gz", "a.zip"])
def test_archives_are_read(tmp_path, pack_as):
    make = pack if pack_as.endswith("zip") else lambda path, *m: tar(path, *m, mode="w:gz" if pack_as.endswith("gz") else "w")
    for name in ("good/SKILL.md", "./skills/good/SKILL.md", "SKILL.md"):
        path = make(tmp_path / pack_as, (name, PAGE), ("good/scripts/x.py", b"x"))
        assert read_folder(path) == [Skill("What it is for. Look.", name="good")]


@pytest.mark.parametrize(
    "name", ["../SKILL.md", "good/../../SKILL.md", "/etc/SKILL.md", "..\\SKILL.md", "C:/SKILL.md", "a/" * 20 + "SKILL.md"]
)
@pytest.mark.parametrize("make", [tar, pack])
def test_paths_that_lead_out_of_an_archive_are_refused(tmp_path, make, name):
    with pytest.raises(FolderError, match=r"leads out of it|folders deep"):
        read_folder(make(tmp_path / "a", ("good/SKILL.md", PAGE), (name, PAGE)))


@pytest.mark.parametrize(
    "kind",
    [(tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "good/SKILL.md"), (tarfile.CHRTYPE, ""), (tarfile.FIFOTYPE, "")],
)
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    with pytest.raises(FolderError, match="'good/thing', a link or a device"):
        read_folder(tar(tmp_path / "a.tar.gz", ("good/SKILL.md", PAGE), ("good/thing", kind)))


def test_links_in_a_zip_are_refused(tmp_path):
    link = zipfile.ZipInfo("good/thing")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(FolderError, match="'good/thing', a link or a device"):
        read_folder(pack(tmp_path / "a.zip", ("good/SKILL.md", PAGE), (link, "/etc/passwd")))


def test_an_entry_given_twice_is_refused(tmp_path):
    with pytest.raises(FolderError, match="md' twice"):
        read_folder(tar(tmp_path / "a.tar.gz", ("good/SKILL.md", PAGE), ("./good/SKILL.md", b"other")))
    with pytest.warns(UserWarning, match="Duplicate"):
        path = pack(tmp_path / "a.zip", ("good/SKILL.md", PAGE), ("good/SKILL.md", b"other"))
    with pytest.raises(FolderError, match="md' twice"):
        read_folder(path)


@pytest.mark.parametrize("make", [tar, pack])
def test_bombs_are_refused(tmp_path, make, monkeypatch):
    bomb = make(tmp_path / "a", ("good/SKILL.md", PAGE), ("good/zeros", bytes(40 * 2**20)))
    assert bomb.stat().st_size < 2**20
    with pytest.raises(FolderError, match="more than 10 MiB"):
        read_folder(bomb)
    tracemalloc.start()
    with pytest.raises(FolderError, match="more than 1 MiB"):
        read_folder(bomb, max_bytes=2**20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20  # it was not unpacked to find this out
    monkeypatch.setattr(intake, "_MAX_ENTRIES", 100)
    many = make(tmp_path / "b", ("good/SKILL.md", PAGE), *((f"d/{n}", b"") for n in range(100)))
    with pytest.raises(FolderError, match="more than 100 files"):
        read_folder(many)


def test_a_zip_that_lies_about_sizes_is_refused(tmp_path):
    path = pack(tmp_path / "a.zip", ("good/SKILL.md", PAGE + bytes(11 * 2**20)))
    raw = path.read_bytes()
    true = (len(PAGE) + 11 * 2**20).to_bytes(4, "little")
    assert raw.count(true) == 2
    path.write_bytes(raw.replace(true, (100).to_bytes(4, "little")))
    with pytest.raises(FolderError):
        read_folder(path)


def test_a_tar_with_a_giant_header_is_refused(tmp_path):
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 2**40
    (tmp_path / "a.tar").write_bytes(header.tobuf(tarfile.USTAR_FORMAT if header.size < 8**11 else tarfile.GNU_FORMAT))
    with pytest.raises(FolderError, match="cannot be read"):
        read_folder(tmp_path / "a.tar")


@pytest.mark.parametrize(
    "raw", [b"", b"not an archive", b"PK\x03\x04 broken", b"\x1f\x8b broken", b"\x1f\x8b\x08\0" + bytes(20)]
)
def test_what_is_no_archive_is_refused(tmp_path, raw):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(FolderError):
        read_folder(tmp_path / "a")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_damaged_archive_is_read_or_refused_but_never_crashes(tmp_path_factory, data):
    make, name = data.draw(st.sampled_from([(tar, "a.tar.gz"), (pack, "a.zip"), (lambda p, *m: tar(p, *m, mode="w"), "a.tar")]))
    path = make(tmp_path_factory.mktemp("damaged") / name, ("good/SKILL.md", PAGE), ("good/x", b"y"))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(1, len(raw)))])
    with contextlib.suppress(FolderError):
        read_folder(path)
