"""The engine contract: the local engine keeps it, and for every rule there is an engine that breaks it and is found out."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gongfu.core.errors import EngineError
from gongfu.engine.check import RULES, check
from gongfu.engine.contract import ROLES
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
    assert report.ok and report.max_logprob_diff < 1e-4 and report.steps == 6
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

    def save(self, name):
        self.saved = self.version
        return super().save(name)

    def load(self, ref, *, weights_only=False):
        super().load(ref, weights_only=True)
        self.version = self.saved


class OldSampler(LocalEngine):
    """The sampler keeps the weights that it served before load."""

    def load(self, ref, *, weights_only=False):
        served = {name: dict(self._adapters[name].published) for name in ROLES}
        super().load(ref, weights_only=weights_only)
        for name, published in served.items():
            self._adapters[name].published = published
            self._adapters[name].publication += 1


class Warm(LocalEngine):
    """A new adapter is not new."""

    def create_adapter(self, name, spec):
        super().create_adapter(name, spec)
        for key, value in self._adapters[name].parameters.items():
            if key.endswith("lora_B"):
                value.data.fill_(0.05)


class Talks(LocalEngine):
    """Never stops."""

    async def sample(self, requests):
        return await super().sample([replace(r, stop=(0,)) for r in requests])


class Repeats(LocalEngine):
    """Says what was only a draft."""

    async def sample(self, requests):
        found = await super().sample(requests)
        for request, answer in zip(requests, found, strict=True):
            if request.draft:
                answer[0] = replace(answer[0], tokens=request.draft, logprobs=(-1.0,) * len(request.draft))
        return found


class Hasty(LocalEngine):
    """Ends at the first of several tokens."""

    async def sample(self, requests):
        return await super().sample([replace(r, stop=r.until[:1] or r.stop, until=()) for r in requests])


class MisremembersChoices(LocalEngine):
    async def sample(self, requests):
        found = await super().sample(requests)
        for answer in found:
            for i, s in enumerate(answer if isinstance(answer, list) else []):
                if s.drawn_from:
                    answer[i] = replace(s, drawn_from=replace(s.drawn_from, alone=(-1.0,) * len(s.tokens)))
        return found


class RaisesOther(LocalEngine):
    def logprobs(self, rows, *, adapter):
        if adapter == "check-nobody":
            raise KeyError(adapter)
        return super().logprobs(rows, adapter=adapter)


class TakesAnything(LocalEngine):
    def forward_backward(self, rows, loss, *, adapter):
        return super().forward_backward(rows, loss, adapter=adapter) if rows else {}


class Understates(LocalEngine):
    capabilities = frozenset(LocalEngine.capabilities - {Capability.CHOOSE})


class Tangled(LocalEngine):
    """Says that it may be sampled while it trains, and answers otherwise then."""

    capabilities = LocalEngine.capabilities | {Capability.OVERLAP}

    async def sample(self, requests):
        if threading.current_thread() is not threading.main_thread():
            requests = [replace(request, seed=request.seed + 1) for request in requests]
        return await super().sample(requests)


class OtherSteps(LocalEngine):
    def optim_step(self, params, *, adapter):
        return super().optim_step(replace(params, lr=2 * params.lr), adapter=adapter)


BREACHES = [
    (Crashes, "works", "no space left"),
    (Shuffles, "shape", ""),
    (LooksBeside, "batch", ""),
    (Warm, "fresh", ""),
    (BaseIsTrained, "base", ""),
    (NeverSteps, "trains", ""),
    (Forgets, "accumulates", ""),
    (TrainsAll, "isolation", ""),
    (ColdScores, "sampler", ""),
    (Dice, "seed", ""),
    (NeverPublishes, "stale", ""),
    (PublishesAtOnce, "stale", ""),
    (Talks, "requests", "stop token"),
    (Repeats, "requests", "with a draft"),
    (Hasty, "requests", "changed what is read"),
    (MisremembersChoices, "choices", "as a generated one"),
    (Tangled, "overlap", "other tokens"),
    (HalfLoads, "save", "the next step"),
    (OldSampler, "save", "the sampler after load"),
    (TakesAnything, "refuses", ""),
    (RaisesOther, "refuses", "KeyError"),
    (Understates, "undeclared", ""),
    (OtherSteps, "reference", ""),
]


@pytest.mark.parametrize(("kind", "rule", "what"), BREACHES)
def test_every_breach_is_named(model, tmp_path, kind, rule, what):
    report = check(engine_of(model, tmp_path, kind), reference=engine_of(model, tmp_path / "reference"), raises=False)
    assert any(finding.startswith(f"[{rule}]") and what in finding for finding in report.findings), report


def test_every_rule_has_its_breach():
    assert {rule for _, rule, _ in BREACHES} == set(RULES)


def test_findings_are_raised_all_at_once(model, tmp_path):
    with pytest.raises(EngineError, match=r"(?s)breaks the protocol.*\[stale\]"):
        check(engine_of(model, tmp_path, NeverPublishes))
