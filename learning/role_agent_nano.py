"""Step-level credit and Role-Agent on nano: does GiGPO beat GRPO, and Role-Agent GiGPO, and which of its parts does it?

Arms: `grpo`, `gigpo` and `role-agent`, the latter two with (`-std`) and without a deviation in the denominator; Role-Agent
without its predictions (`no-wia`), without its failure curriculum (`no-aiw`), and with longer horizons (`h10`, `h20`: shares
of the longest episode). `oracle`: no predictions, and failures are read as they really were, which nano cannot: what the
failure curriculum could be worth. `reward`: the last step's prediction scales all steps of an episode alike. All play the same
number of episodes. `differences`: success less that of grpo, gigpo-std and gigpo on the same tasks, averaged over seeds, with a
paired bootstrap over tasks.

Held out are new homes of the families that training shows, or other products of the kinds that it asks for ("seen"), and homes
of other families, other kinds of products ("unseen": nano-webshop knows few of their ids and can hardly buy them).

    python learning/role_agent_nano.py                                        # 2 suites, 10 and 9 arms, 3 seeds: hours
    python learning/role_agent_nano.py --suites webshop --arms grpo gigpo role-agent --seeds 0
    python learning/role_agent_nano.py --suites household --seeds 0 --steps 2 --tasks 4 --runs runs/try

Runs lie in --runs: one that was killed goes on. What finished runs showed is kept in benchmarks/results (of a smaller study in
--runs), and they are not trained again; so the arms may be run one by one, on several machines too.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from _finished import Finished, FinishedRuns
from _study import ROOT, Metrics, differences, forest, mean_shares, recipe_of, record, shares, stacked, step_seconds

ARMS: dict[str, tuple[str, list[str]]] = {
    "grpo": ("grpo", []),
    "gigpo-std": ("gigpo", []),
    "gigpo": ("gigpo", ["--method.std=none"]),
    "role-agent-std": ("role_agent", ["--method.std=unbiased"]),
    "role-agent": ("role_agent", []),
    "no-wia": ("role_agent", ["--method.prediction.horizon=0"]),
    "oracle": ("role_agent", ["--method.prediction.horizon=0", "--method.failures.writer=measured"]),
    "no-aiw": ("role_agent", ["--method.failures.share=0"]),
    "h10": ("role_agent", ["--method.prediction.horizon=0.1"]),
    "h20": ("role_agent", ["--method.prediction.horizon=0.2"]),
    "reward": ("role_agent", ["--method.prediction.scales=reward"]),
}
"""Folder of the recipe, and what is changed."""
BASES = ("grpo", "gigpo-std", "gigpo")
"""With what an arm is compared, where the call has both."""
STEPS = 30
SUITES: dict[str, list[str]] = {"household": ["--suite.max-steps=20"], "webshop": []}
"""Household: 20 turns, so that the paper's shares of the horizon are 1, 2 and 4 steps. A visit to the shop has 10 turns."""
LEFT_OUT = {"webshop": ["h10", "oracle"], "household": ["reward"]}
"""A tenth of 10 turns is one step ahead, as is a twentieth; and one suite is enough for what explains the others."""
TASKS = 150
FINISHED = ROOT / "benchmarks" / "results" / "learn_role_agent_nano.runs.jsonl"
DRAWN, STEERED = "tasks/", "tasks/from_failures"
"""Metrics of which kinds of tasks a step drew, and of the share that failures chose."""
WATCHED = (
    "rollout/turns",
    "rollout/truncated",
    "prediction/similarity",
    "prediction/factor",
    "prediction/factor_last",
    STEERED,
    "failures/agreement",
    "time/predict_s",
    "time/failures_s",
    "time/step_s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=list(SUITES), choices=list(SUITES))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--tasks", type=int, default=TASKS, help="held-out tasks of each split")
    parser.add_argument("--runs", type=Path, default=Path("runs/learn-role-agent-nano"))
    options = parser.parse_args()
    whole = options.steps == STEPS and options.tasks == TASKS
    full = whole and set(options.seeds) >= {0, 1, 2} and set(options.suites) == set(SUITES) and set(options.arms) == set(ARMS)
    finished = FinishedRuns(FINISHED if whole else options.runs / FINISHED.name, (*WATCHED, DRAWN, "success"))
    suites = {suite: study(suite, options, finished, full=full) for suite in options.suites}
    settings = {"tasks": options.tasks, "seeds": options.seeds, "steps": options.steps}
    record("learn_role_agent_nano", {"suites": suites, **settings}, full=full)


def study(suite: str, options: argparse.Namespace, finished: FinishedRuns, *, full: bool) -> dict[str, Any]:
    """What the arms reached in one suite."""
    arms = [arm for arm in ARMS if arm in {"grpo", *options.arms} and arm not in LEFT_OUT.get(suite, ())]
    runs: dict[str, list[Finished]] = defaultdict(list)
    for seed in options.seeds:
        for arm in arms:
            name, changes = ARMS[arm]
            where = [f"--run.seed={seed}", f"--run.name={arm}-{seed}", f"--run.folder={options.runs / suite}"]
            where.append(f"--run.steps={options.steps}")
            recipe = recipe_of(f"{name}/{suite}-nano.toml", [*SUITES[suite], *changes, *where])
            runs[arm].append(finished.of(f"{suite}/{recipe.run.name}", recipe, options.tasks))
            print(f"{suite}, {arm}, seed {seed}: {shares(runs[arm][-1].won)}", flush=True)
    won = {arm: [run.won for run in runs[arm]] for arm in arms}
    metrics = {arm: [run.metrics for run in runs[arm]] for arm in arms}
    folder = ROOT / "docs" / "plots" if full else options.runs
    base = "gigpo" if "gigpo" in arms else "grpo"
    found = {arm: differences(won[arm], won[base], names=("without",)) for arm in arms if arm != base}
    if found:
        forest(found, f"{suite}, nano: success less that of {base}", folder / f"role_agent_{suite}_nano.png")
    steered = {arm: drawn(metrics[arm]) for arm in ("no-aiw", "role-agent", "oracle") if arm in arms}
    if any(len(kinds) > 1 for kinds in steered.values()):
        stacked(steered, f"Kinds of tasks drawn, {suite}, nano", folder / f"role_agent_{suite}_draws.png")
    return {
        arm: {
            "mean": mean_shares(won[arm]),
            "differences": {b: differences(won[arm], won[b], names=("without",)) for b in BASES if b in won and b != arm},
            "seeds": [{"seed": s, **shares(r.won), "commit": r.commit} for s, r in zip(options.seeds, runs[arm], strict=True)],
            "step_s": round(median(s for m in metrics[arm] for s in step_seconds(m)), 2),
            "over_training": {name: thirds(metrics[arm], name) for name in WATCHED},
            "drawn": {kind: [round(v, 4) for v in in_thirds(values)] for kind, values in drawn(metrics[arm]).items()},
            "recipe": f"{ARMS[arm][0]}/{suite}-nano.toml",
            "settings": [*SUITES[suite], *ARMS[arm][1]],
        }
        for arm in arms
    }


def thirds(runs: Sequence[Metrics], name: str) -> list[float]:
    """A metric's mean over the first, the second and the last third of the steps; empty where it was never measured."""
    values: dict[int, list[Any]] = defaultdict(list)
    for metrics in runs:
        steps = [m for m in metrics if m["phase"] == "train"]
        for m in steps:
            if name in m:
                values[3 * (m["step"] - 1) // len(steps)].append(m[name])
    return [round(fmean(values[third]), 4) for third in sorted(values)]


def drawn(runs: Sequence[Metrics]) -> dict[str, list[float]]:
    """Kind of task -> its share among those drawn in each step, the mean over seeds; empty where nothing steers."""
    kinds: dict[str, list[float]] = {}
    for metrics in runs:
        steps = [m for m in metrics if m["phase"] == "train"]
        for name in {name for m in steps for name in m if name.startswith(DRAWN) and name != STEERED}:
            values = kinds.setdefault(name.removeprefix(DRAWN), [0.0] * len(steps))
            kinds[name.removeprefix(DRAWN)] = [v + m.get(name, 0.0) / len(runs) for v, m in zip(values, steps, strict=True)]
    return dict(sorted(kinds.items()))


def in_thirds(values: Sequence[float]) -> list[float]:
    cuts = [k * len(values) // 3 for k in range(4)]
    return [fmean(values[a:b]) for a, b in pairwise(cuts) if a < b]


if __name__ == "__main__":
    main()
