"""An engine that trains on verl's workers.

The driver holds the base too: it samples with the adapter as last published, unless vLLM servers do, and reads and writes
checkpoints. These are the local engine's own, so that a run can go on with another engine or another number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from gongfu.core.errors import EngineError
from gongfu.core.records import Row
from gongfu.engine.linear import Plain
from gongfu.engine.local.adapters import AdapterState
from gongfu.engine.local.engine import LocalEngine
from gongfu.engine.protocol import Capability, LoraSpec, LossFn, OptimParams, Sample, SampleRequest
from gongfu.engine.verl.group import Device, WorkerGroup
from gongfu.engine.vllm.sampler import VllmSampler


class VerlEngine:
    """Training on `workers` ranks (Ray, FSDP2), one LoRA adapter; see `gongfu.engine.protocol.Engine`.

    `driver`: a new local engine, whose model the workers load too.
    `sampler`: servers that sample in the driver's place.
    `device`: cpu, or cuda with one GPU a worker. `ray_address`: a running Ray cluster; empty = one started here, with CPUs on
    the loopback interface. `timeout`: seconds that a call of the workers may take. A worker that dies or hangs is an
    EngineError, as is every later call: a step is never applied twice or half, the run resumes from its last checkpoint.
    """

    capabilities: frozenset[Capability] = frozenset(
        (
            Capability.TRAIN,
            Capability.CHOOSE,
            Capability.PREFIX_CACHE,
            Capability.BASE,
            Capability.TEMPERATURE,
            Capability.CLIP,
            Capability.OVERLAP,
        )
    )

    def __init__(
        self,
        driver: LocalEngine,
        *,
        sampler: VllmSampler | None = None,
        workers: int = 2,
        device: Device = "cpu",
        micro_batch_tokens: int = 4096,
        timeout: float = 600.0,
        ray_address: str = "",
    ) -> None:
        self.workers = workers
        self.device: Device = device
        self.micro_batch_tokens, self.timeout, self.ray_address = micro_batch_tokens, timeout, ray_address
        self._driver, self._sampler = driver, sampler
        self.tokenizer = self._driver.tokenizer
        self._adapter = ""
        self._spec: LoraSpec | None = None
        self._group: WorkerGroup | None = None
        self._steps = 0
        self._pending = False
        """Gradients wait for a step."""

    @property
    def version(self) -> int:
        return self._driver.version

    @property
    def half(self) -> bool:
        """Whether the base is computed in bfloat16."""
        return self._driver.half

    def create_adapter(self, name: str, spec: LoraSpec) -> None:
        """Starts the workers. Raises EngineError for a second adapter, or what the model cannot have."""
        if self._adapter:
            raise EngineError(f"the verl engine holds one adapter, and {self._adapter!r} is there already")
        if spec.alpha != int(spec.alpha):
            raise EngineError(f"verl takes a whole number for a LoRA's alpha, got {spec.alpha}")
        self._driver.create_adapter(name, spec)
        self._group = WorkerGroup(
            self._driver.model,
            spec,
            workers=self.workers,
            device=self.device,
            half=self.half,
            longest=self.micro_batch_tokens,
            timeout=self.timeout,
            address=self.ray_address,
        )
        weights = self._driver.adapter_state(name).weights  # the workers start from the driver's numbers
        self._group.set_adapter({self._remote(key): value for key, value in weights.items()}, {})
        self._adapter, self._spec = name, spec
        self._publish()

    async def sample(self, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]:
        return await (self._sampler or self._driver).sample(requests)

    def logprobs(self, rows: Sequence[Row], *, adapter: str | None) -> list[Tensor]:
        group = self._ready(rows, adapter)
        plain = Plain(rows)
        return plain.fold(group.score(plain.sequences, base=adapter is None)) if rows else []

    def forward_backward(self, rows: Sequence[Row], loss: LossFn, *, adapter: str) -> dict[str, float]:
        """Scores the rows, differentiates the loss here and sends dL/dlogprob back: a forward pass more than natively."""
        if not rows:
            raise EngineError("forward_backward got no rows; skip the call when nothing is to be trained")
        group = self._ready(rows, adapter)
        plain = Plain(rows)
        coefficients, metrics = plain.gradients(loss, group.score(plain.sequences, base=False))
        group.backward(plain.sequences, coefficients)
        self._pending = True
        return metrics

    def optim_step(self, params: OptimParams, *, adapter: str) -> dict[str, float]:
        group = self._ready([], adapter)
        if not self._pending:
            raise EngineError(f"adapter {adapter!r} has no gradient; call forward_backward before optim_step")
        self._pending = False
        norm = group.step(params)
        if not math.isfinite(norm):
            raise EngineError(
                f"adapter {adapter!r}: the gradient norm is {norm} at step {self._steps}; gradients dropped, weights kept"
            )
        self._steps += 1
        return {"grad_norm": norm}

    def sync(self) -> int:
        if self._group is not None:
            self._fetch(optimizer=False)
        version = self._driver.sync()
        self._publish()
        return version

    def save(self, name: str) -> str:
        if self._pending:
            raise EngineError(f"adapter {self._adapter!r} holds gradients that no optim_step has used; save between steps")
        if self._group is not None:
            self._fetch(optimizer=True)
        return self._driver.save(name)

    def load(self, ref: str, *, weights_only: bool = False) -> None:
        self._driver.load(ref, weights_only=weights_only)
        if self._group is None:
            return
        state = self._driver.adapter_state(self._adapter)
        self._group.set_adapter(
            {self._remote(key): value for key, value in state.weights.items()},
            {f"{self._remote(key.split('|')[0])}|{key.split('|')[1]}": value for key, value in state.moments.items()},
        )
        self._steps, self._pending = state.steps, False
        self._publish()

    def stats(self) -> dict[str, float]:
        """Tokens that were sampled; see `LocalEngine.stats` and `VllmSampler.stats`."""
        return {**self._driver.stats(), **(self._sampler.stats() if self._sampler else {})}

    @property
    def worker_pids(self) -> list[int]:
        return self._group.pids if self._group else []

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        if self._sampler is not None:
            self._sampler.close()
        self._driver.close()

    def _ready(self, rows: Sequence[Row], adapter: str | None) -> WorkerGroup:
        self._driver.check_rows(rows)
        if self._group is None:
            raise EngineError("the verl engine starts its workers with their adapter: call create_adapter first")
        if adapter not in (None, self._adapter):
            raise EngineError(f"no adapter {adapter!r}; the verl engine holds {self._adapter!r} alone")
        return self._group

    def _publish(self) -> None:
        """The driver's adapter to the servers."""
        if self._sampler is not None and self._spec is not None:
            weights = self._driver.adapter_state(self._adapter).weights
            self._sampler.publish(self._adapter, weights, self._spec, self.version)

    def _fetch(self, *, optimizer: bool) -> None:
        """The workers' adapter into the driver's, which serves the published one still."""
        assert self._group is not None
        weights, moments = self._group.adapter(optimizer=optimizer)
        local = {self._remote(key): key for key in self._driver.adapter_state(self._adapter).weights}
        found = {f"{local[name]}|{moment}": v for (name, _, moment), v in ((k.partition("|"), v) for k, v in moments.items())}
        state = AdapterState({local[name]: value for name, value in weights.items()}, found, self._steps)
        self._driver.set_adapter_state(self._adapter, state)

    def _remote(self, key: str) -> str:
        """PEFT's name of a weight: "layers.0.up_proj.lora_A" -> "base_model.model.model.layers. ... .lora_A.default.weight"."""
        return f"base_model.model.{self._driver.backbone}.{key}.default.weight"
