"""verl's workers as a Ray worker group: started, called with dead-lines, and taken down."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from gongfu.core.cluster import Cluster, prepare
from gongfu.core.errors import EngineError, MissingExtra
from gongfu.core.records import Row
from gongfu.engine.protocol import LoraSpec, OptimParams

Device = Literal["cpu", "cuda"]

_START_S = 600.0
"""Seconds that the workers have at least to start and load the model."""
_ROOM_S = 10.0
"""Seconds to wait for CPUs or GPUs that another group has just given back."""
_VARIABLES = ("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")
"""Of the environment, what the workers need."""


class WorkerGroup:
    """Ranks that train one LoRA adapter on one base together.

    Every call has `timeout` seconds. A worker that dies or hangs ends the group: gradients that were accumulated are lost, so
    nothing is tried again. Raises EngineError then, and for every later call.
    """

    def __init__(
        self,
        model: Path,
        spec: LoraSpec,
        *,
        workers: int,
        device: Device,
        half: bool,
        longest: int,
        timeout: float,
        address: str,
    ) -> None:
        _environment(device, address)
        try:
            import ray  # pyright: ignore[reportMissingImports]
            from verl.single_controller.ray import (  # pyright: ignore[reportMissingImports]
                RayClassWithInitArgs,
                RayResourcePool,
                RayWorkerGroup,
            )
        except ImportError as e:
            raise MissingExtra(f"the verl engine ({e})", "verl") from e
        if device == "cpu":
            import gongfu.engine.verl.cpu_platform  # noqa: F401  # if verl was imported before the environment named it
        from gongfu.engine.verl.worker import Worker

        self._ray, self._timeout, self._longest, self._size = ray, timeout, longest, workers
        self._broken = ""
        self._closed = False
        self._cluster: Cluster | None = None
        self._group: Any = None
        self.pids: list[int] = []
        """Process ids of the workers."""
        gpu = device != "cpu"
        self._pool = RayResourcePool(process_on_nodes=[workers], use_gpu=gpu, max_colocate_count=1)
        try:
            own = None if gpu else max(os.cpu_count() or 1, workers + 1)
            self._cluster = Cluster(address=address, cpus=own, variables=_VARIABLES)
            self._expect_room(gpu)
            config = _training_config(model, spec, half=half, longest=longest)
            arguments = RayClassWithInitArgs(ray.remote(Worker), config=config, timeout=int(timeout + _START_S))
            # Not packed into one node: a cluster may have its GPUs on several.
            self._group = RayWorkerGroup(self._pool, arguments, bin_pack=False, use_gpu=gpu, device_name=device)
            self.pids = self._call("begin", timeout=max(timeout, _START_S))
        except Exception as e:
            self.close()
            raise EngineError(f"the verl engine could not start {workers} workers on {device}: {e}") from e

    def score(self, rows: Sequence[Row], *, base: bool) -> list[Tensor]:
        """Log-probs of each row's scored tokens."""
        shares = self._dealt(rows)
        longest = self._micro_batch(rows)
        parts = self._call("score", [[_plain(rows[i]) for i in share] for share in shares], longest, base)
        found: dict[int, Tensor] = {}
        for share, values in zip(shares, parts, strict=True):
            found.update(zip(share, values, strict=True))
        return [found[i] for i in range(len(rows))]

    def backward(self, rows: Sequence[Row], coefficients: Sequence[Tensor]) -> None:
        """Accumulate the gradient of Σ c_t log p_t."""
        shares = self._dealt(rows)
        seen: set[int] = set()
        weights = []
        for share in shares:  # rows that fill up a share have been counted already
            weights.append([coefficients[i] * 0 if i in seen else coefficients[i] for i in share])
            seen.update(share)
        self._call("backward", [[_plain(rows[i]) for i in share] for share in shares], weights, self._micro_batch(rows))

    def step(self, params: OptimParams) -> float:
        settings = {key: value for key, value in asdict(params).items() if key != "clip"}
        return self._call("step", settings, params.clip)[0]

    def adapter(self, *, optimizer: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self._call("adapter", optimizer)[0]

    def set_adapter(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        self._call("set_adapter", self._ray.put(dict(weights)), self._ray.put(dict(moments)))

    def close(self) -> None:
        """End the workers, and Ray where this group started it."""
        if self._closed:
            return
        self._closed = True
        for worker in self._group.workers if self._group else ():
            self._ray.kill(worker)
        for pid in self.pids if self._cluster and self._cluster.here else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # one that hangs does not hear Ray
        for placed in self._pool.pgs or ():
            self._ray.util.remove_placement_group(placed)
        if self._cluster:
            self._cluster.close()
        self._broken = self._broken or "the engine was closed"

    def _expect_room(self, gpu: bool) -> None:
        """Where the cluster lacks something Ray would wait for it without an end."""
        what = "GPU" if gpu else "CPU"
        deadline = time.monotonic() + _ROOM_S  # Ray takes a moment to see what was given back
        while (free := self._ray.available_resources().get(what, 0)) < self._size:
            if time.monotonic() > deadline:
                raise EngineError(f"Ray has {free:.0f} free {what}s; set engine.workers to that, or free some")
            time.sleep(0.2)

    def _call(self, method: str, *arguments: Any, timeout: float = 0.0) -> list[Any]:
        """Every rank's answer. A list is dealt out to the ranks, anything else goes to all."""
        timeout = timeout or self._timeout
        if self._broken:
            raise EngineError(f"the verl engine cannot go on: {self._broken}; resume the run from its last checkpoint")
        calls = []
        for rank, worker in enumerate(self._group.workers):
            own = [a[rank] if isinstance(a, list) else a for a in arguments]
            calls.append(getattr(worker, method).remote(*own))
        try:
            return self._ray.get(calls, timeout=timeout)
        except self._ray.exceptions.GetTimeoutError:
            self._broken = f"its workers did not answer within {timeout:.0f} s in {method}"
        except self._ray.exceptions.RayActorError as e:
            self._broken = f"a worker died in {method} ({str(e).splitlines()[0]})"
        except self._ray.exceptions.RayError as e:
            self._broken = f"a worker failed in {method}: {e}"
        raise EngineError(f"the verl engine cannot go on: {self._broken}; resume the run from its last checkpoint")

    def _dealt(self, rows: Sequence[Row]) -> list[list[int]]:
        """Row numbers of each rank: as many for each, long and short ones mixed; the last row fills up what is missing."""
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i].tokens))
        order += [order[-1]] * (-len(order) % self._size)
        return [order[rank :: self._size] for rank in range(self._size)]

    def _micro_batch(self, rows: Sequence[Row]) -> int:
        """Tokens of a micro-batch: at least the longest row."""
        return max(self._longest, *(len(row.tokens) for row in rows))


def _plain(row: Row) -> tuple[tuple[int, ...], tuple[bool, ...], float]:
    return row.tokens, row.mask, row.temperature


def _environment(device: Device, address: str) -> None:
    """Before Ray and verl are imported, which read this once. What the user has set stays."""
    prepare(loopback=device == "cpu" and not address)
    wanted = {"HF_HUB_OFFLINE": "1"}
    if device == "cpu":
        wanted |= {
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": "gongfu.engine.verl.cpu_platform",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def _training_config(model: Path, spec: LoraSpec, *, half: bool, longest: int) -> Any:
    """verl's settings. Weights and adapter are kept in float32; a half-precision base is computed in bfloat16."""
    from verl.trainer.config import CheckpointConfig  # pyright: ignore[reportMissingImports]
    from verl.workers.config import (  # pyright: ignore[reportMissingImports]
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )

    precision = {"param_dtype": "bf16" if half else "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(model),
            lora_rank=spec.rank,
            lora_alpha=int(spec.alpha),
            target_modules=list(spec.targets),
            use_remove_padding=False,
            enable_gradient_checkpointing=half,
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            dtype="bfloat16" if half else "float32",
            mixed_precision=precision,
            use_torch_compile=False,
            use_remove_padding=False,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=longest,
            infer_max_token_len_per_gpu=longest,
        ),
        # Learning rate, moments and decay come with every step.
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10**6, lr_warmup_steps=0, weight_decay=0.0),
        checkpoint_config=CheckpointConfig(),
    )
