"""The engine contract: the local engine keeps it, and every way to break it is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gongfu.core.errors import EngineError
from gongfu.engine.check import RULES, check
from gongfu.engine.local import LocalEngine
from gongfu.engine.protocol import Capability
from support import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("model"))


def engine_of(model, tmp_path, kind=LocalEngine, **options):
    return kind(model, store=tmp_path / kind.__name__, threads=1, **options)


@pytest.mark.parametrize("fast", [True, False])
def test_the_local_engine_keeps_the_contract(model, tmp_path, fast):
    report = check(engine_of(model, tmp_path, fast=fast), reference=engine_of(model, tmp_path / "reference"))
    assert report.ok and report.max_logprob_diff < 1e-4 and report.steps > 6
    assert str(report).endswith("conforms")


class OneAdapter(LocalEngine):
    """Holds a single adapter, and says so."""

    capabilities = frozenset(LocalEngine.capabilities - {Capability.ADAPTERS})

    def create_adapter(self, name, spec):
        if len(list(self._adapters)):
            raise EngineError("this engine holds one adapter")
        super().create_adapter(name, spec)


def test_an_engine_with_one_adapter_plays_both_roles_on_it(model, tmp_path):
    report = check(
        engine_of(model, tmp_path, OneAdapter), reference=engine_of(model, tmp_path, type("Other", (OneAdapter,), {}))
    )
    assert report.ok and report.max_logprob_diff < 1e-4


class Crashes(LocalEngine):
    def save(self, name):
        raise OSError("no space left")


class Shuffles(LocalEngine):
    def logprobs(self, rows, *, adapter):
        return super().logprobs(rows, adapter=adapter)[::-1]


class LooksBeside(LocalEngine):
    def logprobs(self, rows, *, adapter):
        return [t - 0.01 * len(rows) for t in super().logprobs(rows, adapter=adapter)]


class BaseIsTrained(LocalEngine):
    def logprobs(self, rows, *, adapter):
        return super().logprobs(rows, adapter=adapter or "check-agent")


class NeverSteps(LocalEngine):
    def optim_step(self, params, *, adapter):
        return super().optim_step(replace(params, lr=1e-12), adapter=adapter)


class Forgets(LocalEngine):
    """Drops the gradients of an earlier call."""

    def forward_backward(self, rows, loss, *, adapter):
        self._adapters[adapter].optimizer.zero_grad()
        return super().forward_backward(rows, loss, adapter=adapter)


class TrainsAll(LocalEngine):
    def forward_backward(self, rows, loss, *, adapter):
        for name in ("check-agent", "check-writer"):
            found = super().forward_backward(rows, loss, adapter=name)
        return found

    def optim_step(self, params, *, adapter):
        found = super().optim_step(params, adapter="check-agent")
        super().optim_step(params, adapter="check-writer")
        return found


class ColdScores(LocalEngine):
    """The sampler reports log-probs of other temperatures than it samples at."""

    async def sample(self, requests):
        found = await super().sample(requests)
        return [
            a if isinstance(a, EngineError) else [replace(s, logprobs=tuple(v * 0.9 for v in s.logprobs)) for s in a]
            for a in found
        ]


class Dice(LocalEngine):
    async def sample(self, requests):
        self.thrown = getattr(self, "thrown", 0) + 1
        return await super().sample([replace(r, seed=r.seed + 1000 * self.thrown) for r in requests])


class NeverPublishes(LocalEngine):
    def sync(self):
        self.version += 1
        return self.version


class PublishesAtOnce(LocalEngine):
    def optim_step(self, params, *, adapter):
        found = super().optim_step(params, adapter=adapter)
        super().sync()
        return found


class HalfLoads(LocalEngine):
    """Without the optimiser's state."""

    def load(self, ref, *, weights_only=False):
        version = self.version
        super().load(ref, weights_only=True)
        self.version = min(version, self.version)


class TakesAnything(LocalEngine):
    def forward_backward(self, rows, loss, *, adapter):
        return super().forward_backward(rows, loss, adapter=adapter) if rows else {}


class Understates(LocalEngine):
    capabilities = frozenset(LocalEngine.capabilities - {Capability.CHOOSE})


class OtherSteps(LocalEngine):
    def optim_step(self, params, *, adapter):
        return super().optim_step(replace(params, lr=2 * params.lr), adapter=adapter)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Crashes, "works"),
        (Shuffles, "shape"),
        (LooksBeside, "batch"),
        (BaseIsTrained, "base"),
        (NeverSteps, "trains"),
        (Forgets, "accumulates"),
        (TrainsAll, "isolation"),
        (ColdScores, "sampler"),
        (Dice, "seed"),
        (NeverPublishes, "stale"),
        (PublishesAtOnce, "stale"),
        (HalfLoads, "save"),
        (TakesAnything, "refuses"),
        (Understates, "undeclared"),
        (OtherSteps, "reference"),
    ],
)
def test_every_breach_is_named(model, tmp_path, kind, rule):
    report = check(engine_of(model, tmp_path, kind), reference=engine_of(model, tmp_path / "reference"), raises=False)
    assert any(finding.startswith(f"[{rule}]") for finding in report.findings), report


def test_findings_are_raised_all_at_once(model, tmp_path):
    with pytest.raises(EngineError, match=r"(?s)breaks the protocol.*\[stale\]"):
        check(engine_of(model, tmp_path, NeverPublishes))
    assert all(RULES.values())
