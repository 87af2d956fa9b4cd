"""Rollouts that measure a text or a bank by success, with the policy of the moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gongfu.core.records import Task
from gongfu.methods.uniskill.library import Library
from gongfu.methods.uniskill.records import Alignment, Proposal
from gongfu.rollout.actor import Actor
from gongfu.rollout.collector import Collector, lost


@dataclass
class Trials:
    """Plays with one text and with another, or with one bank and with another."""

    collector: Collector
    actor: Actor
    """With random numbers of its own: measuring must not change what training draws."""
    concurrency: int
    held_out: Sequence[Task] = ()
    """Tasks that training never plays."""
    episodes: int = 0
    """Played so far."""

    def compare(self, proposals: Sequence[Proposal], rollouts: int, step: int) -> list[tuple[list[float], list[float]]]:
        """For each proposal the scores on its task with the proposed text, and with what was shown."""
        new, old = [p.parsed.text for p in proposals], [p.target_text for p in proposals]
        scores = self._scores([p.task for p in proposals] * 2, [*new, *old], rollouts, step)
        return list(zip(scores[: len(proposals)], scores[len(proposals) :], strict=True))

    def compare_banks(self, library: Library, before: str, after: str, step: int) -> tuple[int, int]:
        """Successes on the held-out tasks with the bank at commit `before`, and at `after`."""
        found = []
        for commit in (before, after):
            chosen = library.choose(self.held_out, library.bank.at(commit))
            texts = [chosen[task.id].text if task.id in chosen else "" for task in self.held_out]
            found.append(sum(score[0] == 1 for score in self._scores(self.held_out, texts, 1, step) if score))
        return found[0], found[1]

    def _scores(self, tasks: Sequence[Task], texts: Sequence[str], rollouts: int, step: int) -> list[list[float]]:
        played = self.collector.collect(
            self.actor,
            tasks,
            group_size=rollouts,
            step=step,
            skills=[{"tried": text} if text else {} for text in texts],
            concurrency=self.concurrency,
        )
        self.episodes += len(played)
        return [[t.score for t in played[i * rollouts : (i + 1) * rollouts] if not lost(t)] for i in range(len(tasks))]


@dataclass
class RolloutValuer:
    """Values a proposal by the success of extra rollouts with it against as many without it (Evolving-RL's way). Proposals that
    say the same about the same task are tried once.

    Implements `gongfu.methods.uniskill.method.Valuer`: the alignment's two sides are the scores with and without.
    """

    trials: Trials
    rollouts: int

    def value(self, proposals: Sequence[Proposal], step: int) -> list[Alignment | None]:
        edits = {_what(p): p for p in reversed(proposals) if p.is_edit}
        tried = self.trials.compare(list(edits.values()), self.rollouts, step) if edits else []
        scores = dict(zip(edits, tried, strict=True))
        found: list[Alignment | None] = []
        for proposal in proposals:
            with_it, without = scores.get(_what(proposal), ([], [])) if proposal.is_edit else ([], [])
            found.append(Alignment(tuple(with_it), tuple(without)) if with_it and without else None)
        return found


def _what(proposal: Proposal) -> tuple[str, str, str]:
    return proposal.task.id, proposal.target_text, proposal.parsed.text
