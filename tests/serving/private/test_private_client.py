"""The client of private nodes against nodes that send damaged, endless or slow replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from private_servers import running
from statements_of_nodes import OPERATOR

from openafm.serving.private import client as client_module
from openafm.serving.private.client import PrivateClient, fetch
from openafm.serving.private.errors import MessageError, NodeUnreachableError, PrivateComputeError
from openafm.serving.private.log.notes import LOG_KEY, VerifierKey
from openafm.serving.private.verification import Trust

TRUST = Trust(log="http://localhost:1", log_key=str(VerifierKey.of("example.com/releases", LOG_KEY, OPERATOR)))
HELLO = b'data: {"choices": [{"delta": {"content": "hello"}}]}\n'


def answer(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> list[str]:
    """Return the texts of an answer whose decrypted content has these pieces."""

    def stream(self: PrivateClient, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        return iter(pieces)

    monkeypatch.setattr(PrivateClient, "stream", stream)
    return list(PrivateClient(["http://localhost:1"], TRUST).chat([]))


def test_events_may_be_split_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b": padding\n" + HELLO + b"\n" + HELLO + b"data: [DONE]\n"
    for size in (1, 7, len(content)):
        pieces = [content[start : start + size] for start in range(0, len(content), size)]
        assert answer(monkeypatch, *pieces) == ["hello", "hello"]


@pytest.mark.parametrize(
    "data",
    [
        b"5",
        b"[]",
        b'{"choices": 5}',
        b'{"choices": [5]}',
        b'{"choices": [{}]}',
        b'{"choices": [{"delta": 5}]}',
        b'{"choices": [{"delta": {"content": 5}}]}',
    ],
)
def test_events_of_another_form_are_refused(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    with pytest.raises(MessageError):
        answer(monkeypatch, b"data: " + data + b"\n")


def test_errors_of_another_form_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PrivateComputeError, match="the node answers"):
        answer(monkeypatch, b'data: {"error": []}\n')


def test_a_line_has_a_limit_and_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.process_time()
    with pytest.raises(MessageError, match="1,048,576 bytes"):
        answer(monkeypatch, *[b"a" * 16] * 100_000)
    assert time.process_time() - start < 2


def test_a_slow_reply_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(40):
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(client_module, "_FETCH_SECONDS", 0.2)
    with running(slow) as url, pytest.raises(NodeUnreachableError, match="too long"):
        fetch(url, 1000)
