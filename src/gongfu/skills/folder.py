"""Skills as SKILL.md folders (agentskills.io), out of a bank and into one. The bank is the truth, a folder is a view of it.

<name>/SKILL.md                       what the skill says, for agents and people; may be edited
       references/contract.json      the whole skill as the bank holds it, with its digest
       references/provenance.json    how it came to be and how it fared, for people; never read back
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gongfu.skills import page
from gongfu.skills.bank import SkillBank
from gongfu.skills.canonical import canonical_json
from gongfu.skills.compare import Blame
from gongfu.skills.edits import Add, Edit, SetState, Update
from gongfu.skills.errors import EditError, FolderError, SkillError
from gongfu.skills.intake import MAX_BYTES, read_files
from gongfu.skills.skill import CONTENT, NAME_LIMIT, Skill
from gongfu.skills.tree import State
from gongfu.skills.utilities import utilities
from gongfu.skills.view import USABLE, BankView

PAGE = "SKILL.md"
CONTRACT = "references/contract.json"
PROVENANCE = "references/provenance.json"
_FORMAT = "gongfu-skill/1"


def export(view: BankView, bank: SkillBank, path: str | Path, *, states: Collection[State] = USABLE) -> list[str]:
    """Write a folder of skill folders; their names. Equal banks give equal bytes.

    Raises FolderError when `path` holds something already.
    """
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise FolderError(f"{path} exists already; export to a new folder")
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    names: dict[str, None] = {}
    try:
        for name, content in _files(view, bank, states):
            file = temporary / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            names[PurePosixPath(name).parts[0]] = None
        temporary.mkdir(parents=True, exist_ok=True)  # a bank without skills
        temporary.replace(path)
    except OSError as e:
        raise FolderError(f"cannot write {path}: {e}") from e
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return list(names)


def export_archive(view: BankView, bank: SkillBank, path: str | Path, *, states: Collection[State] = USABLE) -> list[str]:
    """Write the same as a .tar.gz; the names of the skill folders. Equal banks give equal bytes."""
    path = Path(path)
    if path.exists():
        raise FolderError(f"{path} exists already; export to a new file")
    names: dict[str, None] = {}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, content in _files(view, bank, states):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
            names[PurePosixPath(name).parts[0]] = None
    try:
        path.write_bytes(packed.getvalue())
    except OSError as e:
        raise FolderError(f"cannot write {path}: {e}") from e
    return list(names)


def read_folder(path: str | Path, *, max_bytes: int = MAX_BYTES) -> list[Skill]:
    """The skills of a skill folder, of a folder of such, or of an archive (.zip, .tar, .tar.gz), by path.

    * An exported skill comes back as it was; with an edited SKILL.md, as the next version of it.
    * A foreign SKILL.md is the first version of a new skill.

    Nothing is executed, evidence is not read. Raises FolderError for whatever is unsafe or not in the format.
    """
    files = read_files(path, lambda name: name.endswith((PAGE, CONTRACT)), max_bytes)
    skills: list[Skill] = []
    for name in files:
        if PurePosixPath(name).name == PAGE:
            folder = PurePosixPath(name).parent
            own = folder.name or (Path(path).resolve().name if Path(path).is_dir() else None)
            skills.append(_read_skill(files, folder, own, f"{path}: {name}"))
    if not skills:
        raise FolderError(f"{path} holds no {PAGE}")
    return skills


def import_edits(skills: Sequence[Skill], view: BankView, *, update: bool = False) -> list[Edit]:
    """The edits that take skills into a bank, all as candidates: what others found out about them proves nothing here.

    A skill that the view holds in the same version is passed over. With `update`, the next version of one is written.
    Raises EditError for a version that does not follow on the bank's.
    """
    edits: list[Edit] = []
    for skill in {s.digest: s for s in skills}.values():
        if skill.id not in view:
            edits.append(Add(skill, "candidate"))
            continue
        there = view.get(skill.id)
        if there.digest == skill.digest:
            continue
        if skill.version != there.version + 1:
            raise EditError(
                f"{skill.name} was written on version {skill.version - 1} of skill {skill.id}, which is at version "
                f"{there.version} in the bank: export it again and repeat the change"
            )
        if not update:
            raise EditError(
                f"{skill.name} changes skill {skill.id} ({there.name}) of the bank; say that you want that (update)"
            )
        edits.append(Update(skill.id, {name: getattr(skill, name) for name in CONTENT}))
        if view.state(skill.id) == "active":
            edits.append(SetState(skill.id, "candidate", "changed by an import"))
    return edits


def _files(view: BankView, bank: SkillBank, states: Collection[State]) -> Iterator[tuple[str, bytes]]:
    histories = bank.histories(view.commit)
    worth = utilities(bank, view)
    taken: set[str] = set()
    for skill in view.skills(states=states):
        name = _free_name(skill.name, taken)
        taken.add(name)
        metadata = {
            "org.gongfu.id": skill.id,
            "org.gongfu.version": str(skill.version),
            "org.gongfu.state": view.state(skill.id),
            "org.gongfu.bank-commit": view.commit,
            "org.gongfu.contract": CONTRACT,
            "org.gongfu.provenance": PROVENANCE,
        }
        contract = {"format": _FORMAT, "folder": name, "digest": skill.digest, "skill": json.loads(skill.body)}
        provenance = {
            "commit": view.commit,
            "state": view.state(skill.id),
            "history": [_told(blame) for blame in histories[skill.id]],
            "evidence": worth[skill.id]._asdict(),
        }
        yield f"{name}/{PAGE}", page.render(skill, name, metadata).encode()
        yield f"{name}/{CONTRACT}", _pretty(contract)
        yield f"{name}/{PROVENANCE}", _pretty(provenance)


def _free_name(name: str, taken: Collection[str]) -> str:
    free, n = name, 1
    while free in taken:
        n += 1
        free = f"{name[: NAME_LIMIT - len(str(n)) - 1].rstrip('-')}-{n}"
    return free


def _told(blame: Blame) -> dict[str, Any]:
    told = {"commit": blame.commit.id, "step": blame.commit.step, "op": blame.op["op"], "fields": list(blame.fields)}
    more = {"version": blame.op.get("version"), "state": blame.op.get("state"), "reason": blame.op.get("reason")}
    return told | {k: v for k, v in more.items() if v} | {"message": blame.commit.message, "meta": dict(blame.commit.meta)}


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _read_skill(files: Mapping[str, bytes], folder: PurePosixPath, own: str | None, where: str) -> Skill:
    front, body = page.split(_text(files[str(folder / PAGE)], where), where)
    if own is not None and front.name != own:
        raise FolderError(f"{where} says that its name is {front.name!r}, but its folder is called {own!r}")
    contract = files.get(str(folder / CONTRACT))
    try:
        if contract is None:
            return Skill(f"{front.description} {body}", name=front.name)
        return _read_own(front, page.parse(body, where), _text(contract, where), where)
    except SkillError as e:
        raise FolderError(f"{where} is no usable skill: {e}") from e


def _read_own(front: page.Front, body: page.Body, contract: str, where: str) -> Skill:
    try:
        data = json.loads(contract)
        form, digest, name = data["format"], data["digest"], data["folder"]
        exported = Skill.from_body(canonical_json(data["skill"])) if form == _FORMAT else None
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise FolderError(f"{where}: {CONTRACT} is damaged: {e!r}") from e
    if exported is None:
        raise FolderError(f"{where}: {CONTRACT} has the format {form!r}, this gongfu reads {_FORMAT}")
    if exported.digest != digest:
        raise FolderError(f"{where}: {CONTRACT} was edited (its digest does not fit); edit {PAGE} instead")
    says = {
        "name": exported.name if front.name == name else front.name,
        "text": body.text,
        "protocol": body.protocol,
        "contract": body.contract,
    }
    edited = exported.revised(exported.version + 1, **says)
    same = all(getattr(edited, n) == getattr(exported, n) for n in CONTENT)
    if " ".join(front.description.split()) not in (page.description(exported), page.description(edited)):
        raise FolderError(f"{where} has an edited description; it is made from the text below the front matter: edit that")
    return exported if same else edited


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise FolderError(f"{where} is not in UTF-8: {e}") from e
