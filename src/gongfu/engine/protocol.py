"""The narrow waist: sample, score rows, accumulate dL/dlogprob, step, publish, save.

Every loss of the methods is a function of the log-probs of given tokens, so this is all an engine needs to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from gongfu.core.errors import EngineError
from gongfu.core.records import Choice, Row

if TYPE_CHECKING:
    from torch import Tensor

LossFn = Callable[[Sequence[Row], "Sequence[Tensor]"], "tuple[Tensor, dict[str, float]]"]
"""(rows, log-probs of each row's scored tokens) -> (loss, metrics). Called once a micro-batch: losses and metrics are
sums, the caller normalises by constants known before."""


class Capability(StrEnum):
    """What an engine can do. Asking for what is missing is an error at configuration time."""

    TRAIN = "train"
    ADAPTERS = "adapters"
    """Several named adapters at once."""
    CHOOSE = "choose"
    """Sampling among listed responses."""
    PREFIX_CACHE = "prefix_cache"
    BASE = "base"
    """Scoring and sampling without an adapter (the KL reference)."""
    TEMPERATURE = "temperature"
    """Log-probs at other temperatures than 1, of samples and of rows."""
    CLIP = "clip"
    """A bound on the gradient norm of a step."""
    OVERLAP = "overlap"
    """Sampling from one thread while another one scores and trains."""
    NATIVE_LOSS = "native_loss"
    """Runs the Python loss next to the model, without a second forward."""


@dataclass(frozen=True, slots=True)
class LoraSpec:
    """Shape of a LoRA adapter. `seed` draws its initial A (B starts at 0, so a new adapter changes nothing)."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    seed: int = 0


@dataclass(frozen=True, slots=True)
class OptimParams:
    """AdamW settings of one step; `clip` bounds the gradient norm (0 = no bound)."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt to continue.

    `seed` alone decides the random draws, whatever else is in the batch. Requests of one `session` extend each other
    (prompt = earlier prompt + earlier response + more): the engine may keep their attention cache between calls.
    With `choices` the engine scores these responses and samples one of them instead of generating.
    """

    prompt: tuple[int, ...]
    adapter: str | None
    seed: int
    max_tokens: int = 32
    temperature: float = 1.0
    """0 = greedy."""
    stop: tuple[int, ...] = ()
    """Token ids that end a response (and are its last token); empty = the tokenizer's."""
    n: int = 1
    session: str | None = None
    choices: tuple[tuple[int, ...], ...] | None = None
    draft: tuple[int, ...] = ()
    """Tokens that the response may be like. A help, not a wish: an engine may use them to answer sooner, never otherwise."""
    until: tuple[int, ...] = ()
    """Tokens behind which nothing is read: an engine may end a response that ends with them, and need not."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A response and the log-prob of each of its tokens under the sampled policy (at the request's temperature, 0 counting
    as 1). A chosen response has those of the chain rule over its list; see `gongfu.core.records.Choice`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: Literal["stop", "length", "choice"]
    version: int
    choice: int | None = None
    choice_logprobs: tuple[float, ...] | None = None
    """Log-prob of every listed choice at temperature 1, normalised over the list."""
    drawn_from: Choice | None = None


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. `render` gives the text of a conversation by the model's own chat template."""

    stop_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def render(self, messages: Sequence[Mapping[str, str]], *, generation: bool) -> str: ...


@runtime_checkable
class Engine(Protocol):
    """Samples, scores and trains named adapters on one frozen base."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    @property
    def version(self) -> int:
        """Version of the weights that the sampler serves."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...
    def create_adapter(self, name: str, spec: LoraSpec) -> None: ...
    async def sample(self, requests: Sequence[SampleRequest]) -> list[list[Sample] | EngineError]: ...
    def logprobs(self, rows: Sequence[Row], *, adapter: str | None) -> list[Tensor]: ...
    def forward_backward(self, rows: Sequence[Row], loss: LossFn, *, adapter: str) -> dict[str, float]: ...
    def optim_step(self, params: OptimParams, *, adapter: str) -> dict[str, float]: ...
    def sync(self) -> int: ...
    def save(self, name: str) -> str: ...
    def load(self, ref: str, *, weights_only: bool = False) -> None:
        """Restore what `save` wrote; `weights_only` leaves optimisers and version as they are (a cold start)."""
        ...

    def close(self) -> None: ...
