"""What Role-Agent's two roles add to a step: predicting what comes next, and reading failures.

`share` is the part of a step's time that both take (the paper: 5.2 % of a GPU step, where an answer has hundreds of tokens;
nano's actions have five and its predictions thirty, so the same work weighs more here). Predictions are made as the recipe has
it, for successes; `share_all` counts them for all episodes.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/role_agent_cost.py
    python benchmarks/role_agent_cost.py --steps 1          # a try, writes no result
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import fmean

from _record import ROOT, record

from gongfu.config.load import load
from gongfu.config.schema import Recipe

RECIPE = ROOT / "recipes" / "role_agent" / "household-nano.toml"
STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps, after one that warms up")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    few, everything = (measure(of, options.steps, options.seed) for of in ("successes", "all"))
    result = {"share": few["share"], "share_all": everything["share"], "successes": few, "all": everything}
    record("role_agent_cost", {**result, "steps": options.steps, "seed": options.seed}, full=options.steps >= STEPS)


def measure(of: str, steps: int, seed: int) -> dict[str, float]:
    """Mean seconds of a step and of its parts."""
    from gongfu.run import build

    recipe = load(Recipe, files=[RECIPE], overrides=[f"--method.prediction.of={of}", f"--run.seed={seed}"]).config
    suite = build.build_suite(recipe.suite)
    with tempfile.TemporaryDirectory() as folder:
        engine = build.build_engine(recipe, Path(folder))
        engine.sync()
        collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
        method = build.build_method(recipe, engine, collector, suite, Path(folder))
        found = [method.step(k).metrics for k in range(steps + 1)][1:]
        engine.close()
    seconds = {name: fmean(m[f"time/{name}"] for m in found) for name in ("predict_s", "failures_s", "step_s")}
    share = (seconds["predict_s"] + seconds["failures_s"]) / seconds["step_s"]
    predictions = fmean(m["prediction/count"] for m in found)
    return {"share": round(share, 4), "predictions": predictions, **{name: round(s, 3) for name, s in seconds.items()}}


if __name__ == "__main__":
    main()
