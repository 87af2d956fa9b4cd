"""Step-level credit and Role-Agent on nano: does GiGPO beat GRPO, and Role-Agent GiGPO, and which of its parts does it?

Arms: `grpo`, `gigpo` and `role-agent`, the latter two with (`-std`) and without a deviation in the denominator; Role-Agent
without its predictions (`no-wia`), without its failure curriculum (`no-aiw`), and with longer horizons (`h10`, `h20`: shares
of the longest episode, 20 turns, so 2 and 4 steps ahead in place of 1). All play the same number of episodes. `difference`:
success less that of grpo on the same tasks, averaged over seeds, with a paired bootstrap over tasks.

Held out are new homes of the families that training shows ("seen") and homes of other families ("unseen").

    python learning/role_agent_nano.py                                                  # 9 arms x 3 seeds
    python learning/role_agent_nano.py --arms grpo gigpo role-agent --seeds 0
    python learning/role_agent_nano.py --seeds 0 --steps 2 --tasks 4 --runs /tmp/try

Runs lie in --runs: a finished one is not trained again, one that was killed goes on.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from _study import (
    ROOT,
    Wins,
    curves,
    differences,
    held_out,
    mean_shares,
    plot,
    recipe_of,
    record,
    shares,
    step_seconds,
    trained,
)

from gongfu.run.folder import read_metrics

ROLE_AGENT = "role_agent/household-nano.toml"
ARMS: dict[str, tuple[str, list[str]]] = {
    "grpo": ("grpo/household-nano.toml", []),
    "gigpo-std": ("gigpo/household-nano.toml", []),
    "gigpo": ("gigpo/household-nano.toml", ["--method.std=none"]),
    "role-agent-std": (ROLE_AGENT, ["--method.std=unbiased"]),
    "role-agent": (ROLE_AGENT, []),
    "no-wia": (ROLE_AGENT, ["--method.prediction.horizon=0"]),
    "no-aiw": (ROLE_AGENT, ["--method.failures.share=0"]),
    "h10": (ROLE_AGENT, ["--method.prediction.horizon=0.1"]),
    "h20": (ROLE_AGENT, ["--method.prediction.horizon=0.2"]),
}
TURNS = ["--suite.max-steps=20"]
"""So that the paper's shares of the horizon are 1, 2 and 4 steps."""
TASKS = 150
WATCHED = (
    "prediction/similarity",
    "tasks/from_failures",
    "failures/agreement",
    "time/predict_s",
    "time/failures_s",
    "time/step_s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=0, help="0 = as the recipes say")
    parser.add_argument("--tasks", type=int, default=TASKS, help="held-out tasks of each split")
    parser.add_argument("--runs", type=Path, default=Path("runs/learn-role-agent-nano"))
    options = parser.parse_args()
    arms = [arm for arm in ARMS if arm in {"grpo", *options.arms}]
    won: dict[str, list[Wins]] = defaultdict(list)
    runs: dict[str, list[Path]] = defaultdict(list)
    for seed in options.seeds:
        for arm in arms:
            name, changes = ARMS[arm]
            steps = [f"--run.steps={options.steps}"] if options.steps else []
            where = [f"--run.seed={seed}", f"--run.name={arm}-{seed}", f"--run.folder={options.runs}"]
            recipe = recipe_of(name, [*TURNS, *changes, *steps, *where])
            runs[arm].append(trained(recipe))
            won[arm].append(held_out(runs[arm][-1], recipe, options.tasks))
            print(f"{arm}, seed {seed}: {shares(won[arm][-1])}", flush=True)
    full = set(options.seeds) >= {0, 1, 2} and not options.steps and options.tasks >= TASKS and len(arms) == len(ARMS)
    folder = ROOT / "docs" / "plots" if full else options.runs
    plot(curves(runs), "GRPO, GiGPO and Role-Agent on household tasks, nano", folder / "role_agent_nano.png")
    found = {
        arm: {
            "mean": mean_shares(won[arm]),
            "difference": {} if arm == "grpo" else differences(won[arm], won["grpo"], names=("without",)),
            "seeds": [{"seed": s, **shares(w)} for s, w in zip(options.seeds, won[arm], strict=True)],
            "step_s": round(median(s for run in runs[arm] for s in step_seconds(run)), 2),
            "over_training": {name: thirds(runs[arm], name) for name in WATCHED},
            "recipe": ARMS[arm][0],
            "settings": ARMS[arm][1],
        }
        for arm in arms
    }
    suites = {"household": found}
    record("learn_role_agent_nano", {"suites": suites, "tasks": options.tasks, "seeds": options.seeds}, full=full)


def thirds(runs: list[Path], name: str) -> list[float]:
    """A metric's mean over the first, the second and the last third of the steps; empty where it was never measured."""
    values: dict[int, list[Any]] = defaultdict(list)
    for run in runs:
        steps = [m for m in read_metrics(run / "metrics.jsonl") if m["phase"] == "train"]
        for m in steps:
            if name in m:
                values[3 * (m["step"] - 1) // len(steps)].append(m[name])
    return [round(fmean(values[third]), 4) for third in sorted(values)]


if __name__ == "__main__":
    main()
