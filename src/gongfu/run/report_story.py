"""What a report tells of a run with a skill bank, read from its metrics, its recipe and its bank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.config.uniskill import UniSkillConfig
from gongfu.run.folder import RunFolder
from gongfu.run.report_parts import Record, by_split
from gongfu.skills.bank import FILE, SkillBank
from gongfu.skills.compare import Blame
from gongfu.skills.edits import Operation
from gongfu.skills.evidence import ProposalRecord, Tallies
from gongfu.skills.skill import Skill
from gongfu.skills.tree import State
from gongfu.skills.utilities import Utility, newcombe


@dataclass(frozen=True)
class Event:
    """Something that one commit did to a skill."""

    commit: str
    step: int | None
    """Training step of the metrics (the first is 1); None = not done by training."""
    op: Operation
    proposal: ProposalRecord | None
    """Where it came from; None for a change of state, or what was not proposed in a step."""
    message: str


@dataclass(frozen=True)
class Version:
    """A version of a skill, and how the episodes went for which it was chosen."""

    skill: Skill
    worth: Utility


@dataclass(frozen=True)
class Life:
    """What became of one skill, from the proposal that made it to now."""

    events: tuple[Event, ...]
    versions: tuple[Version, ...]
    """Oldest first."""
    current: Version
    """The present one, or the last that there was."""
    state: State | None
    """None: it was taken out of the bank again."""

    @property
    def uses(self) -> int:
        """Episodes that were played with it, in any version."""
        return sum(version.worth.with_n for version in self.versions)


@dataclass(frozen=True)
class Story:
    """All that is told of a run with a bank."""

    train: Sequence[Record]
    evaluations: Mapping[str, Sequence[Record]]
    """By split, each by step."""
    proposals: Sequence[ProposalRecord]
    """Every one that the bank recorded."""
    life: Life | None
    """Of the skill with the most uses; None while no skill has entered the bank."""
    floor: float | None
    """Smallest probability that the support loss allows an operation; None = it is off."""
    eta: float
    """Bound that R_align is clipped to in the reward."""
    shared: bool
    """Whether the bank was given to the run, and may hold what other runs did."""


def read_story(folder: RunFolder, records: Sequence[Record]) -> Story | None:
    """The story of a run, None for one whose metrics (`records`) tell of no bank. Raises BankError when the bank is missing."""
    if not any("bank/skills" in r or "success_without_skills" in r for r in records):
        return None
    method = load(Recipe, files=[folder.path / "config.toml"]).config.method
    if not isinstance(method, UniSkillConfig):
        return None
    with SkillBank.open(method.bank or folder.path / FILE, create=False) as bank:
        proposals = bank.proposals()
        life = find_life(bank, proposals)
    return Story(
        train=[r for r in records if r.get("phase") == "train"],
        evaluations=by_split([r for r in records if r.get("phase") == "eval"]),
        proposals=proposals,
        life=life,
        floor=method.support.p_min if method.support.weight else None,
        eta=method.reward.eta,
        shared=bool(method.bank),
    )


def find_life(bank: SkillBank, proposals: Iterable[ProposalRecord]) -> Life | None:
    """The life of the skill that most episodes were played with (the oldest of several), None for an empty bank."""
    histories = bank.histories()
    if not histories:
        return None
    tallies = bank.tallies()
    uses = dict(zip(tallies.versions, tallies.counts[:, 0].tolist(), strict=True))
    skill = max(histories, key=lambda skill: sum(uses.get(digest, 0) for digest in _digests(histories[skill])))
    past = histories[skill]
    found = {digest: bank.at(commit).get(skill) for digest, commit in _digests(past).items()}
    versions = [Version(version, worth) for version, worth in zip(found.values(), _worth(found, tallies), strict=True)]
    last = next(blame.op["digest"] for blame in reversed(past) if "digest" in blame.op)
    view, by_id = bank.at(), {p.id: p for p in proposals}
    return Life(
        events=tuple(_event(blame, by_id) for blame in past),
        versions=tuple(versions),
        current=next(version for version in versions if version.skill.digest == last),
        state=view.state(skill) if skill in view else None,
    )


def _digests(past: Sequence[Blame]) -> dict[str, str]:
    """Digest of every version -> the commit that it came with."""
    first: dict[str, str] = {}
    for blame in past:
        if "digest" in blame.op:
            first.setdefault(blame.op["digest"], blame.commit.id)
    return first


def _worth(digests: Iterable[str], tallies: Tallies) -> list[Utility]:
    counted = dict(zip(tallies.versions, tallies.counts, strict=True))
    nothing = np.array([0, 0, 0, 0, -1], dtype=np.int64)
    rows = np.array([counted.get(digest, nothing) for digest in digests])
    found = []
    for counts, uplift, low, high in zip(rows.tolist(), *newcombe(*rows[:, :4].T), strict=True):
        worth = Utility(*counts[:4], low=float(low), high=float(high), last_used=counts[4] if counts[4] >= 0 else None)
        found.append(worth._replace(uplift=float(uplift)) if counts[0] and counts[2] else worth)
    return found


def _event(blame: Blame, proposals: Mapping[str, ProposalRecord]) -> Event:
    commit = blame.commit
    event = Event(commit.id, None, blame.op, None, commit.message)
    accepted = commit.meta.get("proposals")
    if accepted is None:
        return event
    # A training step names its accepted proposals, and makes their edits first and in their order. It counts from 0.
    place = commit.ops.index(blame.op)
    proposal = proposals.get(accepted[place]) if place < len(accepted) else None
    return replace(event, step=commit.step + 1, proposal=proposal)
