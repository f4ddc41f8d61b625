"""Run a program of this folder as several processes, as torchrun does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_ranks(program: str, world: int, *arguments: str) -> dict[str, Any]:
    """Run a program over `world` processes and return the JSON that the first one prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), *arguments],
            env={**os.environ, **(shared if world > 1 else {}), "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes)
    result: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return result
