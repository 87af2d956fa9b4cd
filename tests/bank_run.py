"""A hand-made run folder with a small real bank: four steps of training that wrote two skills, and two evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gongfu.config.load import load, to_toml
from gongfu.config.schema import Recipe
from gongfu.run.folder import RunFolder
from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add, Edit, SetState, Update
from gongfu.skills.evidence import ProposalRecord, Use
from gongfu.skills.skill import Skill

FIRST = Skill("Open the fridge before you search the cabinets.", kind="cool")
BETTER = "Open the fridge first; it is `often` shut | never skip it."
SECOND = Skill("Look under the lamp.", kind="look")
BANK = {"bank/skills": 0.0, "bank/active": 0.0, "bank/added": 0.0, "bank/updated": 0.0, "bank/retired": 0.0}
REASONS = ("malformed", "keep", "critic", "delta_plus")


def make_run(path: Path, *overrides: str) -> Path:
    """The folder of a run of four steps; what the tests know of it stands in the tables below."""
    config = to_toml(load(Recipe, overrides=["--method.name=uniskill", *overrides]).config)
    with RunFolder.create(path, config_toml=config, info={"command": "uniskill", "seed": 3}) as folder:
        folder.append_metrics(evaluation(0, success=0.25, without=0.25, shown=0.0))
        for step, record in enumerate(steps(), 1):
            folder.append_metrics({"step": step, "phase": "train", **record})
        folder.append_metrics(evaluation(4, success=0.75, without=0.5, shown=0.9))
    fill_bank(path)
    return path


def evaluation(step: int, *, success: float, without: float, shown: float) -> dict[str, Any]:
    measured = {"n": 20, "success": success, "low": success - 0.2, "high": success + 0.2, "success_by_kind": {"cool": success}}
    skills = {"success_without_skills": without, "skills_shown": shown}
    return {"step": step, "phase": "eval", "split": "seen", "checkpoint": f"step {step}", **measured, **skills}


def steps() -> list[dict[str, float]]:
    """The first asks for nothing; the second adds both skills; the third changes one; the fourth retires the other."""
    return [
        {"rollout/success": 0.2, "rollout/skills_shown": 0.0, "proposals/count": 0.0, **BANK},
        {
            **proposed(add=0.75, update=0.0, keep=0.0, malformed=0.25, accepted=2, refused=(1, 0, 1, 0)),
            **BANK,
            "bank/skills": 2.0,
            "bank/added": 2.0,
        },
        {
            **proposed(add=0.25, update=0.5, keep=0.25, malformed=0.0, accepted=1, refused=(0, 1, 0, 2)),
            **BANK,
            "bank/skills": 2.0,
            "bank/active": 1.0,
            "bank/updated": 1.0,
        },
        {
            **proposed(add=0.0, update=0.0, keep=1.0, malformed=0.0, accepted=0, refused=(0, 4, 0, 0)),
            **BANK,
            "bank/skills": 1.0,
            "bank/active": 1.0,
            "bank/retired": 1.0,
        },
    ]


def proposed(*, accepted: int, refused: tuple[int, ...], **shares: float) -> dict[str, float]:
    """Metrics of a step of four proposals."""
    found = {f"proposals/share_{name}": share for name, share in shares.items()}
    reasons = {f"proposals/refused_{name}": float(n) for name, n in zip(REASONS, refused, strict=True)}
    played = {"rollout/success": 0.4, "rollout/skills_shown": 0.5, "proposer/below_floor": 0.25}
    return {**played, "proposals/count": 4.0, **found, **reasons, "proposals/accepted": float(accepted)}


def fill_bank(folder: Path) -> None:
    """Training counts its steps from 0 in the bank."""
    with SkillBank.open(folder) as bank:
        bank.record_proposals(PROPOSALS)
        learn(bank, 1, [Add(SECOND), Add(FIRST)], ["b", "a"])
        play(bank, FIRST, 2, wins=3, of=4, mode="with")
        play(bank, SECOND, 2, wins=1, of=2, mode="with")
        play(bank, FIRST, 2, wins=0, of=2, mode="without")
        learn(bank, 2, [Update(FIRST.id, {"text": BETTER}), SetState(FIRST.id, "active", "4 uses, uplift +0.750")], ["c"])
        play(bank, bank.at().get(FIRST.id), 3, wins=9, of=10, mode="with")
        play(bank, bank.at().get(FIRST.id), 3, wins=2, of=5, mode="without")
        learn(bank, 3, [SetState(SECOND.id, "retired", "harmful")], [])


def learn(bank: SkillBank, step: int, edits: list[Edit], accepted: list[str]) -> None:
    bank.commit(edits, parent=bank.head(), step=step, message=f"step {step}", meta={"proposals": accepted})


def play(bank: SkillBank, skill: Skill, step: int, *, wins: int, of: int, mode: Any) -> None:
    head = bank.head()
    bank.record_uses(
        Use(
            trajectory=f"{step:06d}:{skill.kind}:{n}",
            step=step,
            skill=skill.id,
            version=skill.digest,
            commit=head,
            mode=mode,
            kind=skill.kind,
            outcome="success" if n < wins else "failure",
            score=float(n < wins),
            turns=9,
        )
        for n in range(of)
    )


def proposal(
    id: str, step: int, op: str, text: str, r: float | None, *, reason: str = "accepted", **other: Any
) -> ProposalRecord:
    scores = {"format": 0.05, "total": 0.1} | (
        {} if r is None else {"r_align": r, "delta_plus": 0.75 * r, "delta_minus": -0.25 * r}
    )
    decision = "accepted" if reason == "accepted" else "rejected"
    made = {"target": "", "source": f"{step:06d}:home:{id}", "references": (), "verdict": "op ok, content ok"}
    return ProposalRecord(
        id=id, step=step, op=op, text=text, scores=scores, decision=decision, reason=reason, **{**made, **other}
    )


PROPOSALS = (
    proposal("a", 1, "add", FIRST.text, 0.04),
    proposal("b", 1, "add", SECOND.text, 0.02),
    proposal("c", 2, "update", BETTER, 0.06, target=FIRST.id),
    proposal("d", 2, "add", "Go home.", -0.5, reason="delta_plus"),
    proposal("e", 1, "malformed", "", None, reason="malformed"),
    proposal("f", 2, "keep", "", 0.03, reason="keep", target=FIRST.id),
)
