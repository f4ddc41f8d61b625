"""Thousands of mixed requests: valid, malformed, disconnecting, oversized; then worker processes are killed at random.

- `leaks`: how many of memory, open files and reserved bytes for keys and values grow from the first third of the requests to
  the end, in one server process. Memory counts from 16 MB. Required: 0.
- `wrong`: valid requests whose greedy answer differs from the one given before the load, or without an answer although no
  worker was killed; and statuses that do not fit the kind of a request. Required: 0.
- `content_in_logs`: occurrences of a canary, part of every request, in the server's output and metrics. Required: 0.

    python benchmarks/serving_soak.py [--quick] [--json] [--requests 10000]

A full run writes docs/benchmarks/serving_soak.json. `--quick` sends 200 requests and claims nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
from serving_parts.processes import ServerProcess, openafm_server
from shared.reporting import benchmark_parser, hand_in

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "serving_soak.json"
CANARY = "canary8d21f"
PROMPTS = tuple(f"{CANARY} Write a sentence about the {noun}." for noun in ("sea", "moon", "train", "garden"))
KINDS = ("valid", "valid", "valid", "streamed", "malformed", "unknown", "disconnecting", "half_sent", "oversized")
STATUSES = {"malformed": {400}, "unknown": {404}, "oversized": {413}}
CONCURRENCY = 8
LEAK_MB = 16.0


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--requests", type=int, default=10_000, help="requests of a full run")
    options = parser.parse_args()
    count = 200 if options.quick else options.requests
    with (
        tempfile.TemporaryDirectory() as folder,
        openafm_server(Path(folder), "--model", "nano", "--max-body-mb", "1") as server,
    ):
        figures = one_process(server, count * 4 // 5)
    with (
        tempfile.TemporaryDirectory() as folder,
        openafm_server(Path(folder), "--model", "nano", "--max-body-mb", "1", "--workers", "2") as server,
    ):
        killed = with_kills(server, count // 5, num_kills=1 if options.quick else 10)
    figures |= {
        "wrong": figures["wrong"] + killed["wrong"],
        "content_in_logs": figures["content_in_logs"] + killed["content_in_logs"],
        "lost_by_kills": killed["lost"],
        "kills": killed["kills"],
        "requests": count,
    }
    hand_in({"figures": figures, "setting": {"concurrency": CONCURRENCY}}, REPORT, options)


def one_process(server: ServerProcess, count: int) -> dict[str, Any]:
    """Send requests to one process and compare its resources."""
    expected = {prompt: asyncio.run(answered(server.url, prompt)) for prompt in PROMPTS}
    outcomes = asyncio.run(send(server, count // 3, expected, seed=0))
    before = resources(server)
    outcomes += asyncio.run(send(server, count - count // 3, expected, seed=1))
    after = resources(server)
    grown = {
        "memory": after["memory_mb"] - before["memory_mb"] > LEAK_MB,
        "files": after["files"] > before["files"] + 2,
        "kv": after["kv"] > 0 or after["running"] > 0,
    }
    return {
        "leaks": sum(grown.values()),
        "grown_mb": round(after["memory_mb"] - before["memory_mb"], 1),
        "wrong": outcomes["wrong"] + outcomes["lost"],
        "content_in_logs": canaries(server),
    }


def with_kills(server: ServerProcess, count: int, num_kills: int) -> dict[str, Any]:
    """Send requests to two workers and kill one periodically. Requests of a killed worker are lost, never wrong."""

    async def run() -> Counter[str]:
        expected = {prompt: await answered(server.url, prompt) for prompt in PROMPTS}
        sending = asyncio.ensure_future(send(server, count, expected, seed=2))
        for _ in range(num_kills):
            await asyncio.sleep(1.0)
            if workers := server.descendants():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.choice(workers), signal.SIGKILL)
        return await sending

    outcomes = asyncio.run(run())
    return {
        "wrong": outcomes["wrong"],
        "lost": outcomes["lost"],
        "kills": num_kills,
        "content_in_logs": canaries(server, with_metrics=False),
    }


async def send(server: ServerProcess, count: int, expected: dict[str, str], seed: int) -> Counter[str]:
    """Send `count` requests of random kinds and count their outcomes."""
    source, outcomes, places = random.Random(seed), Counter[str](), asyncio.Semaphore(CONCURRENCY)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

        async def one(kind: str, prompt: str) -> None:
            async with places:
                try:
                    outcomes[await outcome(client, server.url, kind, prompt, expected)] += 1
                except (httpx.HTTPError, OSError):
                    outcomes["lost" if kind in ("valid", "streamed") else "fine"] += 1

        await asyncio.gather(*(one(source.choice(KINDS), source.choice(PROMPTS)) for _ in range(count)))
    return outcomes


async def outcome(client: httpx.AsyncClient, url: str, kind: str, prompt: str, expected: dict[str, str]) -> str:
    """Send a request; return `fine` or `wrong`."""
    target, body = f"{url}/v1/chat/completions", chat(prompt)
    match kind:
        case "valid":
            reply = await client.post(target, json=body)
            return "fine" if reply.status_code == 200 and text_of(reply.json()) == expected[prompt] else "wrong"
        case "streamed":
            async with client.stream("POST", target, json={**body, "stream": True}) as streamed:
                lines = [line[6:] async for line in streamed.aiter_lines() if line.startswith("data: {")]
            text = "".join(json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines)
            return "fine" if text == expected[prompt] else "wrong"
        case "disconnecting":
            async with client.stream("POST", target, json={**body, "stream": True, "max_tokens": 500}) as streamed:
                async for _ in streamed.aiter_lines():
                    return "fine"
        case "half_sent":
            parts = urlsplit(url)
            _, writer = await asyncio.open_connection("127.0.0.1", parts.port)
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{CANARY}".encode()
            )
            await writer.drain()
            writer.close()
            return "fine"
    content = {
        "malformed": b'{"messages": [{"role": "' + CANARY.encode() + b'"}]',
        "unknown": json.dumps({**body, "model": CANARY}).encode(),
        "oversized": b'{"messages": "' + CANARY.encode() * 200_000 + b'"}',
    }[kind]
    reply = await client.post(target, content=content)
    return "fine" if reply.status_code in STATUSES[kind] else "wrong"


def chat(prompt: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 12, "temperature": 0}


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


async def answered(url: str, prompt: str) -> str:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        return text_of((await client.post(f"{url}/v1/chat/completions", json=chat(prompt))).json())


def resources(server: ServerProcess) -> dict[str, float]:
    """Return memory, files and reserved bytes once no request runs."""
    deadline = time.monotonic() + 30
    while server.metric("openafm:num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)  # connections of clients that went away
    return {
        "memory_mb": server.resident_mb(),
        "files": server.num_files(),
        "kv": server.metric("openafm:kv_cache_usage_perc"),
        "running": server.metric("openafm:num_requests_running"),
    }


def canaries(server: ServerProcess, *, with_metrics: bool = True) -> int:
    """Return how often the canary occurs in the output and the metrics of the server."""
    text = server.output.read_text(encoding="utf-8", errors="replace")
    if with_metrics:
        text += httpx.get(f"{server.url}/metrics", trust_env=False).text
    return text.count(CANARY)


if __name__ == "__main__":
    main()
