"""What does it cost to value a skill proposal by R_align, and what would it cost by rollouts?

Some steps of recipes/uniskill-household-nano.toml are made as they are. In each one the edits that the step measures are valued
a second time by R_align and by 16 + 16 episodes each, with the same weights; these two times are taken out of the step's again.
Proposals that say the same about a task are measured once, either way.

`ratio` = seconds of the rollouts / seconds of R_align for the same edits, all steps together. `share` = seconds of R_align in
the step itself (edits, and shown skills that were kept) / seconds of the whole step.

    python benchmarks/r_align_cost.py                               # some minutes
    python benchmarks/r_align_cost.py --steps 1 --rollouts 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import ROOT, record

from gongfu.config.load import load
from gongfu.config.schema import Recipe
from gongfu.methods.uniskill.method import Valuer
from gongfu.methods.uniskill.records import Alignment, Proposal
from gongfu.methods.uniskill.trials import RolloutValuer

RECIPE = ROOT / "recipes" / "uniskill-household-nano.toml"
FULL = {"steps": 3, "rollouts": 16}


@dataclass
class Both:
    """Values as R_align does, and measures what the same edits cost either way."""

    align: Valuer
    rollouts: Valuer
    seconds: dict[str, float] = field(default_factory=lambda: {"share": 0.0, "align": 0.0, "rollouts": 0.0})
    edits: int = 0

    def value(self, proposals: Sequence[Proposal], step: int) -> list[Alignment | None]:
        edits = [p for p in proposals if p.is_edit]
        self.edits += len(edits)
        found = self._timed("share", self.align, proposals, step)
        self._timed("align", self.align, edits, step)
        self._timed("rollouts", self.rollouts, edits, step)
        return found

    def _timed(self, name: str, valuer: Valuer, proposals: Sequence[Proposal], step: int) -> list[Alignment | None]:
        started = time.perf_counter()
        found = valuer.value(proposals, step)
        self.seconds[name] += time.perf_counter() - started
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=FULL["steps"], help="measured steps, after one that is not counted")
    parser.add_argument("--rollouts", type=int, default=FULL["rollouts"], help="episodes with an edit, and as many without")
    parser.add_argument("--model-folder", default="nano", help="a model folder in place of the shipped nano")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    from gongfu.run import build

    overrides = [f"--engine.model={options.model_folder}", f"--run.seed={options.seed}"]
    recipe = load(Recipe, files=[RECIPE], overrides=overrides).config
    suite = build.build_suite(recipe.suite)
    with tempfile.TemporaryDirectory() as folder:
        engine = build.build_engine(recipe, Path(folder))
        engine.sync()
        collector = build.build_collector(recipe, suite, engine.tokenizer, build.build_runner(recipe, suite))
        method: Any = build.build_method(recipe, engine, collector, suite, Path(folder))
        method.step(0)
        both = method.valuer = Both(method.valuer, RolloutValuer(method.trials, options.rollouts))
        step_s = sum(method.step(k).metrics["time/step_s"] for k in range(1, options.steps + 1))
        method.library.bank.close()
        engine.close()
    if not both.edits:
        raise SystemExit(f"in {options.steps} steps no edit was measured: choose another seed or more steps")
    seconds = both.seconds
    step_s -= seconds["align"] + seconds["rollouts"]
    result = {
        "ratio": round(seconds["rollouts"] / seconds["align"], 2),
        "share": round(seconds["share"] / step_s, 4),
        "edits": both.edits,
        "align_s_per_edit": round(seconds["align"] / both.edits, 4),
        "rollouts_s_per_edit": round(seconds["rollouts"] / both.edits, 4),
        "episodes": method.trials.episodes,
        "step_s": round(step_s / options.steps, 3),
        "steps": options.steps,
        "rollouts": options.rollouts,
        "seed": options.seed,
    }
    full = all(getattr(options, name) >= value for name, value in FULL.items()) and options.model_folder == "nano"
    record("r_align_cost", result, full=full)


if __name__ == "__main__":
    main()
