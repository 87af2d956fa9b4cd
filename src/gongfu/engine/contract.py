"""The rules of an engine, and how each is tried. `gongfu.engine.check` goes through them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.core.seeds import rng_for
from gongfu.engine.protocol import Capability, Engine, LoraSpec, OptimParams, Sample, SampleRequest

if TYPE_CHECKING:
    from torch import Tensor

RULES = {
    "works": "nothing that is asked for by the protocol raises",
    "shape": "log-probs are finite float32 tensors on the CPU, one a row in order, one value a scored token, none above 0",
    "batch": "a row's log-probs do not depend on the rows beside it",
    "fresh": "a new adapter changes nothing",
    "base": "without an adapter the frozen base is scored, whatever was trained",
    "trains": "an optimiser step moves the log-probs of its adapter the way the loss says, and says its gradient norm",
    "accumulates": "two calls before a step are one call with both",
    "isolation": "training one adapter leaves the other as it is",
    "sampler": "the sampler's log-probs are the scorer's, at the request's temperature",
    "seed": "the same request gives the same response",
    "stale": "what was trained reaches the sampler at sync and not before, with a version that rises",
    "requests": "n samples, stop tokens, greedy answers, sessions as asked; a draft or `until` changes nothing that is read",
    "choices": "a chosen response has the log-probs that the scorer gives it among its list, and alone if it says those",
    "overlap": "what is sampled while another thread trains is what is sampled at rest",
    "save": "after load everything goes on as after save: log-probs, samples, version, and the next optimiser step",
    "refuses": "unknown adapters, empty prompts, losses that are no scalar and calls without rows are EngineErrors",
    "undeclared": "what is not among the capabilities is refused with an EngineError",
    "reference": "after the same steps of two roles the log-probs are those of the reference",
}
"""What is checked, by the name of the finding."""

ROLES = ("check-agent", "check-writer")
_SPEC = LoraSpec(rank=4, alpha=32.0)
_STEP = OptimParams(lr=1e-3)
_SENTENCE = (
    "You open the drawer 3 and see a red apple, 2 mugs and nothing else. Then: go to the shelf! click[buy now] Yes / no?"
)


@runtime_checkable
class _Restorable(Protocol):
    def set_adapter_state(self, name: str, state: Any) -> None: ...


@dataclass
class Contract:
    """A new engine, beside a reference if there is one, and what was found out about it."""

    engine: Engine
    reference: Engine | None
    tolerance: float
    seed: int
    findings: list[str] = field(default_factory=list)
    worst: float | None = None

    def run(self, steps: int) -> None:
        first, second = self.roles
        with self.rule("works"):
            for engine in self.engines:
                for number, role in enumerate(dict.fromkeys(self.roles)):
                    engine.create_adapter(role, replace(_SPEC, seed=number))
                engine.sync()
        if self.findings:
            return  # nothing else could be said
        rows = self.rows(8, "rows")
        for rule, test in (
            ("shape", lambda: self._shape(rows, first)),
            ("batch", lambda: self._batch(rows, first)),
            ("fresh", lambda: self._fresh(rows, first)),
            ("reference", lambda: self._compare(rows, steps)),
            ("base", lambda: self._base(rows, first)),
            ("trains", lambda: self._trains(rows, first)),
            ("accumulates", lambda: self._accumulates(rows, first)),
            ("isolation", lambda: self._isolation(rows, first, second)),
            ("sampler", lambda: self._sampler(first)),
            ("stale", lambda: self._stale(rows, first)),
            ("requests", lambda: self._requests(first)),
            ("choices", lambda: self._choices(first)),
            ("overlap", lambda: self._overlap(rows, first)),
            ("save", lambda: self._save(rows, first)),
            ("refuses", lambda: self._refuses(rows, first)),
        ):
            with self.rule(rule):
                test()

    # ------------------------------------------------------------------ what is checked

    def _shape(self, rows: Sequence[Row], role: str) -> None:
        import torch

        found = self.engine.logprobs(rows, adapter=role)
        self.expect(len(found) == len(rows), "shape", f"{len(found)} tensors for {len(rows)} rows")
        for row, values in zip(rows, found, strict=False):
            right = values.shape == (row.targets,) and values.dtype == torch.float32 and values.device.type == "cpu"
            what = f"{tuple(values.shape)} {values.dtype} on {values.device} for {row.targets} scored tokens"
            self.expect(right and bool(torch.isfinite(values).all()) and bool((values <= 1e-6).all()), "shape", what)

    def _batch(self, rows: Sequence[Row], role: str) -> None:
        together = self.engine.logprobs(rows, adapter=role)
        alone = [self.engine.logprobs([row], adapter=role)[0] for row in rows]
        backwards = self.engine.logprobs(rows[::-1], adapter=role)[::-1]
        self.equal(together, alone, "batch", "rows scored together and one by one")
        self.equal(together, backwards, "batch", "rows in another order")

    def _fresh(self, rows: Sequence[Row], role: str) -> None:
        if Capability.BASE in self.engine.capabilities:
            same = self.engine.logprobs(rows, adapter=None)
            self.equal(self.engine.logprobs(rows, adapter=role), same, "fresh", "a new adapter and the base")

    def _compare(self, rows: Sequence[Row], steps: int) -> None:
        """Two roles take turns within a step; their rows are of many lengths, with gaps."""
        batches = [self.rows(7, f"batch {k}") for k in range(3)]
        start = getattr(self.engine, "adapter_state", None)
        if start and isinstance(self.reference, _Restorable):  # an engine may draw its own first weights
            for role in dict.fromkeys(self.roles):
                self.reference.set_adapter_state(role, start(role))
        norms: list[list[float]] = [[] for _ in self.engines]
        for k in range(steps):
            for number, engine in enumerate(self.engines):
                for place, role in enumerate(self.roles):
                    engine.forward_backward(batches[(k + place) % 3], _linear if place == 0 else _squared, adapter=role)
                for role in dict.fromkeys(self.roles):
                    norms[number].append(engine.optim_step(self.step, adapter=role)["grad_norm"])
        for engine in self.engines:
            engine.sync()
        if self.reference is None:
            return
        differences = []
        for role in dict.fromkeys(self.roles):
            ours, theirs = (engine.logprobs(rows, adapter=role) for engine in self.engines)
            differences.append(max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)))
        self.worst = worst = max(differences)
        self.expect(worst <= self.tolerance, "reference", f"{worst:.3g} nats away after {steps} steps")
        off = max(abs(a - b) / max(b, 1e-9) for a, b in zip(*norms, strict=True))
        self.expect(off < 0.01, "reference", f"gradient norms differ by {off:.1%}")

    def _base(self, rows: Sequence[Row], role: str) -> None:
        """After the training of `_compare`."""
        if Capability.BASE not in self.engine.capabilities:
            self.refused("undeclared", lambda: self.engine.logprobs(rows, adapter=None), "scoring without an adapter")
            return
        before = self.engine.logprobs(rows, adapter=None)
        self.train(rows, role)
        self.equal(self.engine.logprobs(rows, adapter=None), before, "base", "the base before and after training")
        self.differ(self.engine.logprobs(rows, adapter=role), before, "base", "the base and a trained adapter")

    def _trains(self, rows: Sequence[Row], role: str) -> None:
        row = rows[0]
        before = float(self.engine.logprobs([row], adapter=role)[0].sum())
        raises: Any = lambda part, lps: (-lps[0].sum(), {"check/rows": float(len(part))})  # noqa: E731
        result = [self.train([row], role, raises) for _ in range(5)][-1]  # what the optimiser remembers of other steps fades
        after = float(self.engine.logprobs([row], adapter=role)[0].sum())
        self.expect(after > before, "trains", f"log-prob {before:.4f} -> {after:.4f} after five steps that should raise it")
        self.expect(result.get("grad_norm", 0.0) > 0, "trains", f"optim_step returned {result}")

    def _accumulates(self, rows: Sequence[Row], role: str) -> None:
        """From the same state: the same gradient norm, and the same weights."""
        ref = self.engine.save("check-accumulates")
        one = self.train(rows, role)["grad_norm"]
        whole = self.engine.logprobs(rows, adapter=role)
        self.engine.load(ref)
        self.engine.forward_backward(rows[:3], _linear, adapter=role)
        two = self.train(rows[3:], role)["grad_norm"]
        self.expect(abs(one - two) <= 0.01 * one, "accumulates", f"gradient norm {two:.5g} in two calls, {one:.5g} in one")
        self.equal(self.engine.logprobs(rows, adapter=role), whole, "accumulates", "trained in two calls and in one")

    def _isolation(self, rows: Sequence[Row], role: str, other: str) -> None:
        if role == other:
            self.refused("undeclared", lambda: self.engine.create_adapter("check-third", _SPEC), "a second adapter")
            return
        before = self.engine.logprobs(rows, adapter=other)
        self.train(rows, role)
        self.equal(self.engine.logprobs(rows, adapter=other), before, "isolation", f"{other} before and after training {role}")

    def _sampler(self, role: str) -> None:
        self.engine.sync()
        warm = 0.7 if Capability.TEMPERATURE in self.engine.capabilities else 1.0
        requests = [self.request(k, role, temperature=1.0 if k % 2 else warm) for k in range(4)]
        samples = self.sample(requests)
        for request, sample in zip(requests, samples, strict=True):
            (scored,) = self.engine.logprobs([_row_of(request, sample)], adapter=role)
            self.close(sample.logprobs, scored.tolist(), "sampler", f"at temperature {request.temperature}")
        again = self.sample(requests)
        self.expect([s.tokens for s in again] == [s.tokens for s in samples], "seed", "other tokens for the same seeds")

    def _stale(self, rows: Sequence[Row], role: str) -> None:
        request = self.request(9, role)
        version = self.engine.version
        (before,) = self.sample([request])
        for _ in range(3):
            self.train(rows, role)
        (still,) = self.sample([request])
        self.expect(still.version == version == before.version, "stale", "the version changed before sync")
        self.close(still.logprobs, before.logprobs, "stale", "the sampler moved before sync")
        self.expect(self.engine.sync() == self.engine.version > version, "stale", "sync did not raise the version")
        (after,) = self.sample([request])
        (scored,) = self.engine.logprobs([_row_of(request, after)], adapter=role)
        self.close(after.logprobs, scored.tolist(), "stale", "the sampler after sync and the scorer")
        self.expect(after.version == self.engine.version, "stale", f"samples say version {after.version}")

    def _requests(self, role: str) -> None:
        asked = self.request(13, role)
        answers = asyncio.run(self.engine.sample([replace(asked, n=3, max_tokens=4), replace(asked, temperature=0.0)]))
        (three, (greedy, *_)) = [answer for answer in answers if not isinstance(answer, EngineError)]
        self.expect(len(three) == 3 and all(len(s.tokens) <= 4 for s in three), "requests", f"{len(three)} samples for n = 3")
        stop = greedy.tokens[0]
        (stopped,) = self.sample([replace(asked, temperature=0.0, stop=(stop,))])
        self.expect(stopped.tokens == (stop,) and stopped.stop == "stop", "requests", f"went on after a stop token: {stopped}")
        (drafted,) = self.sample([replace(asked, temperature=0.0, draft=greedy.tokens[:2] + asked.prompt[:2])])
        self.expect(drafted.tokens == greedy.tokens, "requests", "answers otherwise with a draft")
        (read,) = self.sample([replace(asked, temperature=0.0, until=greedy.tokens[:2])])
        whole = len(read.tokens) >= min(2, len(greedy.tokens)) and greedy.tokens[: len(read.tokens)] == read.tokens
        self.expect(whole, "requests", f"`until` changed what is read: {read.tokens} for {greedy.tokens}")
        session = replace(asked, temperature=0.0, session="check")
        (first,) = self.sample([session])
        self.train(self.rows(4, "session"), role)
        self.engine.sync()
        longer = replace(session, prompt=session.prompt + first.tokens + session.prompt[:3])
        (with_it,), (without,) = self.sample([longer]), self.sample([replace(longer, session=None)])
        self.expect(with_it.tokens == without.tokens, "requests", "a session answers otherwise than no session after sync")
        self.close(with_it.logprobs, without.logprobs, "requests", "a session after sync")

    def _choices(self, role: str) -> None:
        request = self.request(11, role)
        ids = request.prompt
        listed = (ids[:3], ids[:2] + ids[5:6], ids[4:5], ids[6:10])
        request = replace(request, choices=listed)
        if Capability.CHOOSE not in self.engine.capabilities:
            (answer,) = asyncio.run(self.engine.sample([request]))
            self.expect(isinstance(answer, EngineError), "undeclared", "a list to choose from was taken")
            return
        self.engine.sync()
        (sample,) = self.sample([request])
        self.expect(sample.choice is not None and sample.tokens == listed[sample.choice], "choices", "not one of the list")
        (scored,) = self.engine.logprobs([_row_of(request, sample)], adapter=role)
        self.close(sample.logprobs, scored.tolist(), "choices", "a chosen response")
        if sample.drawn_from is not None and sample.drawn_from.alone is not None:
            (alone,) = self.engine.logprobs([replace(_row_of(request, sample), choices=())], adapter=role)
            self.close(sample.drawn_from.alone, alone.tolist(), "choices", "a chosen response as a generated one")

    def _overlap(self, rows: Sequence[Row], role: str) -> None:
        if Capability.OVERLAP not in self.engine.capabilities:
            return
        self.engine.sync()
        requests = [self.request(20 + k, role) for k in range(4)]
        at_rest = self.sample(requests)
        with ThreadPoolExecutor(1) as thread:
            sampling = thread.submit(self.sample, requests)
            for _ in range(3):
                self.train(rows, role)
            meanwhile = sampling.result()
        self.expect([s.tokens for s in meanwhile] == [s.tokens for s in at_rest], "overlap", "other tokens for the same seeds")
        for one, other in zip(meanwhile, at_rest, strict=True):
            self.close(one.logprobs, other.logprobs, "overlap", "sampled meanwhile and at rest")

    def _save(self, rows: Sequence[Row], role: str) -> None:
        self.engine.sync()
        ref, version = self.engine.save("check-save"), self.engine.version
        saved = self.engine.logprobs(rows, adapter=role)
        self.train(rows, role)
        went_on = self.engine.logprobs(rows, adapter=role)
        self.engine.sync()
        self.engine.load(ref)
        self.expect(self.engine.version == version, "save", f"version {self.engine.version} after load, {version} when saved")
        self.equal(self.engine.logprobs(rows, adapter=role), saved, "save", "log-probs when saved and after load")
        request = self.request(5, role)
        (sample,) = self.sample([request])
        (scored,) = self.engine.logprobs([_row_of(request, sample)], adapter=role)
        self.close(sample.logprobs, scored.tolist(), "save", "the sampler after load and the scorer")
        self.train(rows, role)
        self.equal(self.engine.logprobs(rows, adapter=role), went_on, "save", "the next step after save and after load")

    def _refuses(self, rows: Sequence[Row], role: str) -> None:
        engine = self.engine
        self.refused("refuses", lambda: engine.logprobs(rows, adapter="check-nobody"), "an unknown adapter")
        self.refused("refuses", lambda: engine.forward_backward([], _linear, adapter=role), "a call without rows")
        if Capability.TEMPERATURE not in engine.capabilities:
            warm = [replace(rows[0], temperature=0.7)]
            self.refused("undeclared", lambda: engine.logprobs(warm, adapter=role), "scoring at temperature 0.7")
        if Capability.CLIP not in engine.capabilities:
            engine.forward_backward(rows[:1], _linear, adapter=role)
            self.refused("undeclared", lambda: engine.optim_step(OptimParams(lr=0.0), adapter=role), "a bound on the gradient")
            self.train(rows[:1], role)
        vector: Any = lambda part, lps: (lps[0], {})  # noqa: E731
        self.refused("refuses", lambda: engine.forward_backward(rows[:1], vector, adapter=role), "a loss that is no scalar")
        (answer,) = asyncio.run(engine.sample([replace(self.request(1, role), prompt=())]))
        self.expect(isinstance(answer, EngineError), "refuses", "an empty prompt was answered")

    # ------------------------------------------------------------------ how it is said

    @contextmanager
    def rule(self, name: str) -> Iterator[None]:
        """What raises unexpectedly is a finding too; the other rules are gone through all the same."""
        try:
            yield
        except Exception as e:  # an engine may raise anything
            self.findings.append(f"[works] while checking {name!r}: {type(e).__name__}: {e}")

    def expect(self, right: bool, rule: str, what: str) -> None:
        if not right:
            self.findings.append(f"[{rule}] {what} ({RULES[rule]})")

    def close(self, found: Sequence[float], wanted: Sequence[float], rule: str, what: str) -> None:
        if len(found) != len(wanted):
            self.expect(False, rule, f"{what}: {len(found)} values and {len(wanted)}")
            return
        error = max((abs(a - b) for a, b in zip(found, wanted, strict=True)), default=0.0)
        self.expect(error <= self.tolerance, rule, f"{what}: {error:.3g} nats apart")

    def equal(self, a: Sequence[Tensor], b: Sequence[Tensor], rule: str, what: str) -> None:
        self.expect((error := _apart(a, b)) <= self.tolerance, rule, f"{what}: {error:.3g} nats apart")

    def differ(self, a: Sequence[Tensor], b: Sequence[Tensor], rule: str, what: str) -> None:
        self.expect(_apart(a, b) > self.tolerance, rule, f"{what} score the same")

    def refused(self, rule: str, call: Callable[[], Any], what: str) -> None:
        try:
            call()
        except EngineError:
            return
        except Exception as e:
            self.expect(False, rule, f"{what} raises {type(e).__name__}, no EngineError")
            return
        self.expect(False, rule, f"{what} was accepted")

    # ------------------------------------------------------------------ what it is tried with

    @property
    def engines(self) -> list[Engine]:
        return [self.engine, *([self.reference] if self.reference else [])]

    @property
    def step(self) -> OptimParams:
        return replace(_STEP, clip=1.0 if Capability.CLIP in self.engine.capabilities else 0.0)

    @property
    def roles(self) -> tuple[str, str]:
        """Two adapters, or one that plays both roles where the engine holds one."""
        return ROLES if Capability.ADAPTERS in self.engine.capabilities else (ROLES[0], ROLES[0])

    def ids(self) -> list[int]:
        tokenizer = self.engine.tokenizer
        return sorted({*tokenizer.encode(_SENTENCE)} - {*tokenizer.stop_ids})

    def rows(self, count: int, name: str) -> list[Row]:
        rng = rng_for(self.seed, purpose=f"engine check {name}")
        ids = self.ids()
        rows = []
        for i in range(count):
            length = rng.randrange(4, 60)
            mask = (False, True, *(rng.random() < 0.4 for _ in range(length - 2)))
            rows.append(Row(f"{name}/{i}", tuple(rng.choices(ids, k=length)), mask))
        return rows

    def request(self, k: int, role: str, *, temperature: float = 1.0) -> SampleRequest:
        rng: random.Random = rng_for(self.seed, purpose="engine check prompt", step=k)
        return SampleRequest(tuple(rng.choices(self.ids(), k=12 + k)), role, seed=k, max_tokens=8, temperature=temperature)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        answers = asyncio.run(self.engine.sample(requests))
        for answer in answers:
            if isinstance(answer, EngineError):
                raise answer
        return [answer[0] for answer in answers if not isinstance(answer, EngineError)]

    def train(self, rows: Sequence[Row], role: str, loss: Any = None) -> dict[str, float]:
        self.engine.forward_backward(rows, loss or _linear, adapter=role)
        return self.engine.optim_step(self.step, adapter=role)


def _linear(rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Rows pull in different directions."""
    import torch

    signs = [1.0 if int(row.id.rpartition("/")[2]) % 2 else -0.5 for row in rows]
    return torch.stack([sign * lp.sum() for sign, lp in zip(signs, logprobs, strict=True)]).sum() / 100, {}


def _squared(rows: Sequence[Row], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Not linear in the log-probs: its coefficients depend on where they are."""
    import torch

    return torch.stack([(lp + 3.0).square().mean() for lp in logprobs]).sum() / 10, {}


def _row_of(request: SampleRequest, sample: Sample) -> Row:
    start = len(request.prompt)
    mask = (False,) * start + (True,) * len(sample.tokens)
    choices = () if sample.drawn_from is None else (replace(sample.drawn_from, start=start),)
    return Row("sampled/0", (*request.prompt, *sample.tokens), mask, request.temperature, choices=choices)


def _apart(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))
