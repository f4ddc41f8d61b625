"""Array files that threads open at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from openafm.core.arrays import map_array_file


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads switch in callbacks of the garbage collector, also inside of a parser that is written in C."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(_callback)
    sys.setswitchinterval(1e-6)
    gc.set_threshold(1, 1000, 1000)
    yield
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)
    gc.callbacks.remove(_callback)


def _callback(phase: str, info: dict[str, int]) -> None:
    """Run Python code, after which another thread may continue."""


@pytest.mark.usefixtures("frequent_switches")
def test_threads_open_files_at_once(tmp_path: Path) -> None:
    records = np.zeros(20, [("digest", "S32"), ("offset", "<i8"), ("width", "<i4"), ("height", "<i4")])
    np.save(tmp_path / "index.npy", records)
    with ThreadPoolExecutor(4) as pool:
        arrays = list(pool.map(map_array_file, [tmp_path / "index.npy"] * 40))
    assert all(array.dtype == records.dtype and len(array) == 20 for array in arrays)
