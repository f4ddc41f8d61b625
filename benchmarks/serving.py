"""Throughput and latency of the server under load, beside llama.cpp's server if there is one.

One load generator (that of `openafm bench`) streams chats of 1, 4, 8 and 16 users over loopback, as text and as typed
answers under a JSON Schema. The server is a process of its own with the shipped nano model.

- `tokens_per_second_N`, `ttft_p99_ms_N`, `itl_p99_ms_N`: text at N users.
- `typed_tokens_per_second_8`, `typed_cpu_ms_8`: typed answers at 8 users; the server's processor time for each token.
- `ratio_8`: typed tokens per second at 8 users over those of llama.cpp's server, for random weights of one shape and width
  (serving_parts/peer_model.py) under the same schema; `p99_itl_ratio`: its 99th percentile of the time between tokens
  over the peer's. Required: at least 1.5, at most 1. `cpu_ratio_8` compares tokens for each second of the server's processor
  time, which other programs on the machine change least. `ratio_1` compares one user. All are medians over rounds that
  alternate between the servers, with the lowest and highest round in `spread`; null, with the reason in `peer`, without a
  peer. Random weights end an answer only at the end of the schema or at the token limit. Both sides use the same number of
  threads.

The peer is llama.cpp's `llama-server`, which batches 16 users, or else llama-cpp-python's, which answers one request at a
time.

    python benchmarks/serving.py [--quick] [--json] [--peer-server FILE | --peer-python PYTHON]

    cmake -B build && cmake --build build --target llama-server        # in llama.cpp: --peer-server build/bin/llama-server
    python -m venv llama && llama/bin/pip install 'llama-cpp-python[server]'     # --peer-python llama/bin/python

Client and server share the machine's cores; use a quiet one. A full run writes docs/benchmarks/serving.json. `--quick` runs
the same code for few requests and claims nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
from serving_parts.processes import openafm_server
from serving_parts.rounds import Endpoint, Round, alternate, run_round, spread
from shared.reporting import benchmark_parser, hand_in

from openafm.bundle import open_bundle

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


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much a run measures."""

    num_rounds: int
    per_user: int
    max_tokens: int


FULL = Size(num_rounds=15, per_user=6, max_tokens=96)
QUICK = Size(num_rounds=5, per_user=4, max_tokens=16)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has llama_cpp")
    parser.add_argument("--peer-server", type=Path, help="llama.cpp's llama-server")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(openafm_server(folder, "--model", "nano"))
        text = Endpoint(pid=server.process.pid, url=f"{server.url}/v1")
        run_round(text, num_users=2, per_user=size.per_user, max_tokens=size.max_tokens)  # warm up
        for users in USERS:
            report = run_round(text, num_users=users, per_user=2 * size.per_user, max_tokens=size.max_tokens).report
            figures[f"tokens_per_second_{users}"] = report.tokens_per_second
            figures[f"ttft_p99_ms_{users}"] = report.ttft_ms["p99"]
            figures[f"itl_p99_ms_{users}"] = report.itl_ms.get("p99")
        endpoints = {"ours": replace(text, schema=SCHEMA)}
        peer, reason = stack.enter_context(peer_endpoint(options.peer_server, options.peer_python, folder))
        if peer is not None:
            endpoints["peer"] = peer
        for endpoint in endpoints.values():
            run_round(endpoint, num_users=8, per_user=1, max_tokens=size.max_tokens)  # warm up
        figures |= typed_figures(endpoints, size, reason)
    hand_in({"figures": figures, "setting": setting(size)}, REPORT, options)


def typed_figures(endpoints: Mapping[str, Endpoint], size: Size, reason: str) -> dict[str, Any]:
    """Return the figures of typed answers, with the ratios to the peer if there is one."""
    load = {"per_user": size.per_user, "max_tokens": size.max_tokens}
    eight = alternate(endpoints, size.num_rounds, num_users=8, **load)
    failed = {name: sum(each.report.num_failed for each in rounds) for name, rounds in eight.items()}
    figures: dict[str, Any] = {"failed": failed["ours"], "ratio_8": None, "p99_itl_ratio": None, "cpu_ratio_8": None}
    figures |= {"ratio_1": None, "peer": reason, "spread": {}}
    for name, rounds in eight.items():
        prefix = "" if name == "ours" else "peer_"
        figures[f"{prefix}typed_tokens_per_second_8"] = median_of(rounds, lambda each: each.report.tokens_per_second)
        figures[f"{prefix}typed_cpu_ms_8"] = median_of(rounds, lambda each: each.cpu_ms)
        figures[f"{prefix}typed_ttft_p99_ms_8"] = median_of(rounds, lambda each: each.report.ttft_ms["p99"])
        figures[f"{prefix}typed_itl_p99_ms_8"] = median_of(rounds, lambda each: each.report.itl_ms["p99"])
        figures[f"{prefix}client_ms_8"] = median_of(rounds, lambda each: each.client_ms)
    if "peer" not in eight:
        return figures
    if failed["peer"]:
        errors = {name: count for each in eight["peer"] for name, count in each.report.errors.items()}
        return figures | {"peer": f"{failed['peer']} requests of the peer failed: {errors}"}
    one = alternate(endpoints, size.num_rounds, num_users=1, **load)
    ratios = {
        "ratio_8": ratios_of(eight, lambda each: each.report.tokens_per_second),
        "cpu_ratio_8": ratios_of(eight, lambda each: 1 / each.cpu_ms),
        "p99_itl_ratio": ratios_of(eight, lambda each: each.report.itl_ms["p99"]),
        "ratio_1": ratios_of(one, lambda each: each.report.tokens_per_second),
    }
    figures["spread"] = {name: spread(values) for name, values in ratios.items()}
    return figures | {name: round(statistics.median(values), 2) for name, values in ratios.items()}


def median_of(rounds: Sequence[Round], value: Callable[[Round], float]) -> float:
    return round(statistics.median(map(value, rounds)), 4)


def ratios_of(rounds: Mapping[str, Sequence[Round]], value: Callable[[Round], float]) -> list[float]:
    """Return our value over the peer's in each pair of rounds, which were measured one after the other."""
    return [value(ours) / value(peer) for ours, peer in zip(rounds["ours"], rounds["peer"], strict=True)]


@contextlib.contextmanager
def peer_endpoint(server: Path | None, python: str, folder: Path) -> Iterator[tuple[Endpoint | None, str]]:
    """Run llama.cpp's server and yield it with its name, or None with the reason for its absence."""
    if server is None and not can_import(python, "llama_cpp.server.app"):
        yield None, f"{python} has no llama_cpp.server; see the docstring"
        return
    if importlib.util.find_spec("gguf") is None:
        yield None, "the package gguf is not installed"
        return
    from serving_parts.peer_model import write_peer_model

    write_peer_model(folder / "peer.gguf", open_bundle("nano"))
    # this server's name for a grammar of a schema
    extra = {"response_format": {"type": "json_object", "schema": SCHEMA}}
    with llama_server(server, python, folder / "peer.gguf") as (pid, url):
        name = "llama-cpp-python" if server is None else "llama.cpp"
        yield Endpoint(pid=pid, url=url, extra=extra), f"{name}'s server, random weights"


@contextlib.contextmanager
def llama_server(server: Path | None, python: str, gguf: Path) -> Iterator[tuple[int, str]]:
    """Run llama.cpp's server, or without it llama-cpp-python's, and yield its process and its URL."""
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
        yield process.pid, f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def can_import(python: str, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=120).returncode == 0


def setting(size: Size) -> dict[str, Any]:
    return {
        **asdict(size),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OPENAFM_THREADS") or os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
