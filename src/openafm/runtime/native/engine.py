"""The engine for compressed on-device models on a CPU: one C call for each step, and no torch in the process.

Shapes: N tokens of all sequences in a step, V vocabulary.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.package import Adapter
from openafm.bundle import Bundle
from openafm.core.errors import UsageError
from openafm.runtime.engine import Cache, Engine, LogitsOf
from openafm.runtime.native.library import VERSION, native_library
from openafm.runtime.native.model import NativeModel, OutOfMemoryError
from openafm.runtime.native.weights import open_weights

MOST_THREADS = 256


class ThreadsError(UsageError):
    """OPENAFM_THREADS is no number of threads."""


class NativeCache(Cache):
    """Keys and values of one sequence in 8 bits, in pages that forks share until they write to them."""

    def __init__(self, model: NativeModel, handle: int) -> None:
        self.handle, self._model = handle, model
        weakref.finalize(self, model.library.oa_cache_free, handle)

    def copy(self, length: int) -> NativeCache:
        handle = self._model.library.oa_cache_fork(self.handle, length)
        if not handle:
            raise OutOfMemoryError("no memory to fork a sequence; close others")
        copied = NativeCache(self._model, handle)
        copied.length = length
        return copied

    def memory(self) -> dict[int, int]:
        library = self._model.library
        addresses = np.empty(library.oa_cache_pages(self.handle, None), np.uint64)
        library.oa_cache_pages(self.handle, addresses.ctypes.data)
        return dict.fromkeys(addresses.tolist(), library.oa_cache_bytes(self.handle, 1))

    def arrays(self) -> dict[str, NDArray[Any]]:
        pages = np.zeros(self._model.library.oa_cache_bytes(self.handle, self.length), np.uint8)
        self._model.library.oa_cache_save(self.handle, self.length, pages.ctypes.data)
        return {"pages": pages}

    def load(self, arrays: Mapping[str, NDArray[Any]], length: int) -> None:
        pages = np.ascontiguousarray(arrays["pages"])
        expected = self._model.library.oa_cache_bytes(self.handle, length)
        if pages.dtype != np.uint8 or pages.shape != (expected,):
            raise ValueError(f"it holds {pages.dtype}{list(pages.shape)} where uint8[{expected}] belongs")
        if self._model.library.oa_cache_load(self.handle, length, pages.ctypes.data):
            raise OutOfMemoryError(f"no memory to restore a sequence of {length} tokens; close others")
        self.length = length


class NativeEngine(Engine):
    """Runs a compressed bundle with the best kernels of this processor.

    Args:
        num_threads: None for as many as there are processors, `OPENAFM_THREADS` where it is set.
        kernels: one of `kernel_names`; None for the best.

    Raises:
        NativeBuildError: the native runtime cannot be compiled here.
        ThreadsError: OPENAFM_THREADS is no number of threads.
        AdapterMismatchError: the adapter is for another base.
        AdapterError: the adapter is damaged, or another one by now than was opened.
        BundleError: the weights cannot be read or do not fit the config.
    """

    forks_share_memory = True

    def __init__(
        self, bundle: Bundle, adapter: Adapter | None = None, *, num_threads: int | None = None, kernels: str | None = None
    ) -> None:
        adapter = adapter or bundle.recovery_adapter
        if adapter is not None:
            adapter.check_base(bundle.signature)
        super().__init__(
            vocab_size=bundle.config.vocab_size,
            context_length=bundle.config.context_length,
            signature=f"native {VERSION} {bundle.signature}{'' if adapter is None else f' {adapter.digest}'}",
        )
        library = native_library()
        self.num_threads = chosen_threads() if num_threads is None else num_threads
        self._model = NativeModel(library, bundle, open_weights(bundle, library), adapter, self.num_threads, kernels)

    def _new_cache(self) -> Cache:
        handle = self._model.library.oa_cache_new(self._model.handle)
        if not handle:
            raise OutOfMemoryError("no memory for another sequence; close others")
        return NativeCache(self._model, handle)

    def _forward(self, batch: Sequence[tuple[Cache, Sequence[int]]], logits: LogitsOf) -> list[NDArray[np.float32]]:
        counts = [len(tokens) for _, tokens in batch]
        is_all = logits == "all"
        wanted = counts if is_all else [1] * len(batch)
        logits_NV = np.empty((sum(wanted), self.vocab_size), np.float32)
        handles = np.array([cast(NativeCache, cache).handle for cache, _ in batch], np.uint64)
        starts = np.array([cache.length for cache, _ in batch], np.int64)
        counts_D, wanted_D = np.array(counts, np.int32), np.array(wanted, np.int32)
        tokens_N = np.array([token for _, tokens in batch for token in tokens], np.int32)
        failed = self._model.library.oa_step(
            self._model.handle,
            len(batch),
            handles.ctypes.data,
            starts.ctypes.data,
            counts_D.ctypes.data,
            wanted_D.ctypes.data,
            tokens_N.ctypes.data,
            logits_NV.ctypes.data,
        )
        if failed:
            raise OutOfMemoryError(f"no memory for a step of {sum(counts)} tokens; close sequences or give fewer at once")
        return np.split(logits_NV, np.cumsum(counts)[:-1]) if is_all else list(logits_NV)


def chosen_threads() -> int:
    """OPENAFM_THREADS, else as many as there are processors.

    Raises:
        ThreadsError: it is no number of threads.
    """
    chosen = os.environ.get("OPENAFM_THREADS", "")
    if not chosen:
        available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return min(available, MOST_THREADS)
    if not chosen.isdecimal() or not 1 <= int(chosen) <= MOST_THREADS:
        raise ThreadsError(f"OPENAFM_THREADS is '{chosen}'; give a number from 1 to {MOST_THREADS}, or leave it out")
    return int(chosen)
