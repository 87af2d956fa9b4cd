"""Is the fast household engine the official one, step for step?

Plays official ALFWorld games of all six kinds and of the three splits on both engines and counts differing walks. Random,
expert and adversarial walks take turns. Needs the extra "alfworld" and the packed games (folder GONGFU_DATA/alfworld).

    python benchmarks/household_parity.py                # 240 games, about a quarter of an hour on one core
    python benchmarks/household_parity.py --games 12     # a quick look; writes no result file
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import ROOT, record

from gongfu.core import rng_for
from gongfu.envs.household.games import Game, find_splits
from gongfu.envs.household.parity import WALKS, compare_engines
from gongfu.envs.household.problem import KINDS, SHORT_KINDS

FULL = 240


def choose_games(folder: Path, count: int, seed: int) -> list[tuple[str, Game]]:
    """`count` games, as even as can be over kinds and splits, drawn by the seed."""
    pools = {}
    for split, read in find_splits(folder).items():
        games = read()
        for kind in KINDS:
            pool = [game for game in games if game.kind == kind]
            rng_for(seed, purpose="parity games", task=f"{split}/{kind}").shuffle(pool)
            pools[split, kind] = pool
    chosen: list[tuple[str, Game]] = []
    while len(chosen) < count and any(pools.values()):
        for (split, _), pool in pools.items():
            if pool and len(chosen) < count:
                chosen.append((split, pool.pop()))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=FULL)
    parser.add_argument("--steps", type=int, default=45, help="most steps of a walk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("GONGFU_DATA", ROOT.parent / "shared" / "data")) / "alfworld"
    )
    options = parser.parse_args()

    start, states, differences = time.perf_counter(), 0, []
    verbs: Counter[str] = Counter()
    walks, splits, kinds, states_of = Counter(), Counter(), Counter(), Counter()
    chosen = choose_games(options.data, options.games, options.seed)
    for i, (split, game) in enumerate(chosen):
        walk = WALKS[(i + i // 18) % len(WALKS)]  # 18 = kinds times splits: every one of them meets every walk
        rng = rng_for(options.seed, purpose=f"parity {walk}", task=game.id)
        comparison = compare_engines(game.problem, game.goal, walk, rng, steps=options.steps)
        states += comparison.states
        verbs.update(comparison.verbs)
        walks[walk] += 1
        splits[split] += 1
        kinds[SHORT_KINDS[game.kind]] += 1
        states_of[SHORT_KINDS[game.kind]] += comparison.states
        if comparison.difference:
            differences.append({"game": game.id, "split": split, "walk": walk, "what": comparison.difference})
            print(f"{split}/{game.id} ({walk}): {comparison.difference}", flush=True)
        if (i + 1) % 20 == 0:
            print(
                f"{i + 1} games, {states} states, {len(differences)} differences, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    result = {
        "games": len(chosen),
        "walks": dict(walks),
        "states": states,
        "differences": len(differences),
        "differing": differences,
        "per_kind": {kind: {"games": kinds[kind], "states": states_of[kind]} for kind in kinds},
        "per_split": dict(splits),
        "commands": dict(verbs.most_common()),
        "seeds": [options.seed],
        "seconds": round(time.perf_counter() - start, 1),
    }
    record("household_parity", result, full=options.games >= FULL)
    if differences:
        sys.exit(1)


if __name__ == "__main__":
    main()
