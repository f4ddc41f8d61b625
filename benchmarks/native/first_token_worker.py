"""The native engine in a process of its own: one request, {"bundle": PATH, "threads": 1}, and the reply at the first token.

The reply has the CPU time of the process since its start and its largest resident memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import process_time

NUM_TOKENS = 8


def largest_memory_gb() -> float:
    """Return the largest resident memory of this process; that of getrusage includes the process that started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e9


def main() -> None:
    order = json.loads(sys.stdin.readline())
    from openafm.bundle import open_bundle
    from openafm.runtime.native.engine import NativeEngine

    engine = NativeEngine(open_bundle(order["bundle"]), num_threads=order["threads"])
    sequence = engine.new_sequence()
    (logits_V,) = engine.step([(sequence, [100 + number for number in range(NUM_TOKENS)])])
    assert logits_V.argmax() >= 0
    peak_gb = largest_memory_gb()
    print(json.dumps({"cpu_s": process_time(), "peak_gb": peak_gb}), flush=True)


if __name__ == "__main__":
    main()
