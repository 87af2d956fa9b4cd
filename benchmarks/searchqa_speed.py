"""How fast is the search suite, and what does a scripted searcher score on it? Real questions and Sokoban beside.

The scripted searcher of generated worlds knows no more than an agent; that of real questions is told answers and evidence, and
answers only with what it found: a task is solvable when it does. Real questions (HotpotQA and MuSiQue, 100 each, over their own
passages) are played where the data folder holds them.

    python benchmarks/searchqa_speed.py                  # some seconds
    python benchmarks/searchqa_speed.py --tasks 100
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import ROOT, record

from gongfu.core import Task, rng_for
from gongfu.envs.check import check
from gongfu.envs.searchqa import SearchQASuite
from gongfu.envs.sokoban import SokobanSuite

SEED = 0
FULL = 800
REAL = {
    "hotpotqa": ("hipporag_hotpotqa_train.json", "hipporag_hotpotqa_train_corpus.json"),
    "musique": ("hipporag_musique_train.json", "hipporag_musique_train_corpus.json"),
}


def play(suite: SearchQASuite | SokobanSuite, tasks: Sequence[Task]) -> dict[str, Any]:
    """The scripted expert on every task. Time counts making, resetting and stepping environments, not the expert."""
    seconds, steps, scores, won, unsolvable, actions, resets = 0.0, 0, [], 0, 0, [], []
    for task in tasks:
        expert, last = suite.expert(task, rng_for(SEED, purpose="benchmark", task=task.id)), ""
        start = time.perf_counter()
        env = suite.make(task)
        observation = env.reset()
        resets.append(time.perf_counter() - start)
        seconds += resets[-1]
        while True:
            last = expert.act(observation)
            start = time.perf_counter()
            step = env.step(last)
            seconds += time.perf_counter() - start
            steps += 1
            observation = step.observation
            actions.append(len(observation.actions or ()))
            if step.outcome is not None:
                break
        scores.append(step.score)
        won += step.outcome == "success"
        unsolvable += last == "answer[unknown]"
    return {
        "steps_per_s": round(steps / seconds),
        "reset_ms": round(1000 * statistics.median(resets), 3),
        "score": round(statistics.mean(scores), 4),
        "success": round(won / len(tasks), 4),
        "success_of_solvable": round(won / max(1, len(tasks) - unsolvable), 4),
        "solvable": round(1 - unsolvable / len(tasks), 4),
        "actions": round(statistics.mean(actions), 1),
        "tasks": len(tasks),
        "steps": steps,
    }


def conformance(suite: SearchQASuite | SokobanSuite) -> bool:
    return check(suite, expert=lambda task: suite.expert(task, rng_for(SEED, purpose="check", task=task.id)), raises=False).ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=FULL, help="generated tasks of the split train; a quarter as many unseen")
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("GONGFU_DATA", ROOT.parent / "shared" / "data")) / "qa"
    )
    options = parser.parse_args()

    suite = SearchQASuite(max_steps=4, sizes={"train": options.tasks, "seen": 60, "unseen": options.tasks // 4})
    tasks = [*suite.tasks("train"), *suite.tasks("unseen")]
    generated = play(suite, tasks)
    real = {}
    for name, (questions, corpus) in REAL.items():
        if (options.data / questions).is_file():
            files = SearchQASuite(options.data / questions, options.data / corpus, max_steps=6)
            real[name] = play(files, [*files.tasks("train"), *files.tasks("seen")])
    sokoban = SokobanSuite(sizes={"train": max(1, options.tasks // 4)})
    result = {
        **{key: generated.pop(key) for key in ("steps_per_s", "score", "success", "solvable", "success_of_solvable")},
        "conformance": conformance(suite),
        "generated": generated,
        "real": real,
        "sokoban": {**play(sokoban, sokoban.tasks("train")), "conformance": conformance(sokoban)},
    }
    record("searchqa_speed", {**result, "seeds": [SEED]}, full=options.tasks >= FULL and len(real) == len(REAL))


if __name__ == "__main__":
    main()
