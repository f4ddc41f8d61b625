"""A local chat-completions endpoint with scripted replies, valid and invalid."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import openafm as fm
from openafm.framework.backends.openai_model import OpenAICompatibleModel

Reply: TypeAlias = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Record the request, then send the next scripted reply."""

    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.asked.append((self.path, dict(self.headers)))
        with self.server.lock:
            reply = self.server.script.pop(0)
        try:
            reply(self)
        except OSError:  # the client closed the connection
            self.server.num_left += 1
        self.close_connection = True

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        self.server.script.pop(0)(self)
        self.close_connection = True

    def begin(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Connection", "close")
        self.end_headers()

    def write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def reset(self) -> None:
        """Reset the connection."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Endpoint(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.num_left = 0
        self.num_sent = 0  # bytes of a flood
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.num_left += 1


@contextlib.contextmanager
def serving(*script: Reply) -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        endpoint.script = list(script)
        thread = threading.Thread(target=lambda: endpoint.serve_forever(poll_interval=0.01), daemon=True)
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.shutdown()
            thread.join()


def event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def delta(finish: str | None = None, **values: Any) -> str:
    return event({"choices": [{"index": 0, "delta": values, "finish_reason": finish}]})


USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}},
    }
)
DONE = "data: [DONE]\n\n"


def events(*texts: str, pause_s: float = 0.0) -> Reply:
    """Return a reply of server-sent events, one write each."""

    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/event-stream")
        for text in texts:
            handler.write(text)
            time.sleep(pause_s)

    return reply


def says(*pieces: str, finish: str = "stop", pause_s: float = 0.0) -> Reply:
    """Return a reply of text in pieces."""
    return events(
        delta(role="assistant", content=""),
        *(delta(content=piece) for piece in pieces),
        delta(finish),
        USAGE,
        DONE,
        pause_s=pause_s,
    )


def calls(*named: tuple[str, str], text: str = "") -> Reply:
    """Return a reply with tool calls, their arguments in two pieces, after optional text."""
    parts = [delta(content=text)] if text else []
    for index, (name, arguments) in enumerate(named):
        half = len(arguments) // 2
        opening = {"index": index, "id": f"x{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        parts.append(delta(tool_calls=[opening]))
        for piece in (arguments[:half], arguments[half:]):
            parts.append(delta(tool_calls=[{"index": index, "function": {"arguments": piece}}]))
    return events(*parts, delta("tool_calls"), USAGE, DONE)


def fails(status: int, body: Any, **headers: str) -> Reply:
    def reply(handler: Handler) -> None:
        handler.begin(status, Content_Type="application/json", **headers)
        handler.write(body if isinstance(body, str) else json.dumps(body))

    return reply


def broken(*texts: str) -> Reply:
    """Return a reply that sends chunks and resets the connection."""

    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/event-stream", Transfer_Encoding="chunked")
        for text in texts:
            handler.write(f"{len(text.encode()):x}\r\n{text}\r\n")
        handler.reset()

    return reply


def silent(after: str = "") -> Reply:
    def reply(handler: Handler) -> None:
        if after:
            handler.begin(Content_Type="text/event-stream")
            handler.write(after)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # until the client closes the connection
            handler.connection.settimeout(0.05)
            try:
                if not handler.connection.recv(1):
                    raise ConnectionError
            except TimeoutError:
                continue

    return reply


def plain(text: str) -> Reply:
    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/plain")
        handler.write(text)

    return reply


def flood(text: str) -> Reply:
    """Return a reply that repeats a text endlessly, as fast as the client reads."""

    def reply(handler: Handler) -> None:
        handler.begin(Content_Type="text/event-stream")
        block = (text * (65536 // len(text) + 1)).encode()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:  # until the client closes the connection
            handler.wfile.write(block)
            handler.server.num_sent += len(block)

    return reply


@fm.generable
class Toy:
    squeaks: bool


@fm.generable
class City:
    city: str
    country: str | None = None


class Weather(fm.Tool):
    name = "weather"
    description = "The weather of a city"

    @property
    def arguments_schema(self) -> fm.GenerationSchema:
        return City.generation_schema()  # type: ignore[attr-defined, no-any-return]

    async def call(self, args: fm.GeneratedContent) -> str:
        return "sunny in " + args.value(City).city


def num_sockets() -> int:
    if not Path("/proc/self/fd").exists():
        return 0
    links = []
    for fd in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115
        except OSError:
            continue
    return sum(link.startswith("socket:") for link in links)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def model_at(url: str, **keywords: Any) -> OpenAICompatibleModel:
    return OpenAICompatibleModel(url, "a-model", **({"max_retries": 0} | keywords))
