"""Does every engine do what the local one does? `gongfu.engine.check` on each, with nano: steps of two roles, side by side.

`engines`: name -> `max_logprob_diff`, the largest difference of log-probs to a local engine that took the same steps (nats),
and `steps`, rounds of the comparison (one optimiser step of each role). An engine that breaks a rule ends the script with what
it broke. Run it in an environment that has the engine's packages (`make test-engines` makes them).

    python benchmarks/engine_contract.py --url http://127.0.0.1:8000      # local, two workers of verl, a SkyRL server
    python benchmarks/engine_contract.py --engines local --steps 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from _record import record

ENGINES = ("local", "verl", "tinker")
STEPS = 6
BOUND = 2e-3
"""Nats. Nano's logits are large, so that float32 of another library is 1e-4 away."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=2, help="of verl")
    parser.add_argument("--url", default="", help="a server of the Tinker API that serves nano's folder")
    options = parser.parse_args()

    from gongfu.engine.check import check
    from gongfu.engine.local import LocalEngine
    from gongfu.engine.models import resolve_model

    model = resolve_model("nano")
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def local(name: str) -> LocalEngine:
            return LocalEngine(model, store=Path(folder) / name, threads=1)

        for name in options.engines:
            engine: Any = local(name)
            if name == "verl":
                from gongfu.engine.verl import VerlEngine

                engine = VerlEngine(engine, workers=options.workers)
            if name == "tinker":
                from gongfu.engine.tinker import TinkerEngine

                engine = TinkerEngine(model, store=Path(folder) / name, base_model=str(model), url=options.url)
            started = time.perf_counter()
            try:
                report = check(engine, reference=local(f"{name} reference"), steps=options.steps, tolerance=BOUND)
            finally:
                engine.close()
            seconds = round(time.perf_counter() - started, 1)
            found[name] = {"max_logprob_diff": report.max_logprob_diff, "steps": report.steps, "check_s": seconds}
            print(report, flush=True)
    full = set(options.engines) == set(ENGINES) and options.steps >= STEPS
    record("engine_contract", {"engines": found, "workers": options.workers, "model": "nano"}, full=full)


if __name__ == "__main__":
    main()
