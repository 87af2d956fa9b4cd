"""Does GRPO make the shipped nano model better at household tasks it has not seen? Three seeds, final weights, fixed tasks.

Held out are new homes of the families that training shows ("seen") and homes of other families ("unseen"): before and after are
the mean over both.

python learning/grpo_household_nano.py [--seeds 0 1 2] [--steps 50] [--runs runs/learn-nano]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _study import ROOT, before_and_after, curve, metrics_of, plot, recipe_of, record, trained

RECIPE = "grpo/household-nano.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="0 = as the recipe says")
    parser.add_argument("--tasks", type=int, default=150, help="held-out tasks of each split")
    parser.add_argument("--runs", type=Path, default=Path("runs/learn-nano"))
    options = parser.parse_args()

    seeds, curves = [], {}
    for seed in options.seeds:
        settings = [f"--run.seed={seed}", f"--run.name=seed-{seed}", f"--run.folder={options.runs}"]
        settings += [f"--run.steps={options.steps}"] if options.steps else []
        recipe = recipe_of(RECIPE, settings)
        run = trained(recipe)
        seen = before_and_after(run, "seen", options.tasks)
        unseen = before_and_after(run, "unseen", options.tasks)
        both = {name: (seen[name] + unseen[name]) / 2 for name in ("before", "after")}
        seeds.append({"seed": seed, **both, "seen": seen, "unseen": unseen})
        curves[f"seed {seed}"] = curve(metrics_of(run))
        print(
            f"seed {seed}: {both['before']:.3f} -> {both['after']:.3f}; seen {seen['before']:.3f} -> {seen['after']:.3f}, "
            f"unseen {unseen['before']:.3f} -> {unseen['after']:.3f}",
            flush=True,
        )
    full = len(seeds) >= 3 and not options.steps
    if full:
        plot(curves, "GRPO on generated household tasks, nano", ROOT / "docs" / "plots" / "grpo_household_nano.png")
    record("learn_grpo_household_nano", {"seeds": seeds, "recipe": RECIPE}, full=full)


if __name__ == "__main__":
    main()
