"""Does UniSkill make nano better at household tasks it has not seen, and better than training its actions alone?

Arms: `plus` (recipes/uniskill-household-nano.toml) and `grpo` (as many rollouts, steps and the same tasks: no bank, no
proposals), and on demand the peers and ablations of recipes/uniskill/peers, as `peers/NAME`. All take the same steps; rollouts
that value proposals come on top (peers/rollout-valued).

Held out are new homes of the families that training shows ("seen") and homes of other families ("unseen"), 200 fixed tasks
each. Every final policy plays them without skills, and with those that its bank shows. `difference` is an arm's success less
that of grpo on the same tasks, both averaged over seeds, with a paired bootstrap over tasks.

    python learning/uniskill_household_nano.py                                          # 2 arms x 3 seeds
    python learning/uniskill_household_nano.py --peers frozen-writer no-r-align
    python learning/uniskill_household_nano.py --seeds 0 --steps 2 --tasks 4 --runs /tmp/try

Runs lie in --runs: a finished one is not trained again, one that was killed goes on.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from _study import ROOT, plot, recipe_of, record, trained

from gongfu.config.schema import Recipe
from gongfu.run.evaluate import evaluate_runs
from gongfu.run.folder import read_metrics, write_atomic
from gongfu.run.stats import paired_bootstrap, wilson

ARMS = {"plus": "uniskill-household-nano.toml", "grpo": "uniskill/peers/grpo.toml"}
PEERS = {
    path.stem: f"uniskill/peers/{path.name}"
    for path in sorted((ROOT / "recipes" / "uniskill" / "peers").glob("*.toml"))
    if path.stem != "grpo"
}
SPLITS = ("seen", "unseen")
TASKS = 200
RUNS = Path("runs/learn-uniskill-nano")

Wins = Mapping[str, Mapping[str, list[bool]]]
"""Split -> "start", "with" or "without" -> success on each task. "with" is there when the run has a bank."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS))
    parser.add_argument("--steps", type=int, default=0, help="0 = as the recipes say")
    parser.add_argument("--tasks", type=int, default=TASKS, help="held-out tasks of each split")
    parser.add_argument("--runs", type=Path, default=RUNS)
    options = parser.parse_args()
    arms = {**ARMS, **{f"peers/{name}": PEERS[name] for name in options.peers}}
    won: dict[str, list[Wins]] = defaultdict(list)
    runs: dict[str, list[Path]] = defaultdict(list)
    for seed in options.seeds:
        for arm, name in arms.items():
            recipe = recipe_of(name, settings(arm, seed, options))
            run = trained(recipe)
            runs[arm].append(run)
            won[arm].append(held_out(run, recipe, options.tasks))
            print(f"{arm}, seed {seed}: {shares(won[arm][-1])}", flush=True)
    full = set(options.seeds) >= {0, 1, 2} and not options.steps and options.tasks >= TASKS
    folder = ROOT / "docs" / "plots" if full else options.runs
    plot(curves(runs), "UniSkill on generated household tasks, nano", folder / "uniskill_household_nano.png")
    found = {
        arm: {
            "mean": mean_shares(won[arm]),
            "difference": {} if arm == "grpo" else differences(won[arm], won["grpo"]),
            "seeds": [{"seed": s, **shares(w)} for s, w in zip(options.seeds, won[arm], strict=True)],
            "step_s": round(median(s for run in runs[arm] for s in step_seconds(run)), 2),
            "recipe": name,
        }
        for arm, name in arms.items()
    }
    record("learn_uniskill_household_nano", {"arms": found, "tasks": options.tasks, "seeds": options.seeds}, full=full)


def settings(arm: str, seed: int, options: argparse.Namespace) -> list[str]:
    """All arms take the steps of `plus`."""
    steps = options.steps or recipe_of(ARMS["plus"], []).run.steps
    name = f"--run.name={arm.replace('/', '-')}-{seed}"
    return [f"--run.seed={seed}", name, f"--run.folder={options.runs}", f"--run.steps={steps}"]


def held_out(run: Path, recipe: Recipe, tasks: int) -> Wins:
    """Success of the starting and of the last policy, task by task; kept in the run's folder."""
    kept = run / f"held-out-{tasks}.json"
    if not kept.exists():
        names = ["start", "with", "without"] if recipe.method.name == "uniskill" else ["start", "without"]
        found = {}
        for split in SPLITS:
            results = evaluate_runs([f"{run}@start", str(run)], split=split, tasks=tasks, rollouts=1, temperature=None)
            found[split] = {n: [t.success for t in r.trajectories] for n, r in zip(names, results, strict=True)}
        write_atomic(kept, json.dumps(found))
    return json.loads(kept.read_bytes())


def shares(won: Wins) -> dict[str, dict[str, dict[str, float]]]:
    """Split -> policy -> success and its 95 % Wilson interval."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for split, policies in won.items():
        for name, successes in policies.items():
            low, high = wilson(sum(successes), len(successes))
            row = {"success": fmean(successes), "low": round(low, 4), "high": round(high, 4)}
            found.setdefault(split, {})[name] = row
    return found


def mean_shares(won: Sequence[Wins]) -> dict[str, dict[str, float]]:
    """Split -> policy -> success, the mean over seeds."""
    return {
        split: {name: round(fmean(fmean(w[split][name]) for w in won), 4) for name in policies}
        for split, policies in won[0].items()
    }


def differences(won: Sequence[Wins], base: Sequence[Wins]) -> dict[str, dict[str, Any]]:
    """Split -> "with" or "without" -> success less that of the other arm, with a 95 % interval."""
    found: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        for name in ("with", "without"):
            d = paired_bootstrap(by_task(base, split, "without"), by_task(won, split, name), seed=0)
            row = {"mean": round(d.mean, 4), "low": round(d.low, 4), "high": round(d.high, 4)}
            found.setdefault(split, {})[name] = row
    return found


def by_task(won: Sequence[Wins], split: str, name: str) -> list[float]:
    """Mean success on each task over the seeds."""
    return [fmean(successes) for successes in zip(*(w[split][name] for w in won), strict=True)]


def curves(runs: Mapping[str, Sequence[Path]]) -> dict[str, list[tuple[int, float]]]:
    """Held-out success during training, the mean over seeds; of arms with a bank also without its skills."""
    found = {}
    for arm, paths in runs.items():
        for label, key in ((arm, "success"), (f"{arm}, no skills shown", "success_without_skills")):
            points: dict[int, list[float]] = defaultdict(list)
            for m in (m for path in paths for m in read_metrics(path / "metrics.jsonl") if m["phase"] == "eval" and key in m):
                points[m["step"]].append(m[key])
            if points:
                found[label] = [(step, fmean(values)) for step, values in sorted(points.items())]
    return found


def step_seconds(run: Path) -> list[float]:
    return [m["time/step_s"] for m in read_metrics(run / "metrics.jsonl") if m["phase"] == "train"]


if __name__ == "__main__":
    main()
