"""Throughput and latency of the server under load, beside llama.cpp's server if there is one.

One load generator (that of `openafm bench`) streams chats of 1, 4, 8 and 16 users over loopback, as text and as typed
answers under a JSON Schema. The server is a process of its own with the shipped nano model.

- `tokens_per_second_N`, `ttft_p99_ms_N`, `itl_p99_ms_N`: text at N users.
- `typed_tokens_per_second_8`: typed answers at 8 users.
- `ratio_8`: typed tokens a second at 8 users over those of llama.cpp's server, for random weights of one shape and width
  (serving_parts/peer_model.py) under the same schema; `p99_itl_ratio`: its 99th percentile of the time between tokens over
  the peer's. Required: at least 1.5, at most 1. Both are null, with the reason in `peer`, without a peer. `ratio_1` compares
  one user. Random weights end an answer only at the end of the schema or at the token limit. Both sides use the same number
  of threads.

The peer is llama.cpp's `llama-server`, which batches 16 users, or else llama-cpp-python's, which answers one request at a
time.

    python benchmarks/serving.py [--quick] [--json] [--peer-server FILE | --peer-python PYTHON]

    cmake -B build && cmake --build build --target llama-server        # in llama.cpp: --peer-server build/bin/llama-server
    python -m venv llama && llama/bin/pip install 'llama-cpp-python[server]'     # --peer-python llama/bin/python

Client and server share the machine's cores; use a quiet one. A full run writes docs/benchmarks/serving.json. `--quick` runs
the same code for few requests and claims nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
from serving_parts.processes import openafm_server
from shared.reporting import benchmark_parser, hand_in

from openafm.bundle import open_bundle
from openafm.serving.load import LoadConfig, LoadReport, run_load

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "serving.json"
USERS = (1, 4, 8, 16)
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "place": {"type": "string", "maxLength": 40},
        "people": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4},
        "priority": {"enum": ["low", "medium", "high"]},
    },
    "required": ["title", "place", "people", "priority"],
    "additionalProperties": False,
}


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has llama_cpp")
    parser.add_argument("--peer-server", type=Path, help="llama.cpp's llama-server")
    options = parser.parse_args()
    per_user = 2 if options.quick else 12
    max_tokens = 16 if options.quick else 96
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, openafm_server(Path(folder), "--model", "nano") as server:
        measure(f"{server.url}/v1", per_user, max_tokens, users=2)  # warm up
        for users in USERS:
            report = measure(f"{server.url}/v1", per_user, max_tokens, users=users)
            figures[f"tokens_per_second_{users}"] = report.tokens_per_second
            figures[f"ttft_p99_ms_{users}"] = report.ttft_ms["p99"]
            figures[f"itl_p99_ms_{users}"] = report.itl_ms.get("p99")
        typed = {users: measure(f"{server.url}/v1", per_user, max_tokens, users=users, schema=SCHEMA) for users in (1, 8)}
    figures["typed_tokens_per_second_8"] = typed[8].tokens_per_second
    figures["failed"] = typed[8].num_failed
    figures |= peer_figures(options.peer_server, options.peer_python, typed, per_user, max_tokens)
    hand_in({"figures": figures, "setting": setting(per_user, max_tokens)}, REPORT, options)


def measure(
    url: str, per_user: int, max_tokens: int, *, users: int, schema: dict[str, Any] | None = None, **extra: Any
) -> LoadReport:
    config = LoadConfig(
        url=url, num_requests=per_user * users, num_users=users, max_tokens=max_tokens, schema=schema, extra=extra
    )
    return asyncio.run(run_load(config))


def peer_figures(
    server: Path | None, python: str, typed: dict[int, LoadReport], per_user: int, max_tokens: int
) -> dict[str, Any]:
    """Return the ratios to llama.cpp's server by number of users, or the reason for their absence."""
    absent: dict[str, Any] = {"ratio_8": None, "ratio_1": None, "p99_itl_ratio": None}
    if server is None and not can_import(python, "llama_cpp.server.app"):
        return absent | {"peer": f"{python} has no llama_cpp.server; see the docstring"}
    if importlib.util.find_spec("gguf") is None:
        return absent | {"peer": "the package gguf is not installed"}
    from serving_parts.peer_model import write_peer_model

    body = {"type": "json_object", "schema": SCHEMA}  # this server's name for a grammar of a schema
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "peer.gguf"
        write_peer_model(path, open_bundle("nano"))
        with llama_server(server, python, path) as url:
            measure(url, 1, max_tokens, users=2, response_format=body)
            peer = {users: measure(url, per_user, max_tokens, users=users, response_format=body) for users in (1, 8)}
    if peer[8].num_failed:
        return absent | {"peer": f"{peer[8].num_failed} requests of the peer failed: {peer[8].errors}"}
    return {
        "ratio_8": round(typed[8].tokens_per_second / peer[8].tokens_per_second, 2),
        "ratio_1": round(typed[1].tokens_per_second / peer[1].tokens_per_second, 2),
        "p99_itl_ratio": round(typed[8].itl_ms["p99"] / peer[8].itl_ms["p99"], 2),
        "peer": f"{'llama-cpp-python' if server is None else 'llama.cpp'}'s server, random weights",
        "peer_tokens_per_second_8": peer[8].tokens_per_second,
        "peer_ttft_p99_ms_8": peer[8].ttft_ms["p99"],
        "peer_itl_p99_ms_8": peer[8].itl_ms["p99"],
        "typed_ttft_p99_ms_8": typed[8].ttft_ms["p99"],
        "typed_itl_p99_ms_8": typed[8].itl_ms["p99"],
    }


@contextlib.contextmanager
def llama_server(server: Path | None, python: str, gguf: Path) -> Iterator[str]:
    """Run llama.cpp's server, or without it llama-cpp-python's, and yield its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = os.environ.get("OPENAFM_THREADS") or str(os.cpu_count())
    if server is None:
        command = [python, "-m", "llama_cpp.server", "--model", str(gguf), "--port", str(port), "--n_ctx", "4096"]
        command += ["--n_threads", threads, "--n_threads_batch", threads, "--interrupt_requests", "false"]
    else:
        places = max(USERS)
        command = [str(server), "--model", str(gguf), "--port", str(port), "--ctx-size", str(places * 1024)]
        command += ["--parallel", str(places), "--threads", threads, "--threads-batch", threads]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                path = "/v1/models" if server is None else "/health"
                if httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False).status_code == 200:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def can_import(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=120).returncode == 0


def setting(per_user: int, max_tokens: int) -> dict[str, Any]:
    return {
        "requests_per_user": per_user,
        "max_tokens": max_tokens,
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
