"""A SkyRL server (JAX on CPUs) for the tests of the tinker engine: run by the Python of SkyRL's own environment.

    python tests/skyrl_server.py PORT FOLDER MODEL

SkyRL 0.4 asks for Python 3.12 and for a `uv run` parent. It needs neither: pydantic wants another TypedDict below 3.12, and
the engine, which the server starts as a process of its own, can be started from here too.
"""

from __future__ import annotations

import runpy
import sys
import typing

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # before anything of SkyRL is imported


def serve(port: int, folder: str, model: str) -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    places = {"max_lora_adapters": 12, "max_lora_rank": 16, "train_micro_batch_size": 32, "sample_max_num_sequences": 64}
    api._build_uv_run_cmd_engine = lambda parent, config: [sys.executable, __file__, "engine", *config_to_argv(config)]
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config=places,
        checkpoints_base=f"{folder}/checkpoints",
        database_url=f"sqlite:///{folder}/tinker.db",
        session_timeout_sec=600,
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        sys.argv[:2] = ["skyrl.tinker.engine"]
        runpy.run_module("skyrl.tinker.engine", run_name="__main__")
    else:
        serve(int(sys.argv[1]), sys.argv[2], sys.argv[3])
