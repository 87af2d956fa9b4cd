"""A vLLM server with nano on CPUs for the tests, started by the Python of vLLM's own environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

from gongfu.engine.models import resolve_model

VLLM = os.environ.get("GONGFU_VLLM", "")
"""Python of an environment with vLLM; `make test-engines` sets it."""
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_SETTINGS = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": "",
}


class VllmServer:
    """Starts at once; `wait` returns when it answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        words = ["--model", str(resolve_model("nano")), "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        words += ["--enforce-eager", "--logprobs-mode", "processed_logprobs"]
        words += ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "2", "--lora-target-modules", *_MODULES]
        with (self.folder / f"{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [VLLM, "-m", "vllm.entrypoints.openai.api_server", *words],
                cwd=self.folder,
                env={**os.environ, **_SETTINGS},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, seconds: float = 280.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                httpx.get(f"{self.url}/health", timeout=5.0).raise_for_status()
                return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise AssertionError((self.folder / f"{self.port}.log").read_text()[-3000:])

    def adapters(self) -> list[str]:
        cards = httpx.get(f"{self.url}/v1/models", timeout=30.0).json()["data"]
        return sorted(card["id"] for card in cards if card["parent"])

    def kill(self) -> None:
        """All its processes, without a word."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def living(self) -> bool:
        return self.process.poll() is None
