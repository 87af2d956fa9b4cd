"""What does it cost to train elsewhere? The rows of real GRPO steps, scored and trained by each engine in turn.

Nano plays household episodes once; then every engine scores these rows and takes a step of the clipped loss on them, again and
again. The rows are taken as if their actions had been generated: where one was chosen from a list, a remote engine would score
every option as a row. `engines`: name -> `step_ratio`, its seconds of such a step / those of the local engine in the same run.
Engines on one machine share its cores, so this is what the transport costs, not what many machines win.

`coefficients_ratio` = seconds of the local engine when the loss is sent as coefficients (one more forward pass) / when it runs
beside the model: that part of the price is the protocol's, whatever the engine.

    python benchmarks/engine_overhead.py --url http://127.0.0.1:8000      # local, two workers of verl, a SkyRL server with nano
    python benchmarks/engine_overhead.py --engines local --steps 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import ROOT, record

ENGINES = ("local", "verl", "tinker")
STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--steps", type=int, default=STEPS, help="measured steps, after one that is not counted")
    parser.add_argument("--workers", type=int, default=2, help="of verl")
    parser.add_argument("--url", default="", help="a server of the Tinker API that serves nano's folder")
    options = parser.parse_args()

    from gongfu.config.load import load
    from gongfu.config.schema import Recipe
    from gongfu.engine.linear import Plain
    from gongfu.engine.local import LocalEngine
    from gongfu.engine.models import resolve_model
    from gongfu.run import build
    from gongfu.run.build_engine import lora_spec

    recipe = load(Recipe, files=[ROOT / "recipes" / "grpo" / "household-nano.toml"]).config
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        local = build.build_engine(recipe, Path(folder))
        local.sync()
        rows, loss = played(recipe, local)
        step = replace(build.optim_params(recipe, 1e-5), clip=0.0)

        def native(engine: Any) -> None:
            engine.logprobs(rows, adapter=build.ACTOR)
            engine.forward_backward(rows, loss, adapter=build.ACTOR)
            engine.optim_step(step, adapter=build.ACTOR)

        def linear(engine: Any) -> None:
            engine.logprobs(rows, adapter=build.ACTOR)
            plain = Plain(rows)
            gradients, _ = plain.gradients(loss, engine.logprobs(plain.sequences, adapter=build.ACTOR))
            weights = {row.id: g for row, g in zip(plain.sequences, gradients, strict=True)}
            engine.forward_backward(plain.sequences, lambda part, lps: (_sum(part, lps, weights), {}), adapter=build.ACTOR)
            engine.optim_step(step, adapter=build.ACTOR)

        seconds["local"] = timed(lambda: native(local), options.steps)
        coefficients = timed(lambda: linear(local), options.steps)
        if "verl" in options.engines:
            from gongfu.engine.verl import VerlEngine

            driver = LocalEngine(resolve_model(recipe.engine.model), store=Path(folder) / "verl")
            verl = VerlEngine(driver, workers=options.workers, micro_batch_tokens=recipe.engine.micro_batch_tokens)
            try:
                verl.create_adapter(build.ACTOR, lora_spec(recipe))
                seconds["verl"] = timed(lambda: native(verl), options.steps)
            finally:
                verl.close()
        if "tinker" in options.engines:
            from gongfu.engine.tinker import TinkerEngine

            model = resolve_model(recipe.engine.model)
            server = TinkerEngine(model, store=Path(folder) / "tinker", base_model=str(model), url=options.url)
            server.create_adapter(build.ACTOR, lora_spec(recipe))
            seconds["tinker"] = timed(lambda: native(server), options.steps)
            server.close()
    result = {
        "engines": {name: {"step_ratio": round(s / seconds["local"], 2), "step_s": round(s, 3)} for name, s in seconds.items()},
        "coefficients_ratio": round(coefficients / seconds["local"], 2),
        "rows": len(rows),
        "tokens": sum(len(row.tokens) for row in rows),
        "workers": options.workers,
        "steps": options.steps,
    }
    full = set(options.engines) == set(ENGINES) and options.steps >= STEPS
    record("engine_overhead", result, full=full)


def played(recipe: Any, engine: Any) -> tuple[list[Any], Any]:
    """Rows of 4 x 8 episodes as if their actions had been generated, and the clipped loss of some advantages on them."""
    from gongfu.credit.batch import Example
    from gongfu.credit.losses import PolicyLossConfig, policy_loss
    from gongfu.rollout.rows import rows_of
    from gongfu.run import build

    suite = build.build_suite(recipe.suite)
    collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
    actor = build.build_actor(recipe, engine, purpose="train", temperature=1.0)
    found = collector.collect(actor, suite.tasks("train")[:4], group_size=8, step=0, concurrency=32)
    rows = [replace(row, choices=()) for trajectory in found for row in rows_of(trajectory)]
    old = engine.logprobs(rows, adapter=build.ACTOR)
    examples = [
        Example(row, "actor", (1.0 if i % 2 else -1.0,) * row.targets, tuple(values.tolist()))
        for i, (row, values) in enumerate(zip(rows, old, strict=True))
    ]
    return rows, policy_loss(examples, PolicyLossConfig())


def timed(step: Callable[[], None], steps: int) -> float:
    """Median seconds, after one step that is not counted."""
    found = []
    for _ in range(steps + 1):
        started = time.perf_counter()
        step()
        found.append(time.perf_counter() - started)
    return median(found[1:])


def _sum(rows: Sequence[Any], logprobs: Sequence[Any], weights: Any) -> Any:
    return sum((weights[row.id] * values).sum() for row, values in zip(rows, logprobs, strict=True))


if __name__ == "__main__":
    main()
