"""Damaged bundles and snapshots raise a typed error or run; no process crashes.

Each kind of damage runs in its own process (damage.py) with a memory limit. A case is identified by its seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_bundles import LORA, compressed_bundle, random_adapter_weights, write_compressed

from openafm.bundle import RecoveryAdapter
from openafm.core.native_build import cache_home
from openafm.runtime.native.library import native_library

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("kind", "count"), [("config", 200), ("tensors", 100), ("bytes", 80), ("adapter", 60), ("snapshot", 300)]
)
def test_damaged_input_raises_or_runs(kind: str, count: int, tmp_path: Path) -> None:
    native_library()
    bundle = compressed_bundle()
    if kind == "adapter":
        bundle = write_compressed(
            tmp_path / "bundle", recovery=RecoveryAdapter(config=LORA, weights=random_adapter_weights(1))
        )
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "native").symlink_to(cache_home() / "native")
    command = [sys.executable, HERE / "damage.py", kind, bundle.path, tmp_path / "damaged", "0", str(count)]
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "OPENAFM_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    counts = json.loads(done.stdout)
    assert counts["ran"] + counts["refused"] == count
    assert counts["ran"] >= 1
    assert counts["refused"] >= count // 3
