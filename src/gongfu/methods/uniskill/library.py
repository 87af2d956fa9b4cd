"""The bank as a UniSkill step uses it: which skill each task is shown, what became of it, and the one commit at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gongfu.core.errors import CheckpointError
from gongfu.core.records import Task, Trajectory
from gongfu.methods.uniskill.gate import BankTexts
from gongfu.methods.uniskill.lifecycle import LifecycleRules, Standing, review
from gongfu.methods.uniskill.records import Decision, Judged
from gongfu.rollout.collector import lost
from gongfu.skills.bank import SkillBank
from gongfu.skills.commit import Commit
from gongfu.skills.edits import Add, Edit, SetState, Update
from gongfu.skills.errors import BankError
from gongfu.skills.evidence import ProposalRecord, Use
from gongfu.skills.retrieve import Query, Retriever
from gongfu.skills.skill import Skill
from gongfu.skills.tree import STATES
from gongfu.skills.utilities import utilities
from gongfu.skills.view import USABLE, BankView


@dataclass
class Library:
    """A bank with its retriever. A step reads one commit, `view`, and makes at most one."""

    bank: SkillBank
    retriever: Retriever
    rules: LifecycleRules
    ask: Callable[[Sequence[Task]], list[str]]
    """The words that are looked for, for each task."""
    entered: dict[str, str] = field(default_factory=dict, init=False)
    """Proposal id -> digest of the version that it made, at the last write."""
    _reviewed: str = field(default="", init=False)
    """The commit that the last review left: in it every state is what the evidence asks for."""
    _born: dict[str, int] = field(default_factory=dict, init=False)
    """Skill id -> step of its present version, at that commit."""
    _used: set[str] = field(default_factory=set, init=False)
    """Skills with evidence that is newer."""

    def __post_init__(self) -> None:
        self.view = self.bank.at()

    def choose(self, tasks: Sequence[Task], view: BankView | None = None) -> dict[str, Skill]:
        """Task id -> the skill it is shown; tasks for which nothing fits are left out."""
        unique = list({task.id: task for task in tasks}.values())
        queries = [Query(text, task.kind) for text, task in zip(self.ask(unique), unique, strict=True)]
        hits = self.retriever.rank(queries, view or self.view)
        return {task.id: found[0].skill for task, found in zip(unique, hits, strict=True) if found}

    def texts(self) -> BankTexts:
        """Task kind -> skill id -> text of all skills, also of those that were retired: they are not taken in again."""
        found: dict[str, dict[str, str]] = {}
        for skill in self.view.skills(states=STATES):
            found.setdefault(skill.kind, {})[skill.id] = skill.text
        return found

    def record(self, played: Sequence[Trajectory], chosen: Mapping[str, Skill], step: int) -> None:
        """Evidence: how the episodes went for which a skill was chosen, whether it was shown or held back."""
        self._used |= {skill.id for skill in chosen.values()}
        self.bank.record_uses(
            Use(
                trajectory=t.id,
                step=step,
                skill=chosen[t.task.id].id,
                version=chosen[t.task.id].digest,
                commit=self.view.commit,
                mode="with" if t.skills else "without",
                kind=t.task.kind,
                outcome=t.outcome,
                score=t.score,
                turns=len(t.turns),
            )
            for t in played
            if t.task.id in chosen and not lost(t)
        )

    def write(self, decided: Sequence[tuple[Judged, Decision]], step: int) -> dict[str, float]:
        """Record every proposal and commit what was accepted, with the changes of state that the evidence asks for."""
        self.bank.record_proposals(proposal_record(judged, decision, step) for judged, decision in decided)
        accepted = [judged.proposal for judged, decision in decided if decision.accepted]
        edits: list[Edit] = []
        for proposal in accepted:
            if proposal.parsed.op == "ADD":
                edits.append(Add(Skill(text=proposal.parsed.text, kind=proposal.task.kind)))
            else:
                edits.append(Update(proposal.target, {"text": proposal.parsed.text}))
        self.entered = {}
        updated = {edit.id for edit in edits if isinstance(edit, Update)}
        changes = [c for c in review(self._standings(step), self.rules, step=step) if c.skill not in updated]
        edits += [SetState(change.skill, change.state, change.reason) for change in changes]
        if edits:
            meta = {"proposals": [proposal.id for proposal in accepted]}
            made = self.bank.commit(edits, parent=self.view.commit, step=step, message=f"step {step}", meta=meta)
            self._born |= births([made])
            self.view = self.bank.at()
            self.entered = {p.id: str(op["digest"]) for p, op in zip(accepted, made.ops, strict=False)}
        self._reviewed, self._used = self.view.commit, set()
        states = Counter(entry.state for _, entry in self.view.tree.items())
        return {
            "bank/skills": float(sum(states[state] for state in USABLE)),
            "bank/active": float(states["active"]),
            "bank/added": float(sum(isinstance(e, Add) for e in edits)),
            "bank/updated": float(len(updated)),
            "bank/retired": float(sum(c.state == "retired" for c in changes)),
        }

    def restore(self, commit: str) -> None:
        """Go back to the commit of a checkpoint. Raises CheckpointError for a bank that does not hold it."""
        try:
            self.bank.reset(commit, "resumed from a checkpoint")
        except BankError as e:
            raise CheckpointError(
                f"the checkpoint belongs to bank commit {commit[:12]}, which this bank does not hold: policy and bank are "
                f"restored together or not at all ({e})"
            ) from e
        self.view = self.bank.at()

    def back_to(self, commit: str, why: str) -> None:
        """Set the bank back; nothing is lost, the reflog keeps where it was."""
        self.bank.reset(commit, why)
        self.view = self.bank.at()

    def _standings(self, step: int) -> dict[str, Standing]:
        """Of the skills that a review may change: those with new evidence, or all where the bank is not as it was left."""
        as_left = self.view.commit == self._reviewed
        if not as_left:
            self._born = births(self.bank.log(self.view.commit))
        some = self._used if as_left and not self.rules.unused_for else None  # time passes for every skill
        found = utilities(self.bank, self.view, before_step=step + 1, skills=some)
        return {
            skill: Standing(state, self._born.get(skill, 0), utility)
            for skill, utility in found.items()
            if (state := self.view.state(skill)) in USABLE
        }


def births(commits: Sequence[Commit]) -> dict[str, int]:
    """Skill id -> step at which its version entered the bank; the newest commit comes first."""
    return {
        op["skill"]: commit.step for commit in reversed(commits) for op in commit.ops if op["op"] in ("add", "update", "put")
    }


def proposal_record(judged: Judged, decision: Decision, step: int) -> ProposalRecord:
    """A proposal as the bank keeps it, rejected ones too."""
    proposal, alignment, rewards = judged.proposal, judged.alignment, judged.rewards
    scores: dict[str, float | None] = {
        "format": rewards.format,
        "op": rewards.op,
        "skill": rewards.skill,
        "total": rewards.total,
    }
    if alignment is not None:
        scores |= {
            "r_align": alignment.r_align,
            "delta_plus": alignment.delta_plus,
            "delta_minus": alignment.delta_minus,
            "error": alignment.error,
            "coverage": alignment.coverage,
        }
    verdict = judged.verdict
    said = "" if verdict is None else verdict.error or f"op {_word(verdict.op_ok)}, content {_word(verdict.content_ok)}"
    references = (*proposal.pair.successes, *proposal.pair.failures)
    return ProposalRecord(
        id=proposal.id,
        step=step,
        op=(proposal.parsed.op or "malformed").lower(),
        target=proposal.target,
        source=proposal.pair.source.id,
        references=tuple(t.id for t in references),
        text=proposal.parsed.text,
        scores=scores,
        verdict="; ".join([said, *(verdict.reasons if verdict else ())]).strip("; "),
        decision="accepted" if decision.accepted else "rejected",
        reason=decision.reason,
    )


def _word(flag: bool | None) -> str:
    return {True: "ok", False: "bad", None: "not judged"}[flag]
