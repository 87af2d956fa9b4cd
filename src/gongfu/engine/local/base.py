"""The frozen base model: loading, precision, and the split into a backbone and an output head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gongfu.core.errors import ModelError

Dtype = Literal["auto", "float32", "bfloat16"]


class BaseModel:
    """A causal language model from a Hugging Face folder, frozen and in evaluation mode.

    `backbone` maps token ids to final hidden states [B, T, D]; `head` maps hidden states to logits [..., V].
    Raises ModelError when the folder, its weights, the device or the architecture cannot be used.
    """

    def __init__(self, folder: Path, *, dtype: Dtype = "auto", device: str = "cpu") -> None:
        self.folder = folder
        self.device = _device(device)
        self.model: Any = _load(folder, dtype, self.device)
        self.config: Any = self.model.config
        self.backbone: Any = self.model.base_model
        self.head: nn.Module = self.model.get_output_embeddings()
        self.dtype: torch.dtype = next(self.model.parameters()).dtype
        self.vocab_size: int = self.head.weight.shape[0]  # type: ignore[union-attr, assignment]
        self.positions = _positions(self.config)
        _refuse_recurrent(self.config)
        self._check_split()

    def compute(self) -> AbstractContextManager[Any]:
        """Precision of a forward pass through the model: bfloat16 weights run under autocast beside float32 adapters."""
        if self.dtype is torch.bfloat16:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of final hidden states [..., D]."""
        return self.head(hidden.to(self.dtype)).float()

    def _check_split(self) -> None:
        """Some architectures rescale or cap their logits after the head; scoring would then be silently wrong."""
        ids = torch.arange(3, device=self.device)[None] % self.vocab_size
        with torch.no_grad(), self.compute():
            whole = self.model(input_ids=ids, use_cache=False).logits.float()
            split = self.logits(self.backbone(input_ids=ids, use_cache=False).last_hidden_state)
        if not torch.allclose(whole, split, rtol=1e-3, atol=1e-3):
            raise ModelError(
                f"{self.folder}: {type(self.model).__name__} changes its logits after the output head, which the local "
                "engine does not follow; use a Llama-like model or another engine"
            )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as e:
        raise ModelError(f"unknown device {name!r}: use cpu, cuda, cuda:0 or mps") from e
    if device.type not in ("cpu", "cuda", "mps"):
        raise ModelError(f"device {name!r} is not supported by the local engine: use cpu, cuda or mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r}: this torch ({torch.__version__}) sees no CUDA GPU; use device = cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError(f"device {name!r}: this torch ({torch.__version__}) has no Metal support; use device = cpu")
    return device


def _load(folder: Path, dtype: Dtype, device: torch.device) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is not a model folder (no config.json); give a folder with a Hugging Face model")
    if dtype not in get_args(Dtype):
        raise ModelError(f"dtype {dtype!r} is unknown: use auto, float32 or bfloat16")
    auto: Any = AutoModelForCausalLM
    options: dict[str, Any] = {"local_files_only": True, "output_loading_info": True}
    try:
        stored: Any = AutoConfig.from_pretrained(folder, local_files_only=True).dtype
        options["dtype"] = _resolve(dtype, stored, device)
        with _no_progress_bar():
            try:
                model, info = auto.from_pretrained(folder, attn_implementation="sdpa", **options)
            except ValueError:  # architectures without scaled_dot_product_attention
                model, info = auto.from_pretrained(folder, attn_implementation="eager", **options)
    except Exception as e:  # transformers, safetensors and json raise many kinds; all mean that the folder is unusable
        raise ModelError(f"cannot load the model in {folder}: {e}") from e
    missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if missing:
        raise ModelError(f"{folder}: the weights lack {', '.join(missing[:3])} ...; the folder is incomplete, fetch it again")
    model.eval().requires_grad_(False)
    return model.to(device)


def _resolve(dtype: Dtype, stored: torch.dtype | None, device: torch.device) -> torch.dtype:
    """ "auto" keeps a half-precision checkpoint in bfloat16, unless the CPU has to emulate it (four times slower)."""
    if dtype != "auto":
        return torch.float32 if dtype == "float32" else torch.bfloat16
    quick = device.type != "cpu" or (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return torch.bfloat16 if quick and stored in (torch.bfloat16, torch.float16) else torch.float32


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _positions(config: Any) -> int:
    """Longest sequence that this engine computes exactly as the model does."""
    positions = int(getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2**20)
    kinds = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    # A full attention mask equals a sliding one only within the window.
    return min(positions, window) if window and ("sliding_attention" in kinds or not kinds) else positions


def _refuse_recurrent(config: Any) -> None:
    other = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if other:
        raise ModelError(
            f"{config.model_type}: layers of type {sorted(other)} keep no key-value cache; use an attention-only model"
        )
