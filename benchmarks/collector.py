"""How fast are episodes collected when the policy costs nothing, and what does an environment in a process of its own cost?

Scripted experts play generated household tasks with the tokens, prompts and records of training. `episodes_per_s` and
`turns_per_s` by the number of episodes at a time, with environments in this process (`inline`) and in workers (`workers`).
`round_trip_ms`: median time of one step of one environment in a worker process, less that of the same step in this process;
`ray_round_trip_ms`: the same of a Ray actor on this machine, where Ray is installed (it is in the environment of
`make test-engines`).

    python benchmarks/collector.py                                  # a minute or two
    python benchmarks/collector.py --episodes 16 --at-once 1 8
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import record

from gongfu.engine.models import resolve_model
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.envs.household.suite import HouseholdSuite
from gongfu.envs.runner import EnvRunner, InlineRunner
from gongfu.envs.workers import WorkerRunner
from gongfu.rollout.actor import ScriptedActor
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules
from gongfu.run.demonstrations import expert_for

FULL = {"episodes": 512, "workers": 2}
AT_ONCE = (1, 8, 64, 256)
ROUND_TRIPS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=FULL["episodes"])
    parser.add_argument("--at-once", type=int, nargs="+", default=list(AT_ONCE), help="concurrent episodes")
    parser.add_argument("--workers", type=int, default=FULL["workers"], help="processes")
    options = parser.parse_args()
    suite = HouseholdSuite(sizes={"train": options.episodes})
    tokenizer = HFTokenizer(resolve_model("nano"))
    result: dict[str, Any] = {"inline": {}, "workers": {}}
    for at_once in options.at_once:
        result["inline"][at_once] = collected(InlineRunner(suite), suite, tokenizer, at_once, options.episodes)
        with WorkerRunner(suite, workers=options.workers) as runner:
            few = min(options.episodes, 16 * options.workers * at_once)
            result["workers"][at_once] = collected(runner, suite, tokenizer, at_once, few)
    with WorkerRunner(suite, workers=1) as runner:
        there = median(step_seconds(runner, suite))
    here = median(step_seconds(InlineRunner(suite), suite))
    result |= {"round_trip_ms": round(1000 * (there - here), 3), "step_ms": round(1000 * here, 3)}
    if find_spec("ray"):
        with WorkerRunner(suite, workers=1, kind="ray") as runner:
            result["ray_round_trip_ms"] = round(1000 * (median(step_seconds(runner, suite)) - here), 3)
    result |= {"episodes": options.episodes, "processes": options.workers}
    whole = all(getattr(options, name) >= value for name, value in FULL.items()) and set(options.at_once) >= {*AT_ONCE}
    record("collector", result, full=whole)


def collected(
    runner: EnvRunner, suite: HouseholdSuite, tokenizer: HFTokenizer, at_once: int, episodes: int
) -> dict[str, float]:
    rules = TextRules(instructions=False)
    collector = Collector(runner, tokenizer, rules, suite.instructions(), suite.max_steps, 4096)
    actor = ScriptedActor(tokenizer, expert_for(suite, 0), format=rules.format)
    tasks = suite.tasks("train")[:episodes]
    collector.collect(actor, tasks, step=1, concurrency=at_once)  # homes are made, workers are started
    started = time.perf_counter()
    played = collector.collect(actor, tasks, concurrency=at_once)
    seconds = time.perf_counter() - started
    if lost := [t.error for t in played if t.error]:
        raise SystemExit(f"{len(lost)} episodes were lost: {lost[0]}")
    turns = sum(len(t.turns) for t in played)
    return {"episodes_per_s": round(len(played) / seconds, 1), "turns_per_s": round(turns / seconds)}


def step_seconds(runner: EnvRunner, suite: HouseholdSuite) -> list[float]:
    """Of an action that changes nothing."""
    runner.reset({"one": suite.tasks("train")[0]})
    found = []
    for _ in range(min(ROUND_TRIPS, suite.max_steps - 1)):
        started = time.perf_counter()
        runner.step({"one": "look"})
        found.append(time.perf_counter() - started)
    runner.release(["one"])
    return found


if __name__ == "__main__":
    main()
