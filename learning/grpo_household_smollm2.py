"""Does GRPO make a cold-started SmolLM2-135M better at household tasks it has not seen? Budget: the recipe's, one seed.

gongfu models fetch smollm2
python learning/grpo_household_smollm2.py [--seeds 0] [--runs runs/learn-smollm2]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from _study import ROOT, before_and_after, metrics_of, plot, recipe_of, record, sampled, trained

RECIPE = "grpo/household-smollm2.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=160, help="held-out tasks")
    parser.add_argument("--runs", type=Path, default=Path("runs/learn-smollm2"))
    options = parser.parse_args()
    from gongfu.run.sft import sft_run

    seeds, curves = [], {}
    for seed in options.seeds:
        started = time.perf_counter()
        # The study evaluates by itself, on more tasks.
        common = [f"--run.seed={seed}", f"--run.folder={options.runs}", "--eval.tasks=8"]
        cold = options.runs / f"cold-{seed}"
        if not cold.exists():
            sft_run(recipe_of(RECIPE, [*common, f"--run.name={cold.name}"]))
        cold_s = time.perf_counter() - started
        run = trained(recipe_of(RECIPE, [*common, f"--run.name=seed-{seed}", f"--run.start-from={cold}"]))
        budget = {"cold_start_s": round(cold_s), "training_s": round(time.perf_counter() - started - cold_s)}
        result = before_and_after(run, "seen", options.tasks)
        seeds.append({"seed": seed, **result, **budget})
        curves[f"seed {seed}"] = sampled(metrics_of(run))
        print(f"seed {seed}: {result['before']:.3f} -> {result['after']:.3f}, difference {result['difference']}")
    title = "GRPO on generated household tasks, SmolLM2-135M"
    plot(curves, title, ROOT / "docs" / "plots" / "grpo_household_smollm2.png", ylabel="success of the training rollouts")
    record("learn_grpo_household_smollm2", {"seeds": seeds, "recipe": RECIPE}, full=True)


if __name__ == "__main__":
    main()
