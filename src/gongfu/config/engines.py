"""Settings of the engines: what samples, scores and trains."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gongfu.config.section import Positive, Section


def _server_url(url: str) -> str:
    if not re.fullmatch(r"https?://[^/?#]+/?", url):
        raise ValueError(f"{url!r} is no http://HOST:PORT (without /v1)")
    return url.rstrip("/")


ServerUrl = Annotated[str, AfterValidator(_server_url)]


class EngineConfig(Section):
    """What every engine has."""

    model: str = "nano"
    """"nano", "nano-webshop", "smollm2", a folder, or a hub id."""


class HereConfig(EngineConfig):
    """What engines with the base in this process have."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the frozen base; adapters are always float32. auto = as the checkpoint is stored."""
    micro_batch_tokens: Positive = 1024
    """Tokens of one forward and backward pass."""
    score_batch_tokens: Positive = 4096
    """Tokens of one forward pass without gradients (the local engine; sampling everywhere)."""
    cache_tokens: Positive = 65536
    """Attention cache of the sampler, in tokens over all rows."""
    fast: bool = True
    """Use the fused Llama-family forward for sampling where the model allows it."""


class LocalEngineConfig(HereConfig):
    name: Literal["local"] = "local"
    device: str = "cpu"
    """cpu, cuda, cuda:0, mps."""


class VerlEngineConfig(HereConfig):
    """Training on verl's workers (Ray, FSDP2), with one adapter; see docs/scale.md."""

    name: Literal["verl"] = "verl"
    device: Literal["cpu", "cuda"] = "cuda"
    """Of the workers; cuda gives each its GPU."""
    workers: Positive = 2
    sampler_device: str = "cpu"
    """Where the driver keeps its copy of the base, which samples where no `samplers` do."""
    samplers: tuple[ServerUrl, ...] = ()
    """vLLM servers that sample: http://HOST:PORT of each, all with the same base."""
    sampler_adapters: str = ""
    """Folder for published adapters that the servers see under the same path; empty = in the run's folder."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds that one call of the workers may take; then they count as dead and the run stops. Also for a sampler's answer."""
    ray_address: str = ""
    """A running Ray cluster ("auto", "ray://..."); empty = one is started on this machine."""
    check: bool = True
    """Before the run, compare a new engine with the local one over a few steps (see `gongfu.engine.check`)."""

    @model_validator(mode="after")
    def _has_samplers(self) -> VerlEngineConfig:
        if self.sampler_adapters and not self.samplers:
            raise ValueError("sampler_adapters does nothing without samplers")
        if len(set(self.samplers)) < len(self.samplers):
            raise ValueError("samplers names a server twice")
        return self


class TinkerEngineConfig(EngineConfig):
    """Training and sampling on a server of the Tinker API; `model` gives tokenizer and shape here. See docs/scale.md."""

    name: Literal["tinker"] = "tinker"
    url: str = ""
    """A SkyRL server of yours, "http://127.0.0.1:8000"; empty = the hosted service, whose key TINKER_API_KEY holds."""
    base_model: str = ""
    """The server's name of the base; empty = as in `model`, resolved."""
    dialect: Literal["skyrl", "tinker"] = "skyrl"
    """skyrl: SkyRL 0.4 with JAX. tinker: the hosted service."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds that an answer of the server may take."""
    check: bool = True
    """Before the run, compare a new engine with the local one, which loads the base here, over a few steps."""

    @model_validator(mode="after")
    def _fits(self) -> TinkerEngineConfig:
        if not self.url and self.dialect == "skyrl":
            raise ValueError('give engine.url of a SkyRL server, or set engine.dialect = "tinker" for the hosted service')
        return self


EngineConfigs = Annotated[LocalEngineConfig | VerlEngineConfig | TinkerEngineConfig, Field(discriminator="name")]
