"""An engine on a server of the Tinker API: several LoRA adapters at once, sampled and trained there."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gongfu.core.errors import CheckpointError, EngineError
from gongfu.core.records import Row
from gongfu.engine.linear import Plain
from gongfu.engine.local.adapters import AdapterState
from gongfu.engine.local.choices import chosen
from gongfu.engine.local.scorer import check_rows
from gongfu.engine.protocol import Capability, LoraSpec, LossFn, OptimParams, Sample, SampleRequest
from gongfu.engine.requests import refusal
from gongfu.engine.tinker.client import Client
from gongfu.engine.tinker.dialect import Dialect, scoring_data, training_data
from gongfu.engine.tokenizer import HFTokenizer

ALPHA = 32.0
"""What these servers take for a LoRA's alpha; nobody can ask for another."""
_STATE = "tinker.json"


@dataclass
class _Adapter:
    trainer: Any
    spec: LoraSpec
    sampler: Any = None
    served: Any = None
    """The copy that is sampled, where the server needs one."""
    changed: bool = True
    waiting: list[tuple[Row, Tensor, Tensor]] = field(default_factory=list)
    """Rows, dL/dlogprob and log-probs of the calls since the last step: sent with it, as one call."""


class TinkerEngine:
    """Trains and samples on a server; see `gongfu.engine.protocol.Engine`.

    `model`: folder with tokenizer and config of the base. `base_model`: the server's name for it. `url`: the server; empty =
    the hosted service, whose key is read from TINKER_API_KEY. `timeout`: seconds that an answer may take.

    Gradients are sent with their step, so that a call that fails leaves nothing half there; a step that fails or is not
    answered ends the engine, since nobody knows whether it was made. What `save` writes names states on the server.
    """

    capabilities: frozenset[Capability] = frozenset((Capability.TRAIN, Capability.ADAPTERS, Capability.CHOOSE, Capability.BASE))

    def __init__(
        self,
        model: Path,
        *,
        store: Path,
        base_model: str,
        url: str = "",
        dialect: Dialect = "skyrl",
        timeout: float = 600.0,
    ) -> None:
        from transformers import AutoConfig

        self.tokenizer = HFTokenizer(Path(model))
        config: Any = AutoConfig.from_pretrained(model, local_files_only=True)
        self.positions, self.vocab_size = int(config.max_position_embeddings), int(config.vocab_size)
        self.store, self.base_model = Path(store), base_model
        self.dialect: Dialect = dialect
        self.version = 0
        self._client = Client(url, timeout)
        self._adapters: dict[str, _Adapter] = {}
        self._base: Any = None
        self._untrained: Any = None
        self._broken = ""

    def create_adapter(self, name: str, spec: LoraSpec) -> None:
        """Raises EngineError for a used name, or a shape that the server cannot make."""
        if name in self._adapters:
            raise EngineError(f"adapter {name!r} exists already")
        if spec.alpha != ALPHA or set(spec.targets) != set(LoraSpec().targets):
            raise EngineError(f"the Tinker API has alpha {ALPHA:.0f} on all linear modules; set lora.alpha and targets to that")
        trainer = self._trainer(f"creating adapter {name!r}", spec.rank, spec.seed)
        self._adapters[name] = _Adapter(trainer, spec)
        self._publish(name, self._adapters[name])

    # ------------------------------------------------------------------ sampling

    async def sample(self, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]:
        """All lists of one adapter are scored in one call; what is to be written is asked for at the same time, a call each."""
        lists: dict[str | None, list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            if request.choices is not None:
                lists[request.adapter].append(i)
        answers: dict[int, list[Sample] | EngineError] = {}
        for adapter, members in lists.items():
            found = await asyncio.to_thread(self._chosen, adapter, [requests[i] for i in members])
            answers.update(zip(members, found, strict=True))
        written = [i for i in range(len(requests)) if i not in answers]
        answers.update(zip(written, await asyncio.gather(*(self._written(requests[i]) for i in written)), strict=True))
        return [answers[i] for i in range(len(requests))]

    async def _written(self, request: SampleRequest) -> list[Sample] | EngineError:
        try:
            self._check_request(request)
            return await self._generated(self._sampler(request.adapter), request)
        except EngineError as e:
            return e

    async def _generated(self, sampler: Any, request: SampleRequest) -> list[Sample]:
        types = self._client.types
        stop = request.stop or self.tokenizer.stop_ids
        settings = types.SamplingParams(
            max_tokens=request.max_tokens, temperature=request.temperature, seed=request.seed % 2**31, stop=list(stop)
        )
        with self._client.answers("sampling"):
            future = sampler.sample(types.ModelInput.from_ints(list(request.prompt)), request.n, settings)
        answer = await asyncio.to_thread(self._client.result, future, "sampling")
        found = []
        for sequence in answer.sequences:
            tokens = tuple(sequence.tokens)
            ended = bool(tokens) and tokens[-1] in stop
            found.append(Sample(tokens, tuple(sequence.logprobs), "stop" if ended else "length", self.version))
        return found

    def _chosen(self, adapter: str | None, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]:
        """Every option is scored after its prompt; the draws are made here."""
        answers: list[list[Sample] | EngineError] = []
        options: list[Row] = []
        for request in requests:
            try:
                self._check_request(request)
                start = len(request.prompt)
                options += [
                    Row(f"option {len(options) + k}", (*request.prompt, *o), (False,) * start + (True,) * len(o))
                    for k, o in enumerate(request.choices or ())
                ]
                answers.append([])
            except EngineError as e:
                answers.append(e)
        try:
            scored = iter(self._scored_options(adapter, options) if options else ())
        except EngineError as e:
            return [e for _ in requests]
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, EngineError):
                continue
            answer += chosen(request, [next(scored).tolist() for _ in request.choices or ()], self.version)
        return answers

    def _scored_options(self, adapter: str | None, options: Sequence[Row]) -> list[Tensor]:
        """Under the published weights: by the copy that is served, where there is one, else by the sampler, one by one."""
        if adapter is None:
            return self._scored(self._base_trainer(), options)
        sampler, served = self._sampler(adapter), self._adapter(adapter).served
        if served is not None:
            return self._scored(served, options)
        ints = self._client.types.ModelInput.from_ints
        with self._client.answers("scoring a list"):
            futures = [sampler.compute_logprobs(ints(list(option.tokens))) for option in options]
        values = [self._client.result(future, "scoring a list") for future in futures]
        return [torch.tensor(v[-option.targets :]) for v, option in zip(values, options, strict=True)]

    # ------------------------------------------------------------------ scoring and training

    def logprobs(self, rows: Sequence[Row], *, adapter: str | None) -> list[Tensor]:
        trainer = self._base_trainer() if adapter is None else self._adapter(adapter).trainer
        plain = self._plain(rows)
        return plain.fold(self._scored(trainer, plain.sequences)) if rows else []

    def forward_backward(self, rows: Sequence[Row], loss: LossFn, *, adapter: str) -> dict[str, float]:
        """Scores the rows and differentiates the loss here; dL/dlogprob waits for the step."""
        if not rows:
            raise EngineError("forward_backward got no rows; skip the call when nothing is to be trained")
        one = self._adapter(adapter)
        plain = self._plain(rows)
        scored = self._scored(one.trainer, plain.sequences)
        coefficients, metrics = plain.gradients(loss, scored)
        one.waiting += zip(plain.sequences, coefficients, scored, strict=True)
        return metrics

    def optim_step(self, params: OptimParams, *, adapter: str) -> dict[str, float]:
        one = self._adapter(adapter)
        if params.clip:
            raise EngineError("this engine cannot bound the gradient norm: set optim.clip = 0")
        if not one.waiting:
            raise EngineError(f"adapter {adapter!r} has no gradient; call forward_backward before optim_step")
        types = self._client.types
        rows, coefficients, logprobs = zip(*one.waiting, strict=True)
        one.waiting = []
        name, data = training_data(types, self.dialect, rows, coefficients, logprobs)
        settings = types.AdamParams(
            learning_rate=params.lr,
            beta1=params.betas[0],
            beta2=params.betas[1],
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        try:
            with self._client.answers("sending a step"):
                sent = one.trainer.forward_backward(data, name)
                made = one.trainer.optim_step(settings)
            self._client.result(sent, "computing gradients")
            answer = self._client.result(made, "making a step")
        except Exception as e:
            self._broken = f"{e}; it is not known whether the step was made: resume the run from its last checkpoint"
            raise EngineError(self._broken) from e
        one.changed = True
        norms = [value for key, value in (answer.metrics or {}).items() if key.rsplit("/", 1)[-1].startswith("grad_norm")]
        return {"grad_norm": float(norms[0]) if norms else math.nan}

    def sync(self) -> int:
        self._expect_living()
        for name, one in self._adapters.items():
            if one.changed:
                self._publish(name, one)
        self.version += 1
        return self.version

    # ------------------------------------------------------------------ states

    def save(self, name: str) -> str:
        """The states stay on the server; the folder names them."""
        self._expect_living()
        if any(one.waiting for one in self._adapters.values()):
            raise EngineError("an adapter holds gradients that no optim_step has used; save between steps")
        paths = {adapter: self._saved(adapter) for adapter in self._adapters}
        folder = self.store / name
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{_STATE}"
        kept = {"base_model": self.base_model, "version": self.version, "states": paths, "ranks": self._ranks}
        draft.write_text(json.dumps(kept), encoding="utf-8")
        draft.replace(folder / _STATE)
        return name

    def load(self, ref: str, *, weights_only: bool = False) -> None:
        """Raises CheckpointError for what `save` did not write, or another base model."""
        file = self.store / ref / _STATE
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            states, version, base = dict(found["states"]), int(found["version"]), found["base_model"]
            ranks = dict(found["ranks"])
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise CheckpointError(
                f"{file.parent} holds no states of a Tinker server ({e}); use a checkpoint of this engine"
            ) from e
        self._expect_living()
        if base != self.base_model or not ranks.items() <= self._ranks.items():
            raise CheckpointError(f"{file} belongs to adapters {ranks} on {base}, not to {self._ranks} on {self.base_model}")
        for adapter, path in states.items():
            service, one = self._client.service, self._adapters[adapter]
            whole, part = service.create_training_client_from_state_with_optimizer, service.create_training_client_from_state
            # A trainer that has trained takes no other state: a new one begins.
            old, one.trainer = one.trainer, self._client.call(f"loading {path}", part if weights_only else whole, path)
            self._client.unload(old)
            one.waiting, one.changed = [], True
        self.sync()
        self.version = self.version - 1 if weights_only else version

    def adapter_state(self, name: str) -> AdapterState:
        """The weights in training, by the local engine's names; the optimiser stays on the server."""
        self._adapter(name)
        weights = {
            key[key.index("layers.") :].removesuffix(".weight"): value
            for key, value in self._client.download(self._exported(name)).items()
        }
        return AdapterState(weights, {}, 0)

    def close(self) -> None:
        """Give the server's places back."""
        for trainer in (self._untrained, *(t for one in self._adapters.values() for t in (one.trainer, one.served))):
            if trainer is not None:
                self._client.unload(trainer)
        self._adapters.clear()
        self._untrained = None

    # ------------------------------------------------------------------ inside

    @property
    def _ranks(self) -> dict[str, int]:
        return {name: one.spec.rank for name, one in self._adapters.items()}

    def _expect_living(self) -> None:
        if self._broken:
            raise EngineError(self._broken)

    def _adapter(self, name: str) -> _Adapter:
        self._expect_living()
        try:
            return self._adapters[name]
        except KeyError:
            known = ", ".join(sorted(self._adapters)) or "none yet"
            raise EngineError(f"no adapter {name!r} (known: {known}); call create_adapter first") from None

    def _sampler(self, adapter: str | None) -> Any:
        if adapter is None:
            if self._base is None:
                create = self._client.service.create_sampling_client
                self._base = self._client.call("opening the base model", create, base_model=self.base_model)
            return self._base
        one = self._adapter(adapter)
        if one.sampler is None:
            raise EngineError(f"adapter {adapter!r} was never published: call sync first")
        return one.sampler

    def _publish(self, name: str, one: _Adapter) -> None:
        """SkyRL samples with the trainer's own weights, which move on before `sync`: there a copy of them is served."""
        source, old = one.trainer, one.served
        if self.dialect == "skyrl":
            create = self._client.service.create_training_client_from_state
            source = one.served = self._client.call(f"publishing {name!r}", create, self._saved(name))
        one.sampler = self._client.call(f"publishing {name!r}", source.save_weights_and_get_sampling_client)
        if old is not None:
            self._client.unload(old)
        one.changed = False

    def _saved(self, name: str) -> str:
        with self._client.answers(f"saving {name!r}"):
            future = self._adapters[name].trainer.save_state(f"{name}-{uuid.uuid4().hex}")
        return self._client.result(future, f"saving {name!r}").path

    def _exported(self, name: str) -> str:
        """The weights of the moment as a file on the server."""
        with self._client.answers(f"exporting {name!r}"):
            future = self._adapters[name].trainer.save_weights_for_sampler(f"{name}-{uuid.uuid4().hex}")
        return self._client.result(future, f"exporting {name!r}").path

    def _base_trainer(self) -> Any:
        """An adapter that is never trained changes nothing, and scores rows in one call."""
        if self._untrained is None:
            self._untrained = self._trainer("opening the base model", 1, 0)
        return self._untrained

    def _trainer(self, what: str, rank: int, seed: int) -> Any:
        create = self._client.service.create_lora_training_client
        return self._client.call(what, create, base_model=self.base_model, rank=rank, seed=seed % 2**31, train_unembed=False)

    def _scored(self, trainer: Any, rows: Sequence[Row]) -> list[Tensor]:
        with self._client.answers("scoring rows"):
            future = trainer.forward(scoring_data(self._client.types, rows), "cross_entropy")
        answer = self._client.result(future, "scoring rows")
        found = []
        for row, output in zip(rows, answer.loss_fn_outputs, strict=True):
            values = output["logprobs"].to_torch().float()
            if len(values) != len(row.tokens) - 1:
                raise EngineError(f"row {row.id}: {len(values)} log-probs for {len(row.tokens) - 1} predicted tokens")
            found.append(values[torch.tensor(row.mask[1:])])
        return found

    def _plain(self, rows: Sequence[Row]) -> Plain:
        check_rows(rows, self.positions, self.vocab_size)
        plain = Plain(rows)
        if any(row.temperature != 1 for row in plain.sequences):
            raise EngineError("the Tinker API scores at temperature 1 only; set rollout.temperature = 1")
        return plain

    def _check_request(self, request: SampleRequest) -> None:
        refused = refusal(request, positions=self.positions, vocab_size=self.vocab_size)
        if refused is not None:
            raise refused
        if request.choices is None and request.temperature not in (0, 1):
            raise EngineError("the Tinker API gives log-probs at temperature 1 only; set rollout.temperature = 1")
