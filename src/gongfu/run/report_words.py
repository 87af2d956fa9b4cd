"""The sentences about a run with a skill bank, the same in its report and on the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gongfu.run.report_parts import Record, share, total
from gongfu.run.report_story import Event, Life, Story
from gongfu.skills.evidence import ProposalRecord
from gongfu.skills.utilities import Utility

Quote = Callable[[str], str]
"""Marks words that a model or a person wrote, so that they are read as a quotation."""

_MOST_EVENTS = 4
_LONGEST = 160
_SCORES = (("r_align", "R_align"), ("delta_plus", "Δ+"), ("delta_minus", "Δ-"), ("total", "reward"))


def summary_of(story: Story) -> list[str]:
    """A few lines for a console: what the skills did, how the bank grew, one skill's life."""
    lines = [success_words(split, found) for split, found in story.evaluations.items()]
    if story.train:
        lines.append(growth_words(story.train))
    if story.life is not None:
        title, *told = life_words(story.life, lambda text: f'"{_cut(text)}"', most_events=_MOST_EVENTS)
        lines += [title, *(f"  {line}" for line in told)]
    return lines


def success_words(split: str, evaluations: Sequence[Record]) -> str:
    """Held-out success before and after, with skills and without."""
    first, last = evaluations[0], evaluations[-1]
    tasks = f", {last['n']} tasks" if "n" in last else ""
    if first is last:
        at, ends = f"at step {last['step']}", [last]
    else:
        at, ends = f"step {first['step']} -> {last['step']}", [first, last]
    shown = " -> ".join(share(r.get("success")) for r in ends)
    bare = " -> ".join(share(r.get("success_without_skills")) for r in ends)
    return f"held-out success ({split}{tasks}), {at}: {shown} with skills, {bare} without"


def growth_words(train: Sequence[Record]) -> str:
    """The bank before and after, what was done to it, and how many proposals that took."""
    told = [r for r in train if "bank/skills" in r]
    if not told:
        return "the bank: no step has told of it"
    first, last = told[0], told[-1]
    before = first["bank/skills"] - first["bank/added"] + first["bank/retired"]
    done = ", ".join(f"{total(told, f'bank/{name}'):.0f} {name}" for name in ("added", "updated", "retired"))
    proposals = f"{total(told, 'proposals/accepted'):.0f} of {total(told, 'proposals/count'):.0f} proposals accepted"
    back = total(told, "canary/rolled_back")
    return (
        f"the bank, {len(told)} steps: {before:.0f} -> {last['bank/skills']:.0f} skills ({last['bank/active']:.0f} active); "
        f"{done}; {proposals}" + (f"; rollbacks: {back:.0f}" if back else "")
    )


def life_words(life: Life, quote: Quote, *, most_events: int = 0) -> list[str]:
    """One skill's life, a title and a line for each thing; of more than `most_events` the middle is left out (0: none is)."""
    skill = life.current.skill
    title = f"one skill's life: {skill.name} ({skill.id[:8]}{f', for {skill.kind}' if skill.kind else ''})"
    lines = [title]
    origin = life.events[0].proposal
    if origin is not None:
        lines.append(f"step {life.events[0].step}: proposed as {_proposed(origin, quote)}; {origin.decision}")
    events = [_event_words(event, quote) for event in life.events]
    if most_events and len(events) > most_events:
        left_out = len(events) - most_events + 1
        events = [events[0], f"... {left_out} more, see gongfu bank blame ...", *events[-(most_events - 2) :]]
    lines += events
    lines.append(_use_words(life))
    lines.append(f"now {life.state or 'taken out of the bank'}: {quote(skill.text)}")
    return lines


def interval(worth: Utility) -> str:
    return f"[{worth.low:+.2f}, {worth.high:+.2f}]"


def solved(success: int, n: int) -> str:
    return f"{success / n:.2f}" if n else "–"


def _proposed(proposal: ProposalRecord, quote: Quote) -> str:
    scores = ", ".join(f"{label} {value:+.3f}" for key, label in _SCORES if (value := proposal.scores.get(key)) is not None)
    verdict = f"verdict {quote(proposal.verdict)}" if proposal.verdict else "no verdict"
    return "; ".join(part for part in (f"{proposal.op.upper()} after episode {proposal.source}", scores, verdict) if part)


def _event_words(event: Event, quote: Quote) -> str:
    op = event.op
    match op["op"]:
        case "add":
            what = f"enters the bank as {op['state']}"
        case "update":
            score = event.proposal.scores.get("r_align") if event.proposal else None
            what = f"becomes version {op['version']}" + (f", R_align {score:+.3f}" if score is not None else "")
        case "state":
            what = f"{op['was']} -> {op['state']}" + (f", because {quote(op['reason'])}" if op.get("reason") else "")
        case "put":
            what = f"is set back to version {op['version']}, {op['state']}"
        case _:
            what = "is taken out"
    when = "by hand" if event.step is None else f"step {event.step}"
    told = event.step is not None or op.get("reason") or not event.message
    return f"{when}: {what} (commit {event.commit[:12]})" + ("" if told else f": {quote(event.message)}")


def _use_words(life: Life) -> str:
    worth = life.current.worth
    version = f"version {life.current.skill.version}: " if len(life.versions) > 1 else ""
    text = f"{version}read in {worth.with_n} episodes"
    if worth.with_n:
        text += f", {solved(worth.with_success, worth.with_n)} of them solved"
    if worth.without_n:
        text += f"; held back in {worth.without_n}, {solved(worth.without_success, worth.without_n)} solved"
    if worth.uplift is not None:
        text += f": {worth.uplift:+.2f} with it, 95 % interval {interval(worth)}"
    return text + (f" (all versions: read in {life.uses})" if len(life.versions) > 1 else "")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 2]} …"
