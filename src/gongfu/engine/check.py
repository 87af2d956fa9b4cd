"""Whether an engine keeps the contract: scores, samples and trains with it a little.

from gongfu.engine.check import check
print(check(engine, reference=LocalEngine(folder, store=store)))         # raises EngineError with all findings

For engines that train. Give it a new one and throw it away afterwards: it holds other adapters then, trained on noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from gongfu.core.errors import EngineError
from gongfu.engine.contract import RULES as RULES
from gongfu.engine.contract import Contract
from gongfu.engine.protocol import Engine


@dataclass(frozen=True, slots=True)
class Report:
    """What was found."""

    engine: str
    findings: tuple[str, ...]
    """Each begins with the rule it breaks, a key of `RULES`."""
    steps: int
    """Rounds of the comparison with the reference: each role takes one optimiser step in each."""
    max_logprob_diff: float | None = None
    """Largest difference to the reference after these, nats."""

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        near = "" if self.max_logprob_diff is None else f", at most {self.max_logprob_diff:.2g} from the reference"
        lines = [f"engine {self.engine}: {self.steps} steps of two roles{near}", *(f"  {finding}" for finding in self.findings)]
        return "\n".join(lines if self.findings else [*lines, "  conforms"])


def check(
    engine: Engine,
    *,
    reference: Engine | None = None,
    steps: int = 6,
    tolerance: float = 1e-3,
    seed: int = 0,
    raises: bool = True,
) -> Report:
    """Go through `RULES` on a new engine.

    `reference`: a new engine on the same model that takes the same steps. `tolerance`: largest difference of log-probs (nats)
    that counts as equal; low precision needs more. Raises EngineError with all findings, unless `raises` is off.
    """
    contract = Contract(engine, reference, tolerance, seed)
    contract.run(steps)
    report = Report(type(engine).__name__, tuple(contract.findings), steps, contract.worst)
    if raises and not report.ok:
        raise EngineError(f"this engine breaks the protocol\n{report}")
    return report
