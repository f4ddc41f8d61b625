"""A server process for benchmarks, and its memory, files and CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2 as httpx


@dataclass(frozen=True)
class ServerProcess:
    """A running server: its process, its URL, and the file of its output."""

    process: subprocess.Popen[bytes]
    url: str
    output: Path

    def descendants(self) -> list[int]:
        """Return the ids of the worker processes."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(text) for text in children.read_text(encoding="ascii").split()]

    def resident_mb(self) -> float:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def cpu_seconds(self) -> float:
        """Return the processor time of all threads of the process."""
        return cpu_seconds(self.process.pid)

    def num_files(self) -> int:
        """Return the number of open file descriptors."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def openafm_server(folder: Path, *options: str) -> Iterator[ServerProcess]:
    """Run `openafm serve` and yield it once it is ready."""
    output = folder / "output.txt"
    command = [sys.executable, "-m", "openafm", "serve", "--port", "0", "--json", *options]
    with output.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            first = output.read_text(encoding="utf-8").partition("\n")[0]
            if first.endswith("}"):
                url = str(json.loads(first)["url"])
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200:
                        yield ServerProcess(process, url, output)
                        return
            time.sleep(0.1)
        raise RuntimeError(f"the server did not start: {output.read_text(encoding='utf-8')[-500:]}")
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
