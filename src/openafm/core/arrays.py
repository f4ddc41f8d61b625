"""Array files of NumPy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_HEADERS = threading.Lock()


def map_array_file(path: Path) -> npt.NDArray[Any]:
    """Return an array file, memory-mapped and read-only.

    One thread at a time: NumPy parses the header by `ast`, and threads of CPython 3.11 share the counter of its depth, so
    that two parsers at once raise "AST constructor recursion depth mismatch". A malformed header raises errors of many
    types, such as tokenize.TokenError.
    """
    with _HEADERS:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
