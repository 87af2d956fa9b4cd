"""Does UniSkill make nano better at household tasks it has not seen, and better than training its actions alone?

Arms: `plus` (recipes/uniskill-household-nano.toml) and `grpo` (as many rollouts, steps and the same tasks: no bank, no
proposals), and on demand the peers and ablations of recipes/uniskill/peers, as `peers/NAME`. All take the same steps; rollouts
that value proposals come on top (peers/rollout-valued).

Held out are new homes of the families that training shows ("seen") and homes of other families ("unseen"), 200 fixed tasks
each. Every final policy plays them without skills, and with those that its bank shows. `difference` is an arm's success less
that of grpo on the same tasks, both averaged over seeds, with a paired bootstrap over tasks.

    python learning/uniskill_household_nano.py                                          # 2 arms x 3 seeds
    python learning/uniskill_household_nano.py --peers frozen-writer no-r-align
    python learning/uniskill_household_nano.py --seeds 0 --steps 2 --tasks 4 --runs runs/try

Runs lie in --runs: a finished one is not trained again, one that was killed goes on.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import median

from _study import (
    ROOT,
    Metrics,
    Wins,
    curves,
    differences,
    held_out,
    mean_shares,
    metrics_of,
    plot,
    recipe_of,
    record,
    shares,
    step_seconds,
    trained,
)

ARMS = {"plus": "uniskill-household-nano.toml", "grpo": "uniskill/peers/grpo.toml"}
PEERS = {
    path.stem: f"uniskill/peers/{path.name}"
    for path in sorted((ROOT / "recipes" / "uniskill" / "peers").glob("*.toml"))
    if path.stem != "grpo"
}
TASKS = 200
RUNS = Path("runs/learn-uniskill-nano")


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
    metrics: dict[str, list[Metrics]] = defaultdict(list)
    for seed in options.seeds:
        for arm, name in arms.items():
            recipe = recipe_of(name, settings(arm, seed, options))
            run = trained(recipe)
            metrics[arm].append(metrics_of(run))
            won[arm].append(held_out(run, recipe, options.tasks))
            print(f"{arm}, seed {seed}: {shares(won[arm][-1])}", flush=True)
    full = set(options.seeds) >= {0, 1, 2} and not options.steps and options.tasks >= TASKS
    folder = ROOT / "docs" / "plots" if full else options.runs
    plot(curves(metrics), "UniSkill on generated household tasks, nano", folder / "uniskill_household_nano.png")
    found = {
        arm: {
            "mean": mean_shares(won[arm]),
            "difference": {} if arm == "grpo" else differences(won[arm], won["grpo"]),
            "seeds": [{"seed": s, **shares(w)} for s, w in zip(options.seeds, won[arm], strict=True)],
            "step_s": round(median(s for m in metrics[arm] for s in step_seconds(m)), 2),
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


if __name__ == "__main__":
    main()
