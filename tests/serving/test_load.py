"""The load generator against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from openafm.cli.main import run
from openafm.core.errors import UsageError
from openafm.serving.load import LoadConfig, run_load


def test_figures_count_every_token(url: str) -> None:
    report = asyncio.run(run_load(LoadConfig(url=f"{url}/v1", model="nano", num_requests=6, num_users=3, max_tokens=8)))
    assert (report.num_requests, report.num_failed, report.errors) == (6, 0, {})
    assert 6 <= report.tokens <= 6 * 9
    assert 0 < report.ttft_ms["p50"] <= report.ttft_ms["p99"] <= report.latency_ms["p99"]


def test_failures_are_counted_not_raised(url: str) -> None:
    wrong = asyncio.run(run_load(LoadConfig(url=f"{url}/v1", model="no-model", num_requests=2, num_users=1)))
    assert wrong.errors == {"status 404": 2}
    closed = asyncio.run(run_load(LoadConfig(url="http://127.0.0.1:9/v1", num_requests=1, rate=100.0)))
    assert closed.num_failed == 1
    with pytest.raises(UsageError, match="base URL"):
        LoadConfig(url="localhost:8000")


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"completion_tokens":1}}\n\n'
EVENT = b"%x\r\n%b\r\n" % (len(TEXT), TEXT)


@pytest.mark.parametrize(
    ("replies", "failed"),
    [((b"", HEAD + EVENT + b"0\r\n\r\n"), 0), ((b"", b""), 1), ((HEAD + EVENT, HEAD + EVENT + b"0\r\n\r\n"), 1)],
    ids=["closed once", "closed twice", "cut off"],
)
def test_a_request_is_sent_again_only_if_the_connection_closes_before_the_reply(
    replies: Sequence[bytes], failed: int
) -> None:
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0))
        await writer.drain()
        writer.close()

    async def load() -> int:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            report = await run_load(LoadConfig(url=f"http://127.0.0.1:{port}/v1", num_requests=1, num_users=1))
            return report.num_failed

    assert asyncio.run(load()) == failed


def test_the_wait_for_a_place_counts_at_an_arrival_rate(url: str) -> None:
    settings = {"url": f"{url}/v1", "model": "nano", "num_requests": 6, "num_users": 1, "max_tokens": 24}
    report = asyncio.run(run_load(LoadConfig(**settings, rate=10_000.0)))  # all arrive at once, one is answered at a time
    assert report.ttft_ms["p99"] > 0.6 * 1000 * report.seconds
    assert report.ttft_ms["p90"] > report.ttft_ms["p50"] > 1.5 * report.itl_ms["p50"]


def test_the_command_prints_a_table_or_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", f"{url}/v1", "--users", "2", "--requests", "2", "--max-tokens", "3"]) == 0
    assert "tokens/s" in capsys.readouterr().out
    assert run(["bench", f"{url}/v1", "--rate", "50", "--requests", "2", "--max-tokens", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["64"]["num_failed"] == 0
    assert run(["bench", "http://127.0.0.1:9/v1", "--users", "1", "--requests", "1"]) == 1
