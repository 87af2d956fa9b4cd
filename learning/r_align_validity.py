"""Does R_align tell which skill proposals help? Rank correlation with the gain that rollouts measure, for one fixed actor.

Groups are played, the policy proposes, and R_align scores every edit. Then each distinct text is tried: so many episodes on its
task with the text, and as many with what was shown before. Nothing is trained and nothing enters a bank.

`rho` is Spearman's correlation of R_align and gain in success, one point a text (R_align averaged where several proposals say
the same); `ci` its 95 % percentile bootstrap interval, drawing whole groups since the proposals of one share their references.
`harmful_share`: how many of the texts that the recipe's gate lets into the bank have a negative gain; `harmful_share_positive`:
how many of all with a positive R_align. Those behind the gate are few, so that rounds go on for such texts alone (--accepted),
which count for `harmful_share` and nothing else. Gains are noisy: a text without any effect counts as harmful almost half of
the time (`gain_sd` is how much gains differ, `gain_noise` how much they would if no text had any effect). `gates`: what other
gates would have let in.

    python learning/r_align_validity.py --run runs/learn-uniskill-nano/plus-0@30      # policy and bank of a checkpoint
    python learning/r_align_validity.py --out runs/r-align-validity-start             # nano as it ships, an empty bank
    python learning/r_align_validity.py --group-size 32 --out runs/r-align-validity-32      # that with more references
    python learning/r_align_validity.py --proposals 2 --accepted 0 --rollouts 2 --out runs/try

The paper measures during training, and so does the result `r_align_validity`; that of nano as it ships ends in `_start`. A
result needs at least 60 texts with 32 + 32 episodes. What was measured lies in the folder --out: a run that was killed goes
on from there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from _gates import gates
from _study import ROOT, record
from numpy.typing import ArrayLike, NDArray

from gongfu.config.load import load, to_toml
from gongfu.config.schema import Recipe
from gongfu.engine.models import resolve_model
from gongfu.methods.uniskill.gate import choose_edits, find_duplicates
from gongfu.methods.uniskill.method import UniSkill
from gongfu.methods.uniskill.records import Decision, Group, Judged, Rewards
from gongfu.rollout.collector import lost
from gongfu.run.checkpoint import CheckpointStore
from gongfu.run.stats import wilson
from gongfu.skills.dialects import back_up

RECIPE = ROOT / "recipes" / "uniskill-household-nano.toml"
TEXTS, ROLLOUTS = 60, 32
"""What a result needs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proposals", type=int, default=64, help="distinct texts to measure; the last round is finished")
    parser.add_argument("--accepted", type=int, default=40, help="texts to measure that the gate lets in, at least")
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="episodes with a text, and as many without")
    parser.add_argument("--rounds", type=int, default=300, help="most rounds of groups that are played for them")
    parser.add_argument("--model-folder", default="", help="a model folder in place of the shipped nano")
    parser.add_argument("--run", default="", help="a UniSkill run, run@step or run@best: its policy and its bank")
    parser.add_argument(
        "--group-size", type=int, default=0, help="rollouts of a task, all of them references; 0 = the recipe's"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/r-align-validity"))
    options = parser.parse_args()
    rows = measure(options)
    if len(rows) < 2:
        raise SystemExit(f"only {len(rows)} texts were proposed in {options.rounds} rounds: nothing can be correlated")
    full = sum(row["sampled"] for row in rows) >= TEXTS and options.rollouts >= ROLLOUTS and not options.model_folder
    actor = Path(options.run).name or options.model_folder or "nano"
    name = "r_align_validity" + (f"_groups_of_{options.group_size}" if options.group_size else "")
    name += "" if options.run else "_start"
    record(name, {**analyse(rows, options.seed), "actor": actor, "seed": options.seed}, full=full)


# ---------------------------------------------------------------------- measuring


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a text, from the folder as far as they are there."""
    recipe, checkpoint = recipe_for(options), checkpoint_of(options.run)
    folders = [resolve_model(recipe.engine.model), *([checkpoint.weights] if checkpoint else [])]
    weights = [sha256(file.read_bytes()).hexdigest() for folder in folders for file in sorted(folder.glob("*.safetensors"))]
    lines = Lines(options.out, about={"recipe": to_toml(recipe), "weights": weights, "rollouts": options.rollouts})
    with tempfile.TemporaryDirectory() as folder:
        method = frozen(recipe, checkpoint, Path(folder))
        for k in range(options.rounds):
            done = [row for row in lines.rows if row["round"] in lines.complete]
            enough = sum(row["sampled"] for row in done) >= options.proposals
            if enough and sum(row["accepted"] for row in done) >= options.accepted:
                break
            if k not in lines.complete:
                there = {(r["round"], r["number"]) for r in lines.rows}
                for row in round_of(method, k, options.rollouts, there, accepted_only=enough):
                    lines.add({**row, "sampled": not enough})
                lines.add({"round": k, "complete": True})
                found = sum(row["accepted"] for row in lines.rows)
                print(f"round {k}: {len(lines.rows)} texts, {found} pass the gate", file=sys.stderr, flush=True)
        method.library.bank.close()
        method.engine.close()
    return lines.rows


def recipe_for(options: argparse.Namespace) -> Recipe:
    """The run's own recipe, or that of nano."""
    file = Path(options.run.partition("@")[0]) / "config.toml" if options.run else RECIPE
    overrides = [f"--run.seed={options.seed}"]
    overrides += [f"--engine.model={options.model_folder}"] if options.model_folder else []
    if options.group_size:
        overrides += [f"--method.group-size={options.group_size}", "--method.references=0"]
        overrides.append("--method.shared-references=false")
    recipe = load(Recipe, files=[file], overrides=overrides).config
    if recipe.method.name != "uniskill" or recipe.method.feedback != "align" or recipe.method.bank:
        raise SystemExit(f"{file}: give a run of UniSkill that R_align values and whose bank lies in its own folder")
    return recipe


@dataclass(frozen=True)
class Checkpoint:
    """A policy and its bank at one step of a run."""

    weights: Path
    bank: Path
    commit: str


def checkpoint_of(run: str) -> Checkpoint | None:
    if not run:
        return None
    name, _, which = run.partition("@")
    folder, state = CheckpointStore(Path(name) / "checkpoints").load(int(which) if which.isdigit() else which or "latest")
    return Checkpoint(folder.resolve() / state["engine"], Path(name) / "bank.sqlite", state["method"]["bank"])


def frozen(recipe: Recipe, checkpoint: Checkpoint | None, folder: Path) -> UniSkill:
    """The method of a recipe, with the weights and a copy of the bank of a checkpoint if there is one."""
    from gongfu.run import build

    suite = build.build_suite(recipe.suite)
    engine = build.build_engine(recipe, folder)
    if checkpoint:
        engine.load(str(checkpoint.weights), weights_only=True)
        back_up(checkpoint.bank, folder / "bank.sqlite")
    engine.sync()
    collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
    method: Any = build.build_method(recipe, engine, collector, suite, folder)
    if checkpoint:
        method.library.restore(checkpoint.commit)
    return method


def round_of(
    method: UniSkill, k: int, rollouts: int, there: set[tuple[int, int]], *, accepted_only: bool = False
) -> Iterator[dict[str, Any]]:
    """The texts that are proposed in round k, but those measured already. The same round gives the same texts."""
    texts: dict[tuple[str, str, str], list[tuple[Judged, Decision]]] = defaultdict(list)
    for judged, decision in propose(method, k):
        if judged.proposal.is_edit and judged.alignment is not None:
            p = judged.proposal
            texts[p.task.id, p.target_text, p.parsed.text].append((judged, decision))
    for number, found in enumerate(texts.values()):
        accepted = any(decision.accepted for _, decision in found)
        if (k, number) in there or (accepted_only and not accepted):
            continue
        proposal = found[0][0].proposal
        ((new, old),) = method.trials.compare([proposal], rollouts, 1000 * k + number)
        values = [judged.alignment for judged, _ in found if judged.alignment is not None]
        yield {
            "round": k,
            "number": number,
            "task": proposal.task.id,
            "ops": sorted({str(judged.proposal.parsed.op) for judged, _ in found}),
            "text": proposal.parsed.text,
            "shown": proposal.target_text,
            "proposals": len(found),
            "r_align": fmean(v.r_align for v in values),
            "delta_plus": fmean(v.delta_plus for v in values),
            "delta_minus": fmean(v.delta_minus for v in values),
            "sides": [[list(v.plus), list(v.minus)] for v in values],
            "accepted": accepted,
            "reasons": sorted({decision.reason for _, decision in found}),
            "with": fmean(new),
            "without": fmean(old),
            "episodes": [len(new), len(old)],
        }


def propose(method: UniSkill, k: int) -> list[tuple[Judged, Decision]]:
    """Play, propose and decide as a step does, but show the skill to every rollout and score every well-formed edit."""
    tasks = method.tasks.draw(k, method.settings.tasks)
    chosen = method.library.choose(tasks)
    played = method.collector.collect(
        method.actor,
        tasks,
        group_size=method.settings.group_size,
        step=k,
        skills=method.shown(tasks),
        concurrency=method.concurrency,
    )
    groups = []
    for _, members in itertools.groupby((t for t in played if not lost(t) and t.turns), key=lambda t: t.group):
        group = list(members)
        skill = chosen.get(group[0].task.id)
        groups.append(Group(group[0].task, group, skill.id if skill else "", skill.text if skill else ""))
    proposals, _ = method.proposer.propose(groups, k)
    edits = [p for p in proposals if p.is_edit]
    values = method.valuer.value(edits, k)
    verdicts = method.critic.judge(edits)
    repeats = find_duplicates(edits, method.library.texts(), method.gate)
    unpaid = Rewards(0.0)
    judged = [Judged(p, v, value, unpaid, repeats.get(p.id, "")) for p, v, value in zip(edits, verdicts, values, strict=True)]
    return choose_edits(judged, method.gate, bank=method.library.texts())


class Lines:
    """What was measured: one JSON object a line, appended as it comes. Refuses a folder that was begun with other settings."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, settings = folder / "measured.jsonl", folder / "settings.json"
        if not settings.exists():
            settings.write_text(json.dumps(about), encoding="utf-8")
        elif json.loads(settings.read_text(encoding="utf-8")) != about:
            raise SystemExit(f"{folder} holds measurements with other settings: choose another folder with --out")
        *whole, torn = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else [""]
        if torn:
            self.path.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        self.rows: list[dict[str, Any]] = []
        self.complete: set[int] = set()
        for line in whole:
            self._keep(json.loads(line))

    def add(self, row: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._keep(row)

    def _keep(self, row: dict[str, Any]) -> None:
        if "complete" in row:
            self.complete.add(row["round"])
        else:
            self.rows.append(row)


# ---------------------------------------------------------------------- analysing


def analyse(rows: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    passed = np.array([row["with"] - row["without"] for row in rows if row["accepted"]])
    rows = [row for row in rows if row["sampled"]]
    scores = np.array([row["r_align"] for row in rows])
    gains = np.array([row["with"] - row["without"] for row in rows])
    groups = [(row["round"], row["task"]) for row in rows]
    low, high = interval(scores, gains, groups, seed)
    result: dict[str, Any] = {"rho": rounded(spearman(scores, gains)), "ci": [rounded(low), rounded(high)], "n": len(rows)}
    for name, some in (("harmful_share", passed), ("harmful_share_positive", gains[scores > 0])):
        count, harmful = len(some), int((some < 0).sum())
        bounds = [rounded(bound) for bound in wilson(harmful, count)]
        result |= {name: rounded(harmful / count) if count else None, f"{name}_ci": bounds, f"{name}_n": count}
    for name, some in (("positive", gains[scores > 0]), ("negative", gains[scores < 0]), ("accepted", passed)):
        result[f"gain_{name}"] = rounded(float(some.mean())) if len(some) else None
    noise = [sum(p * (1 - p) / n for p, n in zip((r["with"], r["without"]), r["episodes"], strict=True)) for r in rows]
    spread = {"gain_sd": rounded(float(gains.std())), "gain_noise": rounded(float(np.sqrt(np.mean(noise))))}
    result |= {**spread, "harmful_share_of_all": rounded(float((gains < 0).mean())), "groups": len(set(groups))}
    return {**result, "gates": gates(rows)}


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Correlation of the ranks, equal values sharing their mean rank; NaN when one side does not vary.

    >>> round(spearman([1, 2, 3, 4], [1, 2, 2, 9]), 4)
    0.9487
    """
    a, b = ranks(x), ranks(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def interval(
    x: NDArray[np.float64], y: NDArray[np.float64], groups: Sequence[Any], seed: int, resamples: int = 5000
) -> tuple[float, float]:
    """95 % of the correlations that whole groups, drawn with replacement, give."""
    places: dict[Any, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        places[group].append(i)
    members = list(places.values())
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        drawn = [i for g in generator.integers(len(members), size=len(members)) for i in members[g]]
        found.append(spearman(x[drawn], y[drawn]))
    if np.isnan(found).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def rounded(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None


if __name__ == "__main__":
    main()
