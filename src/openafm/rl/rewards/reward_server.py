"""A server of rewards over HTTP, for reward models that run on another machine than the trajectory generators.

    POST /rewards  {"conversations": [chat JSONL, ...]}  ->  {"rewards": [0.7, ...]}
    GET /health    ->  {"model": "name", "signature": "..."}

Errors have status 400 and {"error": "..."}. The server has no authentication: bind it to a private network.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openafm.core.errors import OpenAFMError
from openafm.rl.rewards.reward_model import LocalRewardModel
from openafm.tokenizer.conversation import Conversation, ConversationError

MAX_REQUEST_BYTES = 1 << 26
_READ_SECONDS = 30.0


class RewardServer(ThreadingHTTPServer):
    """Serve the rewards of a model at `host`:`port`; port 0 takes a free one. Use `serve_forever` and `shutdown`."""

    daemon_threads = True

    def __init__(self, model: LocalRewardModel, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), _Handler)
        self.model = model

    @property
    def url(self) -> str:
        """Return the address of the server."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: RewardServer
    timeout = _READ_SECONDS

    def do_GET(self) -> None:
        bundle = self.server.model.bundle
        self._reply(200, {"model": bundle.name, "signature": bundle.signature})

    def do_POST(self) -> None:
        try:
            self._reply(200, {"rewards": self.server.model.rewards(self._conversations())})
        except (OpenAFMError, ValueError, RecursionError) as error:
            self._reply(400, {"error": str(error)})

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line per request."""

    def _conversations(self) -> list[Conversation]:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= MAX_REQUEST_BYTES:
            raise ValueError(f"the request has {length} bytes; send 1 to {MAX_REQUEST_BYTES}")
        values = json.loads(self.rfile.read(length))
        lines = values.get("conversations") if isinstance(values, dict) else None
        if not isinstance(lines, list):
            raise ConversationError("expected an object with 'conversations', a list")
        return [Conversation.from_dict(line) for line in lines]

    def _reply(self, status: int, values: dict[str, Any]) -> None:
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
