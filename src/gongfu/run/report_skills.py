"""The sections of a report about the skill bank of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean, median

from gongfu.run.report_parts import Record, change, share, spans, table, total, window, with_interval
from gongfu.run.report_story import Life, Story
from gongfu.run.report_words import growth_words, interval, life_words, solved, success_words
from gongfu.skills.evidence import ProposalRecord

OPERATIONS = ("add", "update", "keep", "malformed")
_REFUSED = "proposals/refused_"
_BELOW = "proposer/below_floor"
_REASONS = {
    "keep": "KEEP, no edit wanted",
    "critic": "refused by the critic",
    "missing": "not judged or measured",
    "duplicate": "repeats a skill",
    "delta_plus": "Δ+ not above 0",
    "r_align": "R_align not above 0",
    "confidence": "R_align within its error",
    "calibration": "below the calibrated bound",
    "superseded": "a better edit was taken",
    "warm-up": "in the warm-up",
}


def sections_of(story: Story) -> list[str]:
    """Markdown, a section each."""
    sections = ["## Skills\n\n![Skills of the run](skills.png)"]
    if story.shared:
        sections.append("The bank was given to this run: proposals and skills are told for all of it, whoever made them.")
    sections += [_with_and_without(split, found) for split, found in story.evaluations.items()]
    if story.train:
        sections += [_growth(story.train), _proposals(story.train, story.floor)]
    if edits := measured(story.proposals):
        sections.append(_alignment(edits))
    sections.append("## One skill's life\n\nNo skill has entered the bank." if story.life is None else _life(story.life))
    return sections


def measured(proposals: Sequence[ProposalRecord]) -> list[ProposalRecord]:
    """The edits whose R_align is known."""
    return [p for p in proposals if p.op in ("add", "update") and p.scores.get("r_align") is not None]


def r_align(proposal: ProposalRecord) -> float:
    return float(proposal.scores["r_align"] or 0.0)


def label_of(operation: str) -> str:
    return operation if operation == "malformed" else operation.upper()


def funnel(train: Sequence[Record]) -> dict[str, float]:
    """What became of the proposals, in words -> how many; the accepted ones last."""
    reasons = dict.fromkeys(key for r in train for key in r if key.startswith(_REFUSED))
    found = {_REASONS.get(word := key.removeprefix(_REFUSED), word): total(train, key) for key in reasons}
    return {**found, "accepted": total(train, "proposals/accepted")}


def code(text: str, *, cell: bool = False) -> str:
    """Markdown that shows `text` as it is, whatever it holds; `cell`: within a table."""
    line = " ".join(text.split()) or "–"
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    blank = " " if "`" in (line[0], line[-1]) else ""
    found = f"{fence}{blank}{line}{blank}{fence}"
    return found.replace("|", "\\|") if cell else found


def _with_and_without(split: str, evaluations: Sequence[Record]) -> str:
    rows = []
    for r in evaluations:
        bare = r.get("success_without_skills")
        known = (with_interval(r), share(bare), change(bare, r.get("success")), share(r.get("skills_shown")))
        rows.append((str(r["step"]), *known))
    header = ("step", "with skills", "without", "difference", "share of tasks shown one")
    told = _sentence(success_words(split, evaluations))
    how = "The same weights play the same tasks with the same seeds: once with the skills that the bank chooses, once bare."
    return f"## With and without skills on {split}\n\n{told}\n\n{table(header, rows)}\n\n{how}"


def _growth(train: Sequence[Record]) -> str:
    rows = []
    for part in spans([r for r in train if "bank/skills" in r]):
        last = part[-1]
        sizes = (f"{last[f'bank/{name}']:.0f}" for name in ("skills", "active"))
        edits = (f"{total(part, f'bank/{name}'):.0f}" for name in ("added", "updated", "retired"))
        rows.append((str(last["step"]), *sizes, *edits))
    header = ("up to step", "skills", "of them active", "added since", "updated", "retired")
    return f"## The bank\n\n{_sentence(growth_words(train))}\n\n{table(header, rows)}"


def _proposals(train: Sequence[Record], floor: float | None) -> str:
    width = window(train)
    parts = (train[:width], train[-width:], train)
    header = (f"first {width} steps", f"last {width} steps", "all steps")
    counted = [funnel(part) for part in parts]
    count = total(train, "proposals/count")
    fates: list[tuple[str, ...]] = [("proposals", *(f"{total(part, 'proposals/count'):.0f}" for part in parts), "")]
    for name, found in counted[-1].items():
        cells = (name, *(f"{each.get(name, 0):.0f}" for each in counted), f"{found / max(1, count):.3f}")
        fates.append(cells if name != "accepted" else tuple(f"**{cell}**" for cell in cells))
    shares = [(label_of(name), *(_share_of(name, part) for part in parts)) for name in OPERATIONS]
    below = [_mean(_BELOW, part) for part in parts]
    if below[-1] is not None:
        shares.append(("legal operations below the floor", *map(share, below)))
    tables = (table(("what became of them", *header, "share"), fates), table(("share of proposals", *header), shares))
    text = "## Proposals\n\n" + "\n\n".join(tables)
    if floor is not None:
        text += f"\n\nBelow the floor of {floor:g}, the support loss lifts the probability of a legal operation."
    return text


def _mean(key: str, part: Sequence[Record]) -> float | None:
    known = [r[key] for r in part if key in r]
    return fmean(known) if known else None


def _share_of(operation: str, part: Sequence[Record]) -> str:
    count = total(part, "proposals/count")
    found = sum(r.get(f"proposals/share_{operation}", 0.0) * r.get("proposals/count", 0.0) for r in part)
    return share(found / count if count else None)


def _alignment(edits: Sequence[ProposalRecord]) -> str:
    chosen = {
        "ADD": [p for p in edits if p.op == "add"],
        "UPDATE": [p for p in edits if p.op == "update"],
        "accepted": [p for p in edits if p.decision == "accepted"],
        "**all**": edits,
    }
    rows = []
    for name, found in chosen.items():
        values = [r_align(p) for p in found]
        above = fmean(v > 0 for v in values) if values else None
        middle = (f"{mean(values):+.4f}" if values else "–" for mean in (fmean, median))
        rows.append((name, str(len(values)), *middle, share(above)))
    what = "By how much more an edit raises the log-likelihood of recorded successes than that of failures, nats a token."
    return f"## R_align\n\n{what}\n\n" + table(("edits", "measured", "mean", "median", "share above 0"), rows)


def _life(life: Life) -> str:
    _, *told = life_words(life, code)
    skill = life.current.skill
    title = f"## One skill's life: {skill.name}"
    about = f"Skill `{skill.id}`" + (f", for tasks of the kind {skill.kind}" if skill.kind else "")
    about += ": of all skills the one that most episodes were played with."
    rows = []
    for version in life.versions:
        w = version.worth
        played = (str(w.with_n), solved(w.with_success, w.with_n), str(w.without_n), solved(w.without_success, w.without_n))
        uplift = "–" if w.uplift is None else f"{w.uplift:+.2f} {interval(w)}"
        rows.append((str(version.skill.version), *played, uplift, code(version.skill.text, cell=True)))
    header = ("version", "read", "solved", "held back", "solved", "difference [95 %]", "text")
    return "\n\n".join([title, about, "\n".join(f"* {line}" for line in told), table(header, rows, text=("text",))])


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
