"""Simulated annotators against one server that is killed: lost and doubled steps, and the times of page actions.

    python benchmarks/annotation_load.py --json [--quick]

Each annotator opens an item, writes a query, runs the scripted model, edits a step, reverts, comments and marks the item,
over HTTP, with the keys and sequence numbers that the page sends. The server process is killed (SIGKILL) and started again
on the same port several times. An annotator repeats a request that got no reply, with the same key, as the page does.

- lost: changes that the server confirmed and that are not in the log at the end
- doubled: changes that are in the log more than once
- p95_ms: 95th percentile of the times of confirmed changes and reads, without the requests that a kill interrupted
- server_cpu_ms: CPU time of the server process for one of them, runs of the model included
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from shared.reporting import benchmark_parser, hand_in

from openafm.annotation.database import Database
from openafm.annotation.environments.project import DATABASE, write_sample
from openafm.annotation.trees.store import TreeStore
from openafm.annotation.trees.tables import TREES
from openafm.annotation.trees.tree import EventKind

REPORT = Path(__file__).parents[1] / "docs" / "benchmarks" / "annotation_load.json"
POLL_SECONDS = 4.0
"""Between two requests of a page that asks for changes of others."""
TRANSPORT_ERRORS = (OSError, HTTPException)
COMMAND = "from openafm.cli.main import main; main()"


def main() -> None:
    """Run the benchmark from the command line."""
    arguments = benchmark_parser(__doc__, "8 annotators, 2 kills, 30 s instead of 50, 5 and 180 s").parse_args()
    people, kills, seconds = (8, 2, 30.0) if arguments.quick else (50, 5, 180.0)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "travel", people, kills, seconds)
    hand_in({"figures": found}, REPORT, arguments)


def measure(folder: Path, num_people: int, num_kills: int, seconds: float) -> dict[str, Any]:
    """Run annotators and return what the log has at the end."""
    write_sample("travel", folder)
    port = free_port()
    server, cpu = start_server(folder, port), 0.0
    began = cpu_seconds(server.pid)
    stop = threading.Event()
    annotators = [Annotator(port, number, stop) for number in range(num_people)]
    threads = [threading.Thread(target=annotator.work) for annotator in annotators]
    for thread in threads:
        thread.start()
    for kill in range(num_kills):
        time.sleep(seconds / (num_kills + 1))
        cpu += cpu_seconds(server.pid) - began
        server.kill()
        server.wait()
        print(f"kill {kill + 1}", file=sys.stderr)
        server = start_server(folder, port)
        began = cpu_seconds(server.pid)
    time.sleep(seconds / (num_kills + 1))
    stop.set()
    for thread in threads:
        thread.join()
    cpu += cpu_seconds(server.pid) - began
    server.kill()
    server.wait()
    failed = [annotator.failure for annotator in annotators if annotator.failure]
    if failed:
        raise RuntimeError(f"{len(failed)} annotators failed, the first with {failed[0]}")
    times = sorted(each for annotator in annotators for each in annotator.times)
    confirmed = [change for annotator in annotators for change in annotator.confirmed]
    lost, doubled = compare(folder, confirmed)
    return {
        "annotators": num_people,
        "kills": num_kills,
        "changes": len(confirmed),
        "lost": lost,
        "doubled": doubled,
        "p50_ms": round(1000 * times[len(times) // 2], 1),
        "p95_ms": round(1000 * times[int(0.95 * len(times))], 1),
        "server_cpu_ms": round(1000 * cpu / len(times), 2),
    }


def compare(folder: Path, confirmed: list[tuple[str, str]]) -> tuple[int, int]:
    """Return how many confirmed changes are missing in the log, and how many are there more than once."""
    database = Database(folder / DATABASE, [TREES])
    store = TreeStore(database)
    counts: Counter[tuple[str, str]] = Counter()
    for item in store.items():
        groups = [event.group for event in store.events(item["id"]) if event.kind is not EventKind.OPENED]
        runs = [group for before, group in zip(["", *groups], groups, strict=False) if group != before]
        counts.update((item["id"], group) for group in runs)
    database.close()
    return sum(counts[change] == 0 for change in confirmed), sum(count > 1 for count in counts.values())


class Annotator:
    """A person with a browser, who repeats requests without a reply. Sends the requests of the page, also its polls."""

    def __init__(self, port: int, number: int, stop: threading.Event) -> None:
        self._stop, self._rng = stop, random.Random(number)
        self._connection = HTTPConnection("127.0.0.1", port, timeout=60)  # a client library would take half of a core
        self._csrf = ""
        self._view: dict[str, Any] = {}
        self._polled = 0.0
        self.times: list[float] = []
        self.confirmed: list[tuple[str, str]] = []
        self.failure = ""

    def work(self) -> None:
        """Annotate items until the benchmark stops."""
        try:
            self._sign_in()
            project = self._send("GET", "/project")
            while not self._stop.is_set():
                self._annotate(self._rng.choice(project["scenarios"]), secrets.token_hex(6))
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _annotate(self, scenario: dict[str, Any], item: str) -> None:
        self._send("POST", "/items", {"scenario": scenario["id"], "item": item})
        self._send("GET", "/items")
        self._view = self._send("GET", f"/items/{item}")
        self._change(item, "append", content={"kind": "query", "text": scenario["query"]})
        self._run(item)
        step = next((n for n in self._view["nodes"] if n["id"] in self._view["stem"] and n["kind"] == "step"), None)
        if step is not None:
            calls = [{"name": scenario["calls"][0]["name"], "arguments": scenario["calls"][0]["arguments"]}]
            if calls == step["calls"]:
                calls = calls * 2
            self._change(item, "edit", node=step["id"], content={"kind": "step", "calls": calls}, keeps_rest=True, text="x")
            self._change(item, "revert", node=step["id"], text="check")
            self._change(item, "undo")
        self._change(item, "comment", node=0, text="looked at")
        self._change(item, "done")

    def _change(self, item: str, action: str, **values: Any) -> None:
        key = secrets.token_hex(12)
        body = {"key": key, "sequence": self._view["sequence"], "action": action, **values}
        self._view = self._send("POST", f"/items/{item}/changes", body)
        self.confirmed.append((item, key))
        time.sleep(self._rng.uniform(0.2, 1.0))  # people read and think
        if time.monotonic() - self._polled > POLL_SECONDS:
            self._polled = time.monotonic()
            self._send("GET", f"/items/{item}/version")

    def _run(self, item: str) -> None:
        """Run the model until it has answered; a run that a kill interrupted continues with a new key."""
        while True:
            body = {"key": secrets.token_hex(12), "sequence": self._view["sequence"]}
            try:
                status, text = self._request("POST", f"/items/{item}/run", body)
            except TRANSPORT_ERRORS:
                self._sign_in()
            else:
                if status in (409, 429):  # the run of before still ends, or all share one account and its limit
                    time.sleep(0.2)
                elif status != 200:
                    raise RuntimeError(text)
            self._view = self._send("GET", f"/items/{item}")
            if any(node["kind"] == "answer" and node["id"] == self._view["head"] for node in self._view["nodes"]):
                return

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        """Return a reply. A request without a reply is repeated; the server makes a change of one key once."""
        while True:
            started = time.perf_counter()
            try:
                status, text = self._request(method, path, body)
            except TRANSPORT_ERRORS:
                self._sign_in()
                continue
            if status == 403:  # the server is new, and with it the token
                self._sign_in()
                continue
            if status != 200:
                raise RuntimeError(f"{path}: {text!r}")
            self.times.append(time.perf_counter() - started)
            return json.loads(text)

    def _request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Send one request; return the status and the whole body."""
        headers = {"X-CSRF-Token": self._csrf, "Content-Type": "application/json"}
        try:
            self._connection.request(method, f"/api{path}", None if body is None else json.dumps(body), headers)
            reply = self._connection.getresponse()
            return reply.status, reply.read()
        except TRANSPORT_ERRORS:
            self._connection.close()  # the next request connects again
            raise

    def _sign_in(self) -> None:
        """Wait for the server and read the session's token."""
        while True:
            try:
                self._csrf = json.loads(self._request("GET", "/session")[1])["csrf"]
                return
            except TRANSPORT_ERRORS:
                time.sleep(0.2)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process of Linux, without its tool processes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_server(folder: Path, port: int) -> subprocess.Popen[str]:
    """Start the server and wait until it listens."""
    arguments = ["annotate", "serve", "--project", str(folder), "--model", "scripted", "--port", str(port), "--json"]
    server = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    if not server.stdout.readline():
        raise RuntimeError("the server did not start")
    return server


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
