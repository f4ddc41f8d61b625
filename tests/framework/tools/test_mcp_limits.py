"""Limits on what an MCP server may send: a long line, a large or compressed reply, many tools."""

from __future__ import annotations

import contextlib
import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import mcp_types as types
import pytest
from mcp.server import Server

import openafm as fm
from openafm.framework.tools.mcp_limits import _LimitedDecoder
from openafm.tools import McpError

FLOODING = """
import json, sys
capabilities = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
results = {"initialize": capabilities, "tools/list": {"tools": [{"name": "it", "inputSchema": {"type": "object"}}]}}
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "tools/list":
        print("x" * 5 * 2**20)
    if "id" in request:
        unknown = {"error": {"code": -32601, "message": "unknown"}}
        method = request["method"]
        reply = {"result": results[method]} if method in results else unknown
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"]} | reply), flush=True)
"""


def test_a_long_line_of_a_process_is_dropped_and_the_next_one_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with fm.tools.from_mcp([sys.executable, "-c", FLOODING]) as tools:
        assert [tool.name for tool in tools] == ["it"]
    assert "a line of more than 4,194,304 characters" in caplog.text


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_lines_up_to_the_limit_are_unchanged(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openafm.framework.tools.mcp_limits.MAX_BYTES", 20)
    text = f"short\n{'ü' * 20}\n{'x' * 50}\nlast\n"
    data, decoder = text.encode(), _LimitedDecoder("strict")
    decoded = "".join(decoder.decode(data[start : start + size]) for start in range(0, len(data), size))
    lines = decoded.splitlines()
    assert lines[:2] == ["short", "ü" * 20]
    assert lines[-1] == "last"
    assert size == 4096 or max(map(len, lines[2:-2])) <= 20 + size


@contextlib.contextmanager
def replying(body: bytes, times: int, **headers: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            for name, value in {"Content_Type": "application/json", **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for _ in range(times):
                    self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "times", "headers", "words"),
    [
        (b"x" * 2**20, 100, {}, "more than 4,194,304 bytes"),
        (gzip.compress(bytes(2**20), mtime=0), 100, {"Content_Encoding": "gzip"}, "compressed"),
        (b"data: " + b"x" * 2**20, 100, {"Content_Type": "text/event-stream"}, "1048576 byte limit"),
    ],
    ids=["large", "compressed", "event stream"],
)
def test_large_and_compressed_replies_are_refused(body: bytes, times: int, headers: dict[str, str], words: str) -> None:
    with replying(body, times, **headers) as url, pytest.raises(McpError, match=words), fm.tools.from_mcp(url):
        pass


def test_endless_lists_of_tools_are_refused() -> None:
    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        tool = types.Tool(name="it", description="x" * 10**6, input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool] * 5, next_cursor="more")

    with (
        pytest.raises(McpError, match="more than 20,000,000 characters"),
        fm.tools.from_mcp(Server("s", on_list_tools=list_tools)),
    ):
        pass
