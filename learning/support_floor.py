"""Does the support floor keep all operations of the proposer alive? Training with and without it, the same seeds.

A run has collapsed at the first step from which one legal operation has a share below 2 % of the proposals for 10 steps. ADD
and KEEP are always legal; UPDATE is counted in steps in which at least half of the tasks were shown a skill. Steps without any
proposal say nothing. The numbers come from metrics.jsonl.

    python learning/support_floor.py                                # 2 arms x 3 seeds
    python learning/support_floor.py --seeds 0 --steps 2 --runs runs/try

Runs lie in --runs, with those of uniskill_household_nano.py: a finished one is not trained again, one that was killed goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from _study import metrics_of, recipe_of, record, trained
from uniskill_household_nano import ARMS as STUDY
from uniskill_household_nano import PEERS, RUNS, settings

ARMS = {"floor": "plus", "no_floor": "peers/no-support-floor"}
RECIPES = {"plus": STUDY["plus"], "peers/no-support-floor": PEERS["no-support-floor"]}
OPERATIONS = ("add", "update", "keep")
LEAST, STEPS = 0.02, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="0 = as the recipe says")
    parser.add_argument("--runs", type=Path, default=RUNS)
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in options.seeds:
        for arm, name in ARMS.items():
            recipe = recipe_of(RECIPES[name], settings(name, seed, options))
            steps = [m for m in metrics_of(trained(recipe)) if m["phase"] == "train"]
            withheld = recipe.method.lifecycle.withheld / recipe.method.group_size
            result = {"seed": seed, **collapse(steps, shown=0.5 * (1 - withheld)), "last_shares": last_shares(steps)}
            found[arm].append(result)
            print(f"{arm}, seed {seed}: {result}", flush=True)
    steps_of = {arm: [result["step"] for result in results] for arm, results in found.items()}
    full = set(options.seeds) >= {0, 1, 2} and not options.steps
    record("support_floor", {"collapse": steps_of, "seeds": options.seeds, "runs": found, "recipes": RECIPES}, full=full)


def collapse(steps: Sequence[Mapping[str, Any]], *, shown: float) -> dict[str, Any]:
    """The step at which the first operation vanished, and which one; None for both where none did.

    `shown`: UPDATE is legal in steps in which at least this share of the episodes was shown a skill.
    """
    vanished = {}
    for op in OPERATIONS:
        rare: list[int] = []
        for m in steps:
            if not m["proposals/count"] or (op == "update" and m["rollout/skills_shown"] < shown):
                continue
            rare = [*rare, m["step"]] if m[f"proposals/share_{op}"] < LEAST else []
            if len(rare) == STEPS:
                vanished[op] = rare[0]
                break
    first = min(vanished, key=lambda op: vanished[op], default=None)
    return {"step": vanished.get(first), "operation": first}


def last_shares(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean share of each operation in the last steps that had proposals."""
    last = [m for m in steps if m["proposals/count"]][-STEPS:]
    return {op: round(fmean(m[f"proposals/share_{op}"] for m in last), 4) for op in OPERATIONS} if last else {}


if __name__ == "__main__":
    main()
