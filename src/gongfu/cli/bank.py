"""`gongfu bank ...`: look at a bank of skills, undo what harmed it, carry skills in and out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gongfu.cli.show import console, print_table

if TYPE_CHECKING:
    from gongfu.skills.bank import SkillBank
    from gongfu.skills.commit import Commit
    from gongfu.skills.skill import Skill

app = typer.Typer(help="The bank of skills: history, evidence, undo, exchange.", no_args_is_help=True)

Bank = Annotated[str, typer.Argument(metavar="BANK", help="A run folder, a bank file, or a database URL.")]
Ref = Annotated[str, typer.Option(help="Branch, tag or commit id (6 digits do); main~2 is two commits before main.")]
Branch = Annotated[str, typer.Option(help="Branch that moves.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SkillName = Annotated[str, typer.Argument(metavar="SKILL", help="Name of a skill, or the beginning of its id.")]


@app.command()
def log(
    bank: Bank,
    ref: Ref = "main",
    limit: Annotated[int, typer.Option("-n", min=1, help="Newest n commits.")] = 20,
    as_json: Json = False,
) -> None:
    """List commits, newest first."""
    with _open(bank) as opened:
        found = opened.log(ref, limit=limit)
    if as_json:
        _print_json([_commit(c) for c in found])
        return
    rows = [[c.id[:12], str(c.step), _summary(c), c.message.split("\n")[0], c.at] for c in found]
    print_table(f"Commits of {bank} at {ref}", ["commit", "step", "edits", "message", "written"], rows)


@app.command()
def show(
    bank: Bank,
    skill: Annotated[str, typer.Argument(metavar="[SKILL]", help="Name of a skill, or the beginning of its id.")] = "",
    ref: Ref = "main",
    as_json: Json = False,
) -> None:
    """List the skills of a commit with what they are worth, or show one skill."""
    from gongfu.skills import page
    from gongfu.skills.tree import STATES
    from gongfu.skills.utilities import utilities

    with _open(bank) as opened:
        view = opened.at(ref)
        skills = [view.find(skill)] if skill else view.skills(states=STATES)
        worth = utilities(opened, view)
        records = [{**_skill(s), "state": view.state(s.id), "evidence": worth[s.id]._asdict()} for s in skills]
    if as_json:
        _print_json(records[0] if skill else records)
        return
    if skill:
        told = {"id": skills[0].id, "version": str(skills[0].version), "state": records[0]["state"]}
        told |= dict(zip(("with", "without", "uplift", "95 %"), _worth(records[0]["evidence"]), strict=True))
        print(page.render(skills[0], skills[0].name, told), end="")
        return
    rows = [[r["name"], r["id"], str(r["version"]), r["kind"], r["state"], *_worth(r["evidence"])] for r in records]
    columns = ["skill", "id", "version", "kind", "state", "with", "without", "uplift", "95 %"]
    print_table(f"{len(rows)} skills of {bank} at {view}", columns, rows)


@app.command()
def diff(bank: Bank, a: str, b: str, as_json: Json = False) -> None:
    """What changed from commit A to commit B."""
    with _open(bank) as opened:
        changes = opened.diff(a, b)
    if as_json:
        _print_json(
            [
                {"id": c.id, "fields": list(c.fields), "state": [c.state_before, c.state_after]}
                | {side: None if s is None else _skill(s) for side, s in (("before", c.before), ("after", c.after))}
                for c in changes
            ]
        )
        return
    for c in changes:
        known = c.after or c.before
        assert known is not None  # one side holds it
        print(f"{c.id} {known.name}: {c.state_before or 'absent'} -> {c.state_after or 'absent'}; {', '.join(c.fields)}")
        if "text" in c.fields:
            print("".join(f"  {mark} {s.text}\n" for mark, s in (("-", c.before), ("+", c.after)) if s is not None), end="")


@app.command()
def blame(bank: Bank, skill: SkillName, ref: Ref = "main", as_json: Json = False) -> None:
    """Everything that was done to a skill: which commit changed what."""
    with _open(bank) as opened:
        found = opened.blame(opened.at(ref).find(skill).id, ref)
    if as_json:
        _print_json([{"commit": _commit(f.commit), "op": f.op, "fields": list(f.fields)} for f in found])
        return
    rows = [
        [f.commit.id[:12], str(f.commit.step), f.op["op"], ", ".join(f.fields), f.op.get("reason") or f.commit.message]
        for f in found
    ]
    print_table(f"History of {skill}", ["commit", "step", "edit", "changed", "why"], rows)


@app.command()
def revert(
    bank: Bank,
    commit: Annotated[str, typer.Argument(help="Commit to undo.")],
    message: Annotated[str, typer.Option("-m", "--message", help="Why.")] = "",
    branch: Branch = "main",
) -> None:
    """Undo one commit by a new one."""
    with _open(bank) as opened:
        _done(opened.revert(commit, branch=branch, message=message))


@app.command()
def quarantine(
    bank: Bank, skill: SkillName, why: Annotated[str, typer.Option(help="Reason, kept in the log.")], branch: Branch = "main"
) -> None:
    """Take a skill out of use; its evidence stays."""
    with _open(bank) as opened:
        _done(opened.quarantine(opened.at(branch).find(skill).id, why, branch=branch))


@app.command()
def verify(bank: Bank) -> None:
    """Recompute every digest and replay every commit; exit 1 and name what is wrong."""
    from gongfu.skills.errors import BankError

    with _open(bank) as opened:
        found = opened.verify()
    if found:
        raise BankError(f"{len(found)} thing(s) wrong with {bank}:\n" + "\n".join(found))
    console.print("[green]ok[/green]: every digest fits and every commit replays")


@app.command("import")
def import_(
    bank: Bank,
    source: Annotated[Path, typer.Argument(help="A skill folder, a folder of them, a .zip or a .tar.gz.")],
    update: Annotated[bool, typer.Option("--update", help="Also write new versions of skills that the bank has.")] = False,
    branch: Branch = "main",
    max_mib: Annotated[int, typer.Option(min=1, help="Largest size of all files together, unpacked.")] = 10,
) -> None:
    """Take SKILL.md folders into a bank (made if there is none), as candidates."""
    from gongfu.skills.folder import import_edits, read_folder

    skills = read_folder(source, max_bytes=max_mib * 2**20)
    with _open(bank, create=True) as opened:
        view = opened.at(branch)
        edits = import_edits(skills, view, update=update)
        if edits:
            message = f"Import {source.name}"
            _done(opened.commit(edits, parent=view.commit, branch=branch, step=view.made_by.step, message=message))
        else:
            console.print(f"nothing to do: the bank holds these {len(skills)} skills already")


@app.command()
def export(
    bank: Bank,
    out: Annotated[Path, typer.Argument(help="New folder, or new file if it ends in .tar.gz.")],
    ref: Ref = "main",
    state: Annotated[list[str] | None, typer.Option(help="States to export; default: active and candidate.")] = None,
) -> None:
    """Write the skills of a commit as SKILL.md folders (agentskills.io)."""
    from gongfu.skills.folder import export as write_folder
    from gongfu.skills.folder import export_archive
    from gongfu.skills.tree import known_states
    from gongfu.skills.view import USABLE

    write = export_archive if out.name.endswith((".tar.gz", ".tgz")) else write_folder
    with _open(bank) as opened:
        names = write(opened.at(ref), opened, out, states=known_states(state) if state else USABLE)
    console.print(f"{len(names)} skills written to {out}", highlight=False)


def _open(location: str, *, create: bool = False) -> SkillBank:
    from gongfu.skills.bank import SkillBank

    return SkillBank.open(location, create=create)


def _done(commit: Commit) -> None:
    console.print(f"{_summary(commit)}: {commit.message}", highlight=False, markup=False)
    print(commit.id)


def _summary(commit: Commit) -> str:
    counts: dict[str, int] = {}
    for op in commit.ops:
        counts[op["op"]] = counts.get(op["op"], 0) + 1
    return ", ".join(f"{n} {op}" for op, n in counts.items())


def _commit(commit: Commit) -> dict[str, Any]:
    return dataclasses.asdict(commit)


def _skill(skill: Skill) -> dict[str, Any]:
    return {**dataclasses.asdict(skill), "digest": skill.digest}


def _worth(evidence: dict[str, Any]) -> list[str]:
    def share(side: str) -> str:
        return f"{evidence[f'{side}_success']}/{evidence[f'{side}_n']}"

    measured = evidence["uplift"] is not None
    return [
        share("with"),
        share("without"),
        f"{evidence['uplift']:+.2f}" if measured else "",
        f"{evidence['low']:+.2f} .. {evidence['high']:+.2f}" if measured else "",
    ]


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False))
