from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openafm.data.deduplication.sorting import COPIES, MIN_BLOCK, ExternalSort

DTYPE = np.dtype([("key", "<u8"), ("text", "S4"), ("place", "<u8")])


def records(keys: list[int]) -> np.ndarray:
    made = np.zeros(len(keys), DTYPE)
    made["key"], made["place"] = keys, np.arange(len(keys))
    made["text"] = [b"%d" % (key % 7) for key in keys]
    return made


@given(st.lists(st.integers(0, 9) | st.integers(0, 2**64 - 1), max_size=60), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_order_is_that_of_a_sort_in_memory(tmp_path_factory: pytest.TempPathFactory, keys: list[int], size: int) -> None:
    folder = tmp_path_factory.mktemp("sort")
    given_records = records(keys * 40)
    sort = ExternalSort(folder, "s", DTYPE, ("text", "key", "place"), memory_bytes=1)
    for start in range(0, len(given_records), size * 40):
        sort.add(given_records[start : start + size * 40])
    blocks = list(sort.merged())
    assert all(len(block) for block in blocks)
    merged = np.concatenate([np.zeros(0, DTYPE), *blocks])
    expected = np.sort(given_records, order=["text", "key", "place"])
    assert merged.tolist() == expected.tolist()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("is_equal", [False, True])
def test_memory_stays_below_the_budget(tmp_path: Path, is_equal: bool) -> None:
    budget, count = 1 << 18, 25_000  # 0.5 MB of records
    random = np.random.default_rng(0)
    sort = ExternalSort(tmp_path, "s", DTYPE, ("key", "place"), budget)
    tracemalloc.start()
    try:
        for _ in range(count // 1000):
            block = np.zeros(1000, DTYPE)
            block["key"] = 5 if is_equal else random.integers(0, 2**63, 1000)
            sort.add(block)
        total = sum(len(block) for block in sort.merged())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    runs = count * DTYPE.itemsize * COPIES // budget + 1
    assert total == count
    assert peak < max(budget, COPIES * MIN_BLOCK * DTYPE.itemsize * runs) + 100_000
