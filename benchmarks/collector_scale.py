"""How does the collector scale to a thousand environments? Simulated: slow environments and a server that samples.

A step of an environment takes an exponential time of 50 ms in the mean, drawn by episode and step; the server answers after 200
ms, and after more where it has more than 256 requests at once. Both only wait, so what is measured is the collector: its
schedules, its bookkeeping of prompts and tokens, its threads. `turns_per_s` by the number of environments, under `together` and
`apart` (`rollout.schedule`); `ideal` is what waiting alone would allow.

    python benchmarks/collector_scale.py                            # some two minutes
    python benchmarks/collector_scale.py --at-once 8 64
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import record

from gongfu.core.records import Call, Task
from gongfu.core.seeds import rng_for
from gongfu.engine.models import resolve_model
from gongfu.engine.tokenizer import HFTokenizer
from gongfu.envs.protocol import Observation, Step
from gongfu.rollout.actor import Ask
from gongfu.rollout.collector import Collector
from gongfu.rollout.context import TextRules

AT_ONCE = (8, 64, 256, 1000)
TURNS, STEP_S, ANSWER_S, BATCH = 10, 0.05, 0.2, 256
TEXT = "You arrive at shelf 1. On the shelf 1, you see a book 1, a pen 2 and a mug 1."


class SlowEnvironments:
    """Steps of one call are taken side by side, as worker processes take them."""

    capacity: int | None = None
    waits = True

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def reset(self, tasks: Mapping[str, Task]) -> dict[str, Observation]:
        self._steps |= dict.fromkeys(tasks, 0)
        return {key: Observation(TEXT) for key in tasks}

    def step(self, actions: Mapping[str, str]) -> dict[str, Step]:
        for key in actions:
            self._steps[key] += 1
        time.sleep(max(self._seconds(key) for key in actions))
        return {key: Step(Observation(TEXT), terminated=self._steps[key] == TURNS, outcome="failure") for key in actions}

    def _seconds(self, key: str) -> float:
        return rng_for(0, purpose="environment", step=self._steps[key], task=key).expovariate(1 / STEP_S)

    def release(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._steps.pop(key, None)

    def close(self) -> None:
        self._steps.clear()


class Server:
    """Answers everybody with the same action."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self.response = (*tokenizer.encode("go to shelf 1"), tokenizer.stop_ids[0])
        self.requests = 0

    async def answer(self, asks: Sequence[Ask]) -> list[Call]:
        self.requests += len(asks)
        await asyncio.sleep(ANSWER_S * max(1.0, self.requests / BATCH))
        self.requests -= len(asks)
        zeros = (0.0,) * len(self.response)
        return [Call("actor", "actor", 0, ask.prompt, self.response, zeros, "go to shelf 1", "stop") for ask in asks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=list(AT_ONCE), help="environments")
    options = parser.parse_args()
    tokenizer = HFTokenizer(resolve_model("nano"))
    found: dict[str, Any] = {
        str(count): {
            "together": turns_per_s(tokenizer, count, "together"),
            "apart": turns_per_s(tokenizer, count, "apart"),
            "ideal": round(count / (STEP_S + ANSWER_S * max(1.0, count / BATCH))),
        }
        for count in options.at_once
    }
    settings = {"turns": TURNS, "step_ms": 1000 * STEP_S, "answer_ms": 1000 * ANSWER_S, "server_batch": BATCH}
    record("collector_scale", {"turns_per_s": found, **settings}, full=set(options.at_once) >= {*AT_ONCE})


def turns_per_s(tokenizer: HFTokenizer, count: int, schedule: Literal["together", "apart"]) -> int:
    """Two episodes an environment."""
    tasks = [Task(f"slow/{i}", "slow", "", "put a pen on the shelf 1", "train", seed=i) for i in range(2 * count)]
    collector = Collector(SlowEnvironments(), tokenizer, TextRules(instructions=False), "", TURNS, 4096, schedule)
    started = time.perf_counter()
    played = collector.collect(Server(tokenizer), tasks, concurrency=count)  # type: ignore[arg-type]
    if lost := [t.error for t in played if t.error]:
        raise SystemExit(f"{len(lost)} episodes were lost: {lost[0]}")
    return round(sum(len(t.turns) for t in played) / (time.perf_counter() - started))


if __name__ == "__main__":
    main()
