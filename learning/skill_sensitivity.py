"""Do skills matter to a fixed actor? Success with the right skill, with none and with a wrong one, on held-out homes.

Everything that UniSkill learns rests on this: an actor that does not read its skill cannot be moved by one. The horizon is
tight (10 turns), so that the few turns which a hint saves or costs decide, and sampling is cool (0.6), so that they are not
lost in noise.

python learning/skill_sensitivity.py [--tasks 200] [--models nano smollm2] [--cold runs/uniskill-smollm2-cold]

smollm2 acts from a cold start that has seen skills: gongfu sft @recipes/uniskill-household-smollm2.toml --run.name NAME
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from _study import recipe_of, record

SETTINGS = ["--suite.max-steps=10", "--eval.temperature=0.6"]
SHOWN = {"right": "good", "none": "", "wrong": "wrong"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=200, help="held-out tasks")
    parser.add_argument("--models", nargs="+", default=["nano", "smollm2"], choices=["nano", "smollm2"])
    parser.add_argument("--model-folder", default="", help="a model folder in place of the shipped nano")
    parser.add_argument("--cold", type=Path, default=Path("runs/uniskill-smollm2-cold"), help="run of smollm2's cold start")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = {model: sensitivity(model, options) for model in options.models}
    values: dict[str, object] = {arm: {model: f[arm]["success"] for model, f in found.items()} for arm in SHOWN}
    full = options.tasks >= 200 and set(options.models) == {"nano", "smollm2"}
    record("skill_sensitivity", {**values, "seed": options.seed, "details": found}, full=full)


def sensitivity(model: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Arm -> success, its interval, turns, and the paired difference to no skill."""
    from gongfu.core.seeds import rng_for
    from gongfu.run.build import build_collector, build_engine, build_runner, build_suite
    from gongfu.run.evaluate import evaluate, fixed_tasks, weights_of
    from gongfu.run.stats import paired_bootstrap

    overrides = [*SETTINGS, f"--run.seed={options.seed}", f"--suite.seen={max(options.tasks, 300)}"]
    if options.model_folder:
        overrides.append(f"--engine.model={options.model_folder}")
    recipe = recipe_of(f"uniskill-household-{model}.toml", overrides)
    suite = build_suite(recipe.suite)
    engine, runner = build_engine(recipe, Path()), build_runner(recipe, suite)
    if model == "smollm2":
        engine.load(str(weights_of(str(options.cold))), weights_only=True)
    engine.sync()
    collector = build_collector(recipe, suite, engine.tokenizer, runner)
    tasks = fixed_tasks(suite, "seen", options.tasks)
    results, won = {}, {}
    for arm, quality in SHOWN.items():
        rngs = [rng_for(options.seed, purpose="sensitivity", task=task.id) for task in tasks]
        texts = [suite.advise(t, quality, rng).text if quality else "" for t, rng in zip(tasks, rngs, strict=True)]
        result = evaluate(
            recipe,
            engine,
            collector,
            tasks,
            label=arm,
            split="seen",
            skills=[{"shown": text} if text else {} for text in texts],
        )
        row = result.record()
        won[arm] = [t.success for t in result.trajectories]
        results[arm] = {name: row[name] for name in ("success", "low", "high", "turns", "n")}
        print(f"{model} {arm}: {results[arm]}", file=sys.stderr, flush=True)
    for arm in ("right", "wrong"):
        difference = paired_bootstrap(won["none"], won[arm], seed=options.seed)
        results[arm] |= {"difference": difference.mean, "difference_low": difference.low, "difference_high": difference.high}
    return results


if __name__ == "__main__":
    main()
