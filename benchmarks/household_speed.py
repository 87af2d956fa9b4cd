"""How fast is the fast household engine beside the official one? The same games and the same walks on both, in one run.

The official engine is measured through our adapter, which parses its grammar and translates a problem once: faster than as
shipped, so the ratio errs on the small side.

    python benchmarks/household_speed.py                 # 18 games, about two minutes
    python benchmarks/household_speed.py --games 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import ROOT, record
from household_parity import choose_games

from gongfu.core import rng_for
from gongfu.envs.household.games import Game
from gongfu.envs.household.official import OfficialHouseholdEnv, require_packages
from gongfu.envs.household.problem import parse_problem
from gongfu.envs.household.world import HouseholdEnv
from gongfu.envs.protocol import Env

FULL = 18


def play(env: Env, commands: list[str]) -> tuple[float, float]:
    """(seconds of the reset, seconds of the steps)"""
    start = time.perf_counter()
    env.reset()
    ready = time.perf_counter()
    for command in commands:
        env.step(command)
    return ready - start, time.perf_counter() - ready


def random_walk(game: Game, steps: int) -> list[str]:
    """Admissible commands that do not finish the task."""
    rng = rng_for(0, purpose="speed walk", task=game.id)
    while True:
        env = HouseholdEnv(parse_problem(game.problem), game.goal, max_steps=steps + 1)
        observation, commands = env.reset(), []
        while len(commands) < steps:
            commands.append(rng.choice(observation.actions or ()))
            step = env.step(commands[-1])
            observation = step.observation
            if step.terminated:
                break
        else:
            return commands


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=FULL)
    parser.add_argument("--steps", type=int, default=50, help="steps of a walk")
    parser.add_argument("--repeats", type=int, default=40, help="times the fast engine plays each walk")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("GONGFU_DATA", ROOT.parent / "shared" / "data")) / "alfworld"
    )
    options = parser.parse_args()

    require_packages()  # imports are no part of a reset
    fast_resets, official_resets, fast_seconds, official_seconds = [], [], 0.0, 0.0
    games = choose_games(options.data, options.games, seed=0)
    for _, game in games:
        commands = random_walk(game, options.steps)
        official = OfficialHouseholdEnv(game.problem, game.goal, max_steps=options.steps + 1)
        reset, steps = play(official, commands)
        official.close()
        official_resets.append(reset)
        official_seconds += steps
        problem = game.problem
        for _ in range(options.repeats):
            parse_problem.cache_clear()  # a reset includes reading the problem, as it does on the official engine
            start = time.perf_counter()
            env = HouseholdEnv(parse_problem(problem), game.goal, max_steps=options.steps + 1)
            made = time.perf_counter() - start
            reset, steps = play(env, commands)
            fast_resets.append(made + reset)
            fast_seconds += steps / options.repeats
    total = len(games) * options.steps
    result = {
        "steps_ratio": round(official_seconds / fast_seconds, 1),
        "fast_steps_per_s": round(total / fast_seconds),
        "official_steps_per_s": round(total / official_seconds, 1),
        "reset_ms": round(1000 * statistics.median(fast_resets), 2),
        "official_reset_ms": round(1000 * statistics.median(official_resets), 1),
        "games": len(games),
        "steps": total,
    }
    record("household_speed", result, full=options.games >= FULL)


if __name__ == "__main__":
    main()
