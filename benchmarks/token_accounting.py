"""Where the tokens of a training step go: is every sampled token trained, and how many are computed for each?

The same household tasks are played with a growing conversation ("append": one training row an episode) and with the papers'
prompt of the last two turns ("window": one row a turn, admissible actions listed). Every sampled token must be trained once
and as it was sampled, in both; the script fails otherwise.

    python benchmarks/token_accounting.py                    # the nano model: about a minute
    python benchmarks/token_accounting.py --random           # random weights of the same shape
    python benchmarks/token_accounting.py --random --tasks 2 --group 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _models import random_nano
from _record import ROOT, record

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.engine.runtime import prepare_cpu

FULL = 24
"""Episodes of a full run."""


def recipe_for(context: str, options: argparse.Namespace) -> Recipe:
    """The nano recipe with the context of one arm."""
    recipe = load(Recipe, files=[ROOT / "recipes" / "grpo" / "household-nano.toml"]).config
    sections = {
        "run": {"threads": options.threads},
        "engine": {"model": str(options.model)},
        "rollout": {"context": context, "window": 2, "list_actions": context == "window", "mode": options.mode},
    }
    return recipe.model_copy(
        update={name: getattr(recipe, name).model_copy(update=values) for name, values in sections.items()}
    )


def account(context: str, options: argparse.Namespace) -> dict[str, float]:
    """Play, build the rows, run them through the engine once, and count."""
    from gongfu.core.records import Trajectory
    from gongfu.credit.batch import Example
    from gongfu.credit.losses import PolicyLossConfig, policy_loss
    from gongfu.methods.update import TokenRow, token_rows
    from gongfu.rollout.collector import lost
    from gongfu.rollout.tasks import TaskSampler
    from gongfu.run import build

    def check(trajectory: Trajectory, rows: list[TokenRow]) -> None:
        sampled = [token for turn in trajectory.turns if turn.call for token in turn.call.response]
        scored = [token for r in rows for token, kept in zip(r.row.tokens, r.row.mask, strict=True) if kept]
        if sampled != scored:
            raise SystemExit(f"{context}: the trained tokens of {trajectory.id} are not those that were sampled")

    recipe = recipe_for(context, options)
    suite = build.build_suite(recipe.suite)
    runner = build.build_runner(recipe, suite)
    with tempfile.TemporaryDirectory() as store:
        engine: Any = build.build_engine(recipe, Path(store))
        collector = build.build_collector(recipe, suite, engine.tokenizer, runner)
        actor = build.build_actor(recipe, engine, purpose="train", temperature=recipe.rollout.temperature)
        tasks = TaskSampler(suite.tasks("train"), recipe.run.seed).draw(0, options.tasks)
        played = collector.collect(actor, tasks, group_size=options.group)
        if any(lost(t) for t in played):
            raise SystemExit(f"{context}: {next(t.error for t in played if lost(t))}")
        rows: list[TokenRow] = []
        for trajectory in played:
            rows += (made := token_rows(trajectory))
            check(trajectory, made)
        examples = [Example(r.row, "actor", (1.0,) * r.row.targets, r.logprobs) for r in rows]
        metrics = engine.forward_backward([r.row for r in rows], policy_loss(examples, PolicyLossConfig()), adapter=build.ACTOR)
        used = engine.stats()
        engine.close()
    return {
        "trained_per_sampled": used["trained_tokens"] / used["sampled_tokens"],
        "processed_per_trained": used["train_processed_tokens"] / used["trained_tokens"],
        "processed_per_sampled": used["sample_processed_tokens"] / used["sampled_tokens"],
        "rows_per_episode": len(rows) / len(played),
        "turns_per_episode": sum(len(t.turns) for t in played) / len(played),
        "padding_share": used["train_padded_tokens"] / (used["train_padded_tokens"] + used["train_processed_tokens"]),
        "shared_share": used["train_shared_tokens"] / (used["train_shared_tokens"] + used["train_processed_tokens"]),
        "prompt_reuse_share": used["reused_tokens"] / used["prompt_tokens"],
        "tokens_sampled": used["sampled_tokens"],
        "tokens_trained": used["trained_tokens"],
        "log_prob_gap": metrics["actor/log_ratio_abs"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", help="short name or folder")
    parser.add_argument("--random", action="store_true", help="random weights of nano's shape")
    parser.add_argument("--mode", choices=("generate", "choose"), default="generate")
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--group", type=int, default=4, help="episodes of a task")
    parser.add_argument("--threads", type=int, default=0, help="0 = all cores")
    options = parser.parse_args()

    prepare_cpu()
    from gongfu.core.errors import ModelError
    from gongfu.engine.models import resolve_model

    with tempfile.TemporaryDirectory() as folder:
        name = "random nano" if options.random else Path(options.model).name
        try:
            options.model = random_nano(Path(folder)) if options.random else resolve_model(options.model)
        except ModelError as e:
            raise SystemExit(f"{e}\nor count with random weights: --random") from None
        arms = {context: account(context, options) for context in ("append", "window")}
    result: dict[str, Any] = {
        f"{key}_{context}": round(value, 8 if key == "log_prob_gap" else 4)
        for context, numbers in arms.items()
        for key, value in numbers.items()
    }
    result["padding_share"] = {context: round(numbers["padding_share"], 4) for context, numbers in arms.items()}
    lossy = [context for context, numbers in arms.items() if numbers["trained_per_sampled"] != 1]
    if lossy:
        raise SystemExit(f"sampled tokens were lost, or trained twice, with context {' and '.join(lossy)}: {result}")
    episodes = options.tasks * options.group
    about = {"model": name, "mode": options.mode, "tasks": options.tasks, "episodes": episodes}
    record("token_accounting", {**result, **about}, full=episodes >= FULL)


if __name__ == "__main__":
    main()
