"""Endpoints: a session with any server of OpenAI's chat completions API; replies are validated. Needs openafm[http].

python examples/openai_endpoint.py                                        # a stub in this process
python examples/openai_endpoint.py http://localhost:8000/v1 MODEL [KEY]   # a server
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openafm as fm


@fm.generable
class Color:
    name: str = fm.guide(anyOf=["red", "green", "blue"])
    warm: bool


class Stub(BaseHTTPRequestHandler):
    """Send the same reply to every request, as server-sent events."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = '{"name":"red","warm":true}' if "response_format" in asked else "Red is warm."
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in (text[:8], text[8:]):
            self._send({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
        self._send({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *arguments: object) -> None:
        pass


def talk_to(model: fm.LanguageModel) -> None:
    session = fm.LanguageModelSession("You know colors.", model)
    for snapshot in session.stream_blocking("Which color is warm?"):
        print(snapshot)
    print(session.respond_blocking("Describe it", generating=Color))


def main() -> None:
    if len(sys.argv) > 1:
        talk_to(fm.OpenAICompatibleModel(*sys.argv[1:4]))
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        talk_to(fm.OpenAICompatibleModel(f"http://127.0.0.1:{server.server_port}/v1", "stub"))
        server.shutdown()


if __name__ == "__main__":
    main()
