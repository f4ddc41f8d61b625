"""Track parallelism has one sum per block of layers, tensor parallelism two per layer (report 2.2)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "collectives.py"


@pytest.mark.slow
def test_all_reduces_of_tracks_against_those_of_tensor_parallelism() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--quick", "--json"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    layers, block_depth = report["setting"]["layers"], report["setting"]["block_depth"]
    assert (layers, block_depth) == (48, 4)
    figures = report["figures"]
    for way in ("", "_backward"):
        assert figures[f"tensor_parallel{way}"] == 2 * layers
        assert figures[f"track_parallel{way}"] == layers // block_depth
        assert figures[f"saving{way}"] == 0.875
