"""A chat endpoint on the loopback that answers, and misbehaves, as a script tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Says:
    """A whole answer, after `delay` seconds."""

    text: str | None
    stop: str = "stop"
    usage: tuple[int, int] | None = (10, 5)
    refusal: str | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Fails:
    status: int
    body: str = '{"error": {"message": "no"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """Status 200 and a body of any kind."""

    body: str


@dataclass(frozen=True)
class Cut:
    """Breaks off in the middle of the body."""


@dataclass(frozen=True)
class Drips:
    """Sends a byte of the body every `every` seconds."""

    every: float


@dataclass(frozen=True)
class Silent:
    """Takes the request and never answers."""


Act = str | Says | Fails | Raw | Cut | Drips | Silent
"""A text is an answer in the usual shape."""
Script = Callable[[list[dict[str, str]]], Act]


@dataclass(frozen=True)
class Seen:
    body: dict[str, Any]
    headers: dict[str, str]
    at: float
    """Of time.monotonic()."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of connections not accepted yet; a further one waits a second


class Stub:
    """Serves POST {url}/chat/completions while it is entered. `script` maps the messages of a request to an act."""

    def __init__(self, script: Script | Act) -> None:
        self.script: Script = script if callable(script) else in_turn(script)
        self.seen: list[Seen] = []
        self.connections = 0
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Stub:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # connections stay open
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with stub._lock:
                    stub.connections += 1

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub._lock:
                    stub.seen.append(Seen(body, dict(self.headers), time.monotonic()))
                    stub._at_once += 1
                    stub.most_at_once = max(stub.most_at_once, stub._at_once)
                try:
                    if self.path == "/v1/chat/completions":
                        stub._play(self, stub.script(body["messages"]))
                    else:
                        stub._play(self, Fails(404, f"no path {self.path}"))
                except (BrokenPipeError, ConnectionResetError):  # the client gave up
                    self.close_connection = True
                finally:
                    with stub._lock:
                        stub._at_once -= 1

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _play(self, handler: BaseHTTPRequestHandler, act: Act) -> None:
        match act:
            case str():
                _send(handler, 200, completion(Says(act)))
            case Says():
                self._closing.wait(act.delay)
                _send(handler, 200, completion(act))
            case Fails():
                _send(handler, act.status, act.body, act.headers)
            case Raw():
                _send(handler, 200, act.body)
            case Cut():
                body = completion(Says("half a word"))
                _send(handler, 200, body[: len(body) // 2], {"Content-Length": str(len(body))})
                handler.close_connection = True
            case Drips():
                body = completion(Says("drop by drop"))
                _send(handler, 200, "", {"Content-Length": str(len(body))})
                for byte in body.encode():
                    handler.wfile.write(bytes([byte]))
                    if self._closing.wait(act.every):
                        return
            case Silent():
                self._closing.wait()
                handler.close_connection = True


def in_turn(*acts: Act) -> Script:
    """A script that plays `acts` one after the other, whatever is asked; the last one for ever."""
    lock, left = threading.Lock(), list(acts)

    def script(messages: list[dict[str, str]]) -> Act:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return script


def completion(says: Says) -> str:
    """The body of a chat completion."""
    message = {"role": "assistant", "content": says.text, "refusal": says.refusal}
    body: dict[str, Any] = {
        "object": "chat.completion",
        "model": "stub-1",
        "choices": [{"index": 0, "message": message, "finish_reason": says.stop}],
    }
    if says.usage is not None:
        body["usage"] = {"prompt_tokens": says.usage[0], "completion_tokens": says.usage[1], "total_tokens": sum(says.usage)}
    return json.dumps(body)


def _send(handler: BaseHTTPRequestHandler, status: int, body: str, headers: Mapping[str, str] | None = None) -> None:
    handler.send_response(status)
    data = body.encode()
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
