"""The SDK behind one door: every future has a dead-line, every failure is an EngineError, and the key is never said."""

from __future__ import annotations

import io
import logging
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

from gongfu.core.errors import ConfigError, EngineError, MissingExtra

if TYPE_CHECKING:
    from torch import Tensor

HOSTED = "thinkingmachines"
KEY = "TINKER_API_KEY"
SKYRL_CLIENT = "0.25."
_UNLOAD_S = 10.0
_log = logging.getLogger(__name__)


class Client:
    """A session with a server of the Tinker API."""

    def __init__(self, url: str, timeout: float) -> None:
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        try:
            import tinker  # pyright: ignore[reportMissingImports]
        except ImportError as e:
            raise MissingExtra(f"the tinker engine ({e})", "tinker") from e
        if url and not tinker.__version__.startswith(SKYRL_CLIENT):
            raise ConfigError(f"SkyRL 0.4 answers tinker {SKYRL_CLIENT}x, but {tinker.__version__} is installed")
        key = os.environ.get(KEY, "")
        if not key and (not url or HOSTED in url):
            raise ConfigError(
                f"the hosted service needs a key: set {KEY} in the environment, or engine.url to a server of yours"
            )
        self.types: Any = tinker.types
        self.timeout, self.url = timeout, url
        self._failures: tuple[type[Exception], ...] = (
            tinker.TinkerError,
            FutureTimeout,
            TimeoutError,
            ConnectionError,
            ValueError,  # a request that the server refused, told by its future
        )
        if url:
            self._expect_server()
        self.service: Any = self.call(
            "opening a session", tinker.ServiceClient, base_url=url or None, api_key=key or "tml-none"
        )

    @contextmanager
    def answers(self, what: str) -> Iterator[None]:
        """EngineErrors that say what was asked of which server."""
        try:
            yield
        except self._failures as e:
            where = self.url or "the hosted service"
            if isinstance(e, (FutureTimeout, TimeoutError)):
                raise EngineError(f"{where} did not answer within {self.timeout:.0f} s: {what}") from None
            raise EngineError(f"{where}, {what}: {type(e).__name__}: {e}") from None

    def call(self, what: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """A call that blocks; the SDK tries again for a long time where nobody answers."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(function(*arguments, **named))
            except BaseException as e:
                future.set_exception(e)

        threading.Thread(target=run, daemon=True).start()
        return self.result(future, what)

    def _expect_server(self) -> None:
        try:
            httpx.get(f"{self.url.rstrip('/')}/api/v1/healthz", timeout=min(self.timeout, 30.0)).raise_for_status()
        except httpx.HTTPError as e:
            raise EngineError(
                f"no server of the Tinker API answers at {self.url} ({e}): start it, or correct engine.url"
            ) from e

    def download(self, path: str) -> dict[str, Tensor]:
        """The tensors of exported weights, tinker://RUN/.../NAME."""
        from safetensors.torch import load

        run, *_, name = path.removeprefix("tinker://").split("/")
        answer = self.result(self.service.create_rest_client().get_checkpoint_archive_url(run, name), f"exporting {path}")
        try:
            content = httpx.get(answer.url, follow_redirects=True, timeout=self.timeout).raise_for_status().content
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                (file,) = (archive.extractfile(m) for m in archive if m.name.endswith("adapter_model.safetensors"))
                assert file is not None
                return load(file.read())
        except (httpx.HTTPError, tarfile.TarError, ValueError) as e:
            raise EngineError(f"the weights of {path} cannot be downloaded: {e}") from e

    def unload(self, trainer: Any) -> None:
        """Give back the place of an adapter on a server of one's own; the SDK has no call for it. Fails no run, but is told."""
        if not self.url:
            return
        try:
            address = f"{self.url.rstrip('/')}/api/v1/unload_model"
            httpx.post(address, json={"model_id": trainer.model_id}, timeout=_UNLOAD_S).raise_for_status()
        except httpx.HTTPError as e:
            _log.warning("%s keeps the place of %s: %s", self.url, trainer.model_id, e)

    def result(self, future: Any, what: str) -> Any:
        with self.answers(what):
            return future.result(timeout=self.timeout)
