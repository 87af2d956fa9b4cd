"""The part of a vLLM server that samplers use, on the loopback, with faults on demand."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["", "silent", "cut", "fails", "refuses", "babbles", "forgets", "hangs"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class VllmStub:
    """Every token is 7, with a log-prob of -0.25 (-0.5 at temperature 2). Serves while it is entered, always at one port."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.seen: list[tuple[str, dict[str, Any]]] = []
        """Path and body of every POST."""
        self.fault: Fault = ""
        """Of completions with an adapter; "hangs" of all."""
        self.poison: int | None = None
        """A prompt that begins with this token fails."""
        self.load_status = 200
        self.processed, self.delay = True, 0.0
        self._port = 0

    def __enter__(self) -> VllmStub:
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", self._port), self._handler())
        self._port = self._server.server_port
        self.url = f"http://127.0.0.1:{self._port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self.adapters.clear()

    @property
    def completions(self) -> list[dict[str, Any]]:
        """Those of requests, without the greetings."""
        return [body for path, body in list(self.seen) if path == "/v1/completions" and body["model"] != "base"]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                cards = [{"id": "base", "parent": None, "max_model_len": 64}]
                stub._send(self, 200, {"data": cards + [{"id": name, "parent": "base"} for name in stub.adapters]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.seen.append((self.path, body))
                answer = {"/v1/load_lora_adapter": stub._load, "/v1/unload_lora_adapter": stub._unload}
                answer.get(self.path, stub._complete)(self, body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _load(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if self.load_status != 200:
            return self._send(handler, self.load_status, {"error": {"message": "too wide"}})
        if body["lora_name"] in self.adapters:
            return self._send(handler, 400, {"error": {"message": "has already been loaded"}})
        self.adapters[body["lora_name"]] = body["lora_path"]
        return self._send(handler, 200, "Success")

    def _unload(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        del self.adapters[body["lora_name"]]
        self._send(handler, 200, "Success")

    def _complete(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if self.fault == "hangs":
            self._closing.wait()
        if body["model"] != "base":
            if body["model"] not in self.adapters:
                return self._send(handler, 404, {"error": {"message": "no such model"}})
            if self._trouble(handler, body):
                return None
        return self._send(handler, 200, self._completion(body))

    def _trouble(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> bool:
        self._closing.wait(self.delay)
        if self.fault == "silent":
            self._closing.wait()
        elif self.fault == "cut":
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(b'{"choices": [')
        elif self.fault == "fails" or body["prompt"][0] == self.poison:
            self._send(handler, 500, {"error": {"message": "the engine is dead"}})
        elif self.fault == "refuses":
            self._send(handler, 400, {"error": {"message": "not like this"}})
        elif self.fault == "forgets":
            self._send(handler, 404, {"error": {"message": f"no {body['model']}"}})
        elif self.fault == "babbles":
            self._send(handler, 200, {"choices": [{"index": i, "text": "hello"} for i in range(body.get("n", 1))]})
        else:
            return False
        handler.close_connection = True
        return True

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        logprob = -0.5 if self.processed and body["temperature"] == 2 else -0.25
        if "prompt_logprobs" in body:
            scored = [[None, *({str(t): {"logprob": -float(t)}} for t in prompt[1:])] for prompt in body["prompt"]]
            return {"choices": [{"index": i, "prompt_logprobs": values} for i, values in enumerate(scored)]}
        count = body["max_tokens"]
        said = {"token_logprobs": [logprob] * count, "top_logprobs": [{"a": logprob}] * count}
        return {"choices": [{"index": i, "token_ids": [7] * count, "logprobs": said} for i in range(body.get("n", 1))]}

    def _send(self, handler: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):  # the client gave up
            handler.close_connection = True
