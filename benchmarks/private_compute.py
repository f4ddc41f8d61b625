"""Private compute: mutations that are refused, canaries in what a node writes, and added latency.

- `tampered`, `refused`: mutations of statements, proofs, checkpoints, requests and responses, and how many were refused.
- `canaries_found`: files of a node and a relay, in processes of their own, that have words of prompts or answers.
- `added_ms`, `added_relay_ms`: median time of a short answer through the encrypted node, and through relay and node, minus
  that of the same answer over plain HTTP.

    python benchmarks/private_compute.py [--quick] [--json]

Required: all mutations are refused, at least 1,000 of them; no canary is found.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
from shared.reporting import benchmark_parser, hand_in

from openafm.serving.config import ServerConfig
from openafm.serving.private.client import PrivateClient
from openafm.serving.private.errors import PrivateComputeError
from openafm.serving.private.log.merkle import leaf_hash
from openafm.serving.private.log.release_log import ReleaseLog
from openafm.serving.private.node.folder import open_keys, write_release
from openafm.serving.private.node.statements import SOFTWARE_ONLY
from openafm.serving.private.oblivious_http.chunks import ChunkOpener, ChunkSealer
from openafm.serving.private.oblivious_http.encapsulation import CHUNKED, open_request, seal_request
from openafm.serving.private.oblivious_http.key_configs import NodeKey
from openafm.serving.private.verification import Trust, check_node, decode_proofs, encode_proofs

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "private_compute.json"
PROMPT = "Note: dinner with {canary} at 7."
CHARACTERS = '0123456789abcdefXYZ+=/ \n"{}'


def main() -> None:
    options = benchmark_parser(__doc__, "fewer mutations and requests, under two minutes").parse_args()
    num_mutations, num_requests = (1000, 5) if options.quick else (10_000, 40)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["OPENAFM_HOME"] = str(folder / "client")
        log = ReleaseLog.create(folder / "log", "example.com/releases")
        log.add(write_release(folder / "node", ServerConfig(models=("nano",)), number=1, minimum=0))
        log = ReleaseLog(log.folder)
        figures: dict[str, Any] = mutations(folder / "node", log, num_mutations)
        say(f"{figures['refused']} of {figures['tampered']} mutations refused")
        figures |= deployment(folder, log, num_requests)
    hand_in({"figures": figures}, REPORT, options)


def mutations(node_folder: Path, log: ReleaseLog, number: int) -> dict[str, int]:
    """Return how many of `number` mutations or more are refused."""
    draw = random.Random(0)
    keys = open_keys(node_folder, ServerConfig(models=("nano",)))
    trust = Trust(log="http://localhost", log_key=str(log.key))
    statement = keys.statement()
    release = json.loads(json.loads(statement)["statement"])["release"]
    data = json.dumps(release, sort_keys=True, separators=(",", ":")).encode()
    proofs = encode_proofs(log.proofs(leaf_hash(data), 0))
    key = NodeKey(1)
    sealed, client = seal_request(key.config, [b"question" * 8, b"end"], CHUNKED)
    _, exchange = open_request([key], sealed, CHUNKED)
    sealer = ChunkSealer(exchange)
    response = sealer.nonce + sealer.seal(b"answer" * 8) + sealer.seal_last(b"end")

    def check(stated: bytes, proved: bytes) -> None:
        check_node(stated, decode_proofs(proved), trust, log.checkpoint, [SOFTWARE_ONLY])

    def open_reply(damaged: bytes) -> None:
        opener = ChunkOpener(client)
        opener.feed(damaged)
        opener.end()

    check(statement, proofs)
    open_reply(response)
    kinds: list[tuple[bytes, Callable[[random.Random, bytes], bytes], Callable[[bytes], object]]] = [
        (statement, changed_text, lambda damaged: check(damaged, proofs)),
        (proofs, changed_text, lambda damaged: check(statement, damaged)),
        (sealed, changed_bytes, lambda damaged: open_request([key], damaged, CHUNKED)),
        (response, changed_bytes, open_reply),
    ]
    refused = 0
    for index in range(number):
        original, change, use = kinds[index % len(kinds)]
        try:
            use(change(draw, original))
        except PrivateComputeError:
            refused += 1
    return {"tampered": number, "refused": refused}


def changed_text(draw: random.Random, data: bytes) -> bytes:
    """Return text with one character changed, removed or added, or cut."""
    text, at = data.decode(), draw.randrange(len(data))
    other = draw.choice([each for each in CHARACTERS if each != text[at]])
    forms = [
        text[:at] + other + text[at + 1 :],
        text[:at] + text[at + 1 :],
        text[: at + 1] + other + text[at + 1 :],
        text[:at],
    ]
    return draw.choice(forms).encode()


def changed_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with one bit changed, one byte removed or added, or cut."""
    at = draw.randrange(len(data))
    flipped = data[:at] + bytes((data[at] ^ 1 << draw.randrange(8),)) + data[at + 1 :]
    return draw.choice([flipped, data[:at] + data[at + 1 :], data[:at] + b"\0" + data[at:], data[:at]])


def deployment(folder: Path, log: ReleaseLog, num_requests: int) -> dict[str, Any]:
    """Return canaries and latencies of a log, a node, a relay and a plain server in processes of their own."""
    with contextlib.ExitStack() as stack:
        log_url = stack.enter_context(process(folder / "log_home", "private", "log", "serve", str(log.folder)))
        node_url = stack.enter_context(process(folder / "node_home", "serve", "--private", str(folder / "node")))
        relay_url = stack.enter_context(process(folder / "relay_home", "private", "relay", "--to", node_url))
        plain_url = stack.enter_context(process(folder / "plain_home", "serve", "--model", "nano"))
        say("log, node, relay and plain server run")
        trust = Trust(log=log_url, log_key=str(log.key))
        words: set[bytes] = set()
        seconds: dict[str, list[float]] = {"node": [], "relay": [], "plain": []}
        http = httpx2.Client(timeout=60, trust_env=False)
        for index in range(num_requests + 1):
            canary = f"canary{random.Random(index).randrange(10**12):012d}"
            messages = [{"role": "user", "content": PROMPT.format(canary=canary)}]
            words.add(canary.encode())
            for name, url in (("node", node_url), ("relay", relay_url)):
                started = time.perf_counter()
                answer = "".join(PrivateClient([url], trust, [SOFTWARE_ONLY]).chat(messages, max_tokens=16))
                seconds[name].append(time.perf_counter() - started)
                words |= {answer.encode()} if len(answer) > 12 else set()
            started = time.perf_counter()
            body = {"messages": messages, "max_tokens": 16, "stream": True}
            http.post(f"{plain_url}/v1/chat/completions", json=body).raise_for_status()
            seconds["plain"].append(time.perf_counter() - started)
            with contextlib.suppress(PrivateComputeError):  # errors must not quote requests either
                list(PrivateClient([node_url], trust, [SOFTWARE_ONLY]).chat(messages, model=canary))
        metrics = http.get(f"{node_url}/metrics").content
    files = [
        path.read_bytes()
        for name in ("node_home", "relay_home", "log_home")
        for path in (folder / name).rglob("*")
        if path.is_file()
    ]
    median = {name: statistics.median(values[1:]) for name, values in seconds.items()}  # the first one loads the model
    return {
        "canaries_found": sum(word in content for content in (*files, metrics) for word in words),
        "canaries": len(words),
        "files_searched": len(files),
        "plain_ms": round(1000 * median["plain"], 1),
        "added_ms": round(1000 * (median["node"] - median["plain"]), 1),
        "added_relay_ms": round(1000 * (median["relay"] - median["plain"]), 1),
    }


@contextlib.contextmanager
def process(home: Path, *arguments: str) -> Iterator[str]:
    """Run a command of openafm with its own home, temporary folder and output files; yield its URL."""
    home.mkdir()
    environment = {**os.environ, "OPENAFM_HOME": str(home / "openafm"), "TMPDIR": str(home), "HOME": str(home)}
    with (home / "stdout.txt").open("wb") as output, (home / "stderr.txt").open("wb") as errors:
        command = [sys.executable, "-m", "openafm", *arguments, "--port", "0", "--json"]
        running = subprocess.Popen(command, env=environment, cwd=home, stdout=output, stderr=errors)
        try:
            yield url_of(running, home)
        finally:
            running.terminate()
            running.wait(30)


def url_of(running: subprocess.Popen[bytes], home: Path) -> str:
    """Return the URL that a server prints, once it answers."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and running.poll() is None:
        lines = (home / "stdout.txt").read_text().splitlines()
        with contextlib.suppress(httpx2.HTTPError, IndexError, ValueError):
            url = str(json.loads(lines[0])["url"])
            httpx2.get(f"{url}/health", timeout=5, trust_env=False)
            return url
        time.sleep(0.1)
    raise SystemExit(f"{home.name} did not start: {(home / 'stderr.txt').read_text()}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
