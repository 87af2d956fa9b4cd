"""How much of a UniSkill step goes into a bank of 10,000 skills?

The bank is made as a long run makes it: 5 skills and 64 uses a step. Then the bank work of a step is repeated with it and
timed: look up the skills of 8 tasks (their environments are asked what the words are; the index follows the last commit),
record 64 uses and 32 proposals, review the skills by their utility, commit 5 edits, take the next view. All of it is done by
`gongfu.methods.uniskill.library.Library`, as a step does it.

`share_at_10k` = median of these times / median time of the rest of a real step. The rest is what steps of
recipes/uniskill-household-nano.toml take in the same run without their own, small bank: time/step_s - time/retrieve_s -
time/commit_s. `share_with_gate` adds to the bank's time the gate's comparison of 32 proposals with every text of the bank.

    python benchmarks/bank_overhead.py                              # some minutes
    python benchmarks/bank_overhead.py --skills 200 --repeats 3 --steps 1
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import ROOT, record

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.core.records import Call, Task, Trajectory
from gongfu.envs.household.homes import habit_sentence, places_for
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.methods.uniskill.gate import choose_edits, find_duplicates
from gongfu.methods.uniskill.library import Library
from gongfu.methods.uniskill.method import UniSkill
from gongfu.methods.uniskill.records import Alignment, Decision, Judged, Pair, Parsed, Proposal, Rewards, Verdict
from gongfu.skills.bank import SkillBank
from gongfu.skills.edits import Add
from gongfu.skills.evidence import Use
from gongfu.skills.skill import Skill

RECIPE = ROOT / "recipes" / "uniskill-household-nano.toml"
FULL = {"skills": 10_000, "repeats": 20, "steps": 5}
PROPOSALS, ADDS, UPDATES = 32, 3, 2


def habits() -> Iterator[str]:
    """Different skill texts of the kind that the household asks for, without end."""
    seen: set[str] = set()
    for seed in itertools.count():
        for family in HouseholdSuite(families=40, seed=seed).families("train"):
            for thing in sorted(family.habits):
                for place in places_for(thing, family.furniture):
                    text = habit_sentence(family, thing, place)
                    if text not in seen:
                        seen.add(text)
                        yield text


def fill(bank: SkillBank, texts: Iterator[str], count: int, uses: int, rng: random.Random) -> int:
    """Add `count` skills, 5 a step, each step with evidence on some of them; the number of steps."""
    there: list[Skill] = []
    for step in itertools.count():
        if len(there) == count:
            return step
        fresh = [Skill(text) for text in itertools.islice(texts, min(5, count - len(there)))]
        there += fresh
        view = bank.commit([Add(skill) for skill in fresh], parent=bank.head(), step=step)
        shown = [rng.choice(there) for _ in range(uses)]
        bank.record_uses(
            Use(
                trajectory=f"{step:06d}:{n}",
                step=step,
                skill=skill.id,
                version=skill.digest,
                commit=view.id,
                mode="without" if n % 8 == 7 else "with",
                kind="any",
                outcome=rng.choice(("success", "failure")),
                score=0.0,
                turns=9,
            )
            for n, skill in enumerate(shown)
        )


def episodes(tasks: Sequence[Task], group_size: int, step: int, rng: random.Random) -> list[Trajectory]:
    """Played episodes, as far as a bank looks at them; the last one of every group was played without its skill."""
    return [
        Trajectory(
            id=f"{step:06d}:{task.id}:{n}",
            task=task,
            group=f"{step:06d}:{task.id}",
            skills=() if n == group_size - 1 else ("shown",),
            turns=(),
            final_observation="",
            outcome=rng.choice(("success", "failure")),
            score=0.0,
            stop="terminated",
        )
        for task in tasks
        for n in range(group_size)
    ]


def judged(played: Sequence[Trajectory], chosen: dict[str, Skill], texts: Iterator[str]) -> list[Judged]:
    """Proposals with a value each: every second one adds a skill, the others update the shown one."""
    call = Call("proposer", "actor", 0, (1,), (2,), (-1.0,), "", "stop")
    found = []
    for n, source in enumerate(played[:: len(played) // PROPOSALS][:PROPOSALS]):
        skill = chosen[source.task.id]
        pair = Pair(source, source, (source,) * 3, (source,) * 3)
        parsed = Parsed("ADD" if n % 2 else "UPDATE", next(texts))
        proposal = Proposal(f"{source.id}/{n}", source.task, pair, skill.id, skill.text, call, parsed)
        value = Alignment((0.02, 0.03, 0.04), (0.01, 0.0, -0.01))
        found.append(Judged(proposal, Verdict(True, True), value, Rewards(0.05, 0.05, 0.03)))
    return found


def decide(proposals: Sequence[Judged]) -> list[tuple[Judged, Decision]]:
    """Accept the first ADDs, and the first UPDATEs of different skills."""
    adds = [j.proposal.id for j in proposals if j.proposal.parsed.op == "ADD"][:ADDS]
    updates = {j.proposal.target: j.proposal.id for j in reversed(proposals) if j.proposal.parsed.op == "UPDATE"}
    accepted = {*adds, *list(updates.values())[:UPDATES]}
    return [(j, Decision(yes := j.proposal.id in accepted, "accepted" if yes else "r_align")) for j in proposals]


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    done = work()
    return done, time.perf_counter() - started


def bank_work(method: UniSkill, options: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Seconds of each part, step by step, with a large bank in place of the method's."""
    rng, texts = random.Random(options.seed), habits()
    group_size = method.settings.group_size
    with SkillBank.open(folder / "large.sqlite") as bank:
        steps = fill(bank, texts, options.skills, method.settings.tasks * group_size, rng)
        own = method.library
        library = Library(bank, own.retriever, own.rules, own.ask)
        library.write([], steps)  # what the evidence asks for by now
        seconds: dict[str, list[float]] = {"retrieve": [], "record": [], "write": [], "gate": []}
        for step in range(steps + 1, steps + 2 + options.repeats):
            tasks = method.tasks.draw(step, method.settings.tasks)
            chosen, retrieve = timed(lambda tasks=tasks: library.choose(tasks))
            played = episodes(tasks, group_size, step, rng)
            proposals = judged(played, chosen, texts)
            _, compare = timed(lambda proposals=proposals: compare_with_bank(method, library, proposals))
            _, note = timed(lambda played=played, chosen=chosen, step=step: library.record(played, chosen, step))
            report, write = timed(lambda proposals=proposals, step=step: library.write(decide(proposals), step))
            if (report["bank/added"], report["bank/updated"]) != (ADDS, UPDATES):
                raise SystemExit(f"step {step} committed {report}, not {ADDS} new skills and {UPDATES} updates")
            for name, value in zip(seconds, (retrieve, note, write, compare), strict=True):
                seconds[name].append(value)
    return {name: values[1:] for name, values in seconds.items()}  # the first one builds the index


def compare_with_bank(method: UniSkill, library: Library, proposals: Sequence[Judged]) -> None:
    """The gate's two looks at the texts of the bank in a step."""
    find_duplicates([j.proposal for j in proposals], library.texts(), method.gate)
    choose_edits(proposals, method.gate, bank=library.texts())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skills", type=int, default=FULL["skills"])
    parser.add_argument("--repeats", type=int, default=FULL["repeats"], help="steps with the large bank")
    parser.add_argument("--steps", type=int, default=FULL["steps"], help="real steps, after one that is not counted")
    parser.add_argument("--model-folder", default="nano", help="a model folder in place of the shipped nano")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    from gongfu.run import build

    # without a floor every task is shown a skill, and its use recorded
    overrides = [f"--engine.model={options.model_folder}", "--method.retrieval.floor=0"]
    recipe = load(Recipe, files=[RECIPE], overrides=overrides).config
    suite = build.build_suite(recipe.suite)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = build.build_engine(recipe, folder)
        engine.sync()
        collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
        method: Any = build.build_method(recipe, engine, collector, suite, folder)
        metrics = [method.step(k).metrics for k in range(options.steps + 1)][1:]
        seconds = bank_work(method, options, folder)
        method.library.bank.close()
        engine.close()
    own = [m["time/retrieve_s"] + m["time/commit_s"] for m in metrics]
    rest = median(m["time/step_s"] - bank for m, bank in zip(metrics, own, strict=True))
    gate = seconds.pop("gate")
    bank_s = median(map(sum, zip(*seconds.values(), strict=True)))
    result = {
        "share_at_10k" if options.skills == FULL["skills"] else "share": round(bank_s / rest, 6),
        "share_with_gate": round((bank_s + median(gate)) / rest, 6),
        "bank_s": round(bank_s, 4),
        **{f"{name}_s": round(median(values), 4) for name, values in seconds.items()},
        "gate_s": round(median(gate), 4),
        "rest_of_step_s": round(rest, 3),
        "small_bank_s": round(median(own), 4),
        "skills": options.skills,
        "repeats": options.repeats,
        "steps": options.steps,
        "seed": options.seed,
    }
    full = all(getattr(options, name) >= value for name, value in FULL.items()) and options.model_folder == "nano"
    record("bank_overhead", result, full=full)


if __name__ == "__main__":
    main()
