"""Rollouts and proposals of UniSkill, made from what a test is about."""

from __future__ import annotations

from pathlib import Path

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.records import Call, Stop, Task, Trajectory, Turn, Validity
from gongfu.methods.uniskill.gate import GateRules
from gongfu.methods.uniskill.records import Alignment, Group, Judged, Op, Pair, Parsed, Proposal, Rewards, Verdict
from gongfu.methods.uniskill.rewards import RewardRules

PRESETS = {
    name: load(Recipe, files=[Path(__file__).resolve().parents[1] / "recipes" / "uniskill" / f"{name}.toml"]).config.method
    for name in ("paper", "reference", "plus")
}
GATE_RULES = {name: GateRules(**method.gate.model_dump()) for name, method in PRESETS.items()}
REWARD_RULES = {name: RewardRules(**method.reward.model_dump()) for name, method in PRESETS.items()}
GROUP = "000003:home/1"
GOOD = Verdict(True, True)
SHOWN = "Look into the fridge before you search the cabinets."
TEXT = "Heat the mug in the microwave before you put it down."


def rollout(
    number: int = 0,
    success: bool = True,
    actions: str = "go to fridge",
    group: str = GROUP,
    kind: str = "heat",
    stop: Stop = "terminated",
) -> Trajectory:
    """An episode of the actions that `actions` lists between semicolons; "" = no turn."""
    task = Task("home/1", "household", kind, "heat some mug", "train")
    turns = tuple(
        Turn("You see a mug 1.", None, None, action, Validity(True, True), 0.0) for action in actions.split("; ") if action
    )
    outcome = "success" if success else "failure"
    return Trajectory(f"{group}:{number}", task, group, (), turns, "You see a fridge 1.", outcome, float(success), stop)


def group_of(successes: int, failures: int, *more: Trajectory) -> Group:
    played = [rollout(i, i < successes) for i in range(successes + failures)]
    return Group(played[0].task if played else more[0].task, (*played, *more))


def proposal(
    op: Op | None = "ADD",
    text: str = TEXT,
    *,
    id: str = "p",
    target: str = "",
    group: str = GROUP,
    kind: str = "heat",
    pair: Pair | None = None,
) -> Proposal:
    """A proposal of a failed rollout; `target` names the skill that was shown (its text is SHOWN)."""
    source = rollout(0, False, "go to cabinet; open cabinet", group, kind)
    if pair is None:
        pair = Pair(source, rollout(1, True, "go to fridge; take mug", group, kind), (), ())
    call = Call("proposer", "actor", 0, (1,), (2,), (-1.0,), text, "stop")
    parsed = Parsed(op, "" if op in (None, "KEEP") else text, "" if op else "unknown operation")
    return Proposal(id, source.task, pair, target, SHOWN if target else "", call, parsed)


def aligned(r: float, *, plus: float | None = None, coverage: float = 1.0) -> Alignment:
    """R_align = `r` from one reference a side, Δ+ = `plus` (default: all of it)."""
    plus = r if plus is None else plus
    return Alignment((plus,), (plus - r,), coverage)


def judged(
    r: float = 0.03,
    op: Op | None = "ADD",
    text: str = TEXT,
    *,
    verdict: Verdict | None = GOOD,
    alignment: Alignment | None = None,
    duplicate_of: str = "",
    **about: str,
) -> Judged:
    alignment = alignment or aligned(r)
    return Judged(proposal(op, text, **about), verdict, alignment, Rewards(0.05), duplicate_of)
