"""Choice of a token in C (source/race.cpp), the same as that of numpy.

The functions keep the interpreter's lock, since they take microseconds. numpy releases it for operations on a vocabulary,
and threads that decode together then wait for each other at each operation.
"""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int32, c_uint64, c_void_p
from functools import cache

import numpy as np
from numpy.typing import NDArray

from openafm.runtime.native.library import native_library


class Race:
    """Functions of the native library. Both return -1 where numpy must decide or report an error."""

    def __init__(self, path: str) -> None:
        library = ctypes.PyDLL(path)
        self._highest, self._race = library.oa_highest, library.oa_race
        self._highest.argtypes, self._highest.restype = (c_void_p, c_int32), c_int32
        self._race.argtypes = (c_void_p, c_int32, c_int32, c_double, c_double, c_uint64)
        self._race.restype = c_int32

    def highest(self, logits_V: NDArray[np.float32]) -> int:
        """Return the first of the highest logits; -1 if a logit is not a number or the highest is not finite."""
        if not logits_V.flags.c_contiguous:
            return -1
        token: int = self._highest(logits_V.ctypes.data, len(logits_V))
        return token

    def winner(self, logits_V: NDArray[np.float32], highest: int, temperature: float, negligible: float, begin: int) -> int:
        """Return the token that wins the race (sampling.py); -1 if two tokens have nearly equal times.

        Args:
            highest: result of `highest` for these logits.
            negligible: tokens this many temperatures below the highest do not take part.
            begin: the state of the sampler at the position.
        """
        token: int = self._race(logits_V.ctypes.data, len(logits_V), highest, temperature, negligible, begin)
        return token


def loaded_race() -> Race | None:
    """Return the functions if a native engine has loaded the library in this process. Compiles nothing."""
    return _race() if native_library.cache_info().currsize else None


@cache
def _race() -> Race:
    return Race(native_library()._name)
