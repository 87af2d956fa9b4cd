"""vLLM servers as samplers, with adapters published to them by name."""

from gongfu.engine.vllm.sampler import VllmSampler as VllmSampler
