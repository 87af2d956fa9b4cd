"""How fast is WebShop here, does it conform, and does a scripted buyer get the full reward? On a generated shop.

Steps are admissible actions at random; a step includes its text and its list of actions. The shop remembers the results of a
query, as it does in training.

    python benchmarks/webshop_speed.py                 # 1,000 products, all tasks, some 15 seconds
    python benchmarks/webshop_speed.py --episodes 20
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import record

from gongfu.core import rng_for
from gongfu.core.records import Task
from gongfu.envs.check import check
from gongfu.envs.webshop import WebShopExpert, WebShopSuite

SEED = 0
FULL = 1000


def walk(suite: WebShopSuite, task: Task) -> tuple[int, float, float]:
    """(steps, seconds of the steps, seconds of making and resetting) of random admissible actions."""
    rng = rng_for(SEED, purpose="webshop walk", task=task.id)
    begun = time.perf_counter()
    env = suite.make(task)
    observation = env.reset()
    ready, steps, spent = time.perf_counter(), 0, 0.0
    while True:
        action = rng.choice(observation.actions or ())
        start = time.perf_counter()
        step = env.step(action)
        spent += time.perf_counter() - start
        steps += 1
        observation = step.observation
        if step.terminated or step.truncated:
            return steps, spent, ready - begun


def buy(suite: WebShopSuite, task: Task) -> tuple[float, int]:
    """(reward, steps) of the scripted buyer."""
    env, expert = suite.make(task), buyer(suite, task)
    observation = env.reset()
    for steps in range(1, suite.max_steps + 1):
        step = env.step(expert.act(observation))
        observation = step.observation
        if step.terminated or step.truncated:
            return step.reward, steps
    raise AssertionError("an episode did not end at its limit")


def buyer(suite: WebShopSuite, task: Task) -> WebShopExpert:
    return suite.expert(task, rng_for(SEED, purpose="webshop buyer", task=task.id))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=FULL, help="tasks of each kind of play, over all splits")
    options = parser.parse_args()

    start = time.perf_counter()
    suite = WebShopSuite(sizes={"train": 800, "seen": 100, "unseen": 100})
    tasks = [task for split in suite.splits for task in suite.tasks(split)][: options.episodes]
    suite.make(tasks[0]).step("search[anything]")  # builds the index
    opened = time.perf_counter() - start
    walks = [walk(suite, task) for task in tasks]
    bought = [buy(suite, task) for task in tasks]
    report = check(suite, expert=lambda task: buyer(suite, task), raises=False)
    result = {
        "steps_per_s": round(sum(steps for steps, _, _ in walks) / sum(seconds for _, seconds, _ in walks)),
        "steps": sum(steps for steps, _, _ in walks),
        "reset_ms": round(1000 * sum(seconds for _, _, seconds in walks) / len(walks), 3),
        "open_s": round(opened, 2),
        "products": len(suite.catalogue.products),
        "buyer_reward": round(sum(reward for reward, _ in bought) / len(bought), 4),
        "buyer_success": round(sum(reward == 1 for reward, _ in bought) / len(bought), 4),
        "buyer_steps": round(sum(steps for _, steps in bought) / len(bought), 2),
        "episodes": len(tasks),
        "conforms": report.ok,
        "findings": [str(finding) for finding in report.findings],
    }
    record("webshop_speed", {**result, "seeds": [SEED]}, full=options.episodes >= FULL)


if __name__ == "__main__":
    main()
