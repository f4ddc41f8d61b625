"""Engine for dense decoders on a CPU, compressed or in fp32 or bfloat16: one C call for each step, without torch.

Shapes: N tokens of all sequences in a step, V vocabulary.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.compression.numerics import Numerics
from openafm.core.errors import UsageError
from openafm.core.processes import finalize
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.runtime.batching.pending import TokenChunk
from openafm.runtime.engines.base import Cache, Engine, InsertedEmbeddingsError, OtherBundleError, WeightUpdateError
from openafm.runtime.native.library import VERSION, kernel_names, native_library
from openafm.runtime.native.model import NativeModel, OutOfMemoryError
from openafm.runtime.native.support import takes_new_weights
from openafm.runtime.native.update import packed_update, with_numerics
from openafm.runtime.native.vision import LazyVisionTower
from openafm.runtime.native.weights import open_weights, rounded_weights

MOST_THREADS = 256
_NOTHING = np.empty(0, np.float32)


class ThreadsError(UsageError):
    """OPENAFM_THREADS is not a valid number of threads."""


class KernelsError(UsageError):
    """The kernel set is unknown, or the processor does not support it."""


class NativeCache(Cache):
    """Keys and values of one sequence in 8 bits or fp32, in pages that forks share until one of them writes."""

    def __init__(self, model: NativeModel, handle: int) -> None:
        self.handle, self._model = handle, model
        finalize(self, model.library.oa_cache_free, handle)  # not at exit: the worker may be computing

    def copy(self, length: int) -> NativeCache:
        handle = self._model.library.oa_cache_fork(self.handle, length)
        if not handle:
            raise OutOfMemoryError("no memory to fork a sequence; close other sequences")
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
            raise ValueError(f"{pages.dtype}{list(pages.shape)} instead of uint8[{expected}]")
        if self._model.library.oa_cache_load(self.handle, length, pages.ctypes.data):
            raise OutOfMemoryError(f"no memory to restore a sequence of {length} tokens; close other sequences")
        self.length = length


class NativeEngine(Engine):
    """Runs a bundle that `support.unsupported` accepts with the best kernels of this processor.

    Args:
        num_threads: `OPENAFM_THREADS` if not given, else the number of available processors.
        kernels: one of `kernel_names`; `OPENAFM_KERNELS` if not given, else the best.
        numerics: formats to which this engine rounds the weights of a full-precision bundle, now and at every update.
        beside: an engine of the same bundle, whose weights, threads, kernels and steps this engine shares.

    Raises:
        NativeBuildError: the native runtime cannot be compiled here.
        ThreadsError: OPENAFM_THREADS is not a valid number of threads.
        KernelsError: the processor does not support the kernel set.
        AdapterMismatchError: the adapter is for another base.
        AdapterError: the adapter is damaged or has changed since it was opened.
        BundleError: the weights cannot be read or do not fit the config.
        OtherBundleError: `beside` has other weights.
    """

    combines = True
    forks_share_memory = True

    def __init__(
        self,
        bundle: Bundle,
        adapter: AdapterPackage | None = None,
        *,
        num_threads: int | None = None,
        kernels: str | None = None,
        numerics: Numerics | None = None,
        beside: NativeEngine | None = None,
    ) -> None:
        adapter = adapter or bundle.recovery_adapter
        if adapter is not None:
            adapter.check_base(bundle.signature)
        super().__init__(
            vocab_size=bundle.config.vocab_size,
            context_length=bundle.config.context_length,
            signature=f"native {VERSION} {bundle.signature}{'' if adapter is None else f' {adapter.digest}'}"
            + ("" if numerics is None else f" rounded to {numerics.weights}"),
            beside=beside,
        )
        self._takes_new_weights = takes_new_weights(bundle)
        self._bundle, self._dim = bundle if numerics is None else with_numerics(bundle, numerics), bundle.config.dim
        self._first_signature = self.signature
        if beside is None:
            library = native_library()
            self.num_threads = chosen_threads() if num_threads is None else num_threads
            self.kernels = chosen_kernels(library) if kernels is None else kernels
            self._weights = open_weights(bundle, library) if numerics is None else rounded_weights(self._bundle, library)
            self._owns_weights = numerics is not None
            self._model = self._new_model(library)
            self._tower = LazyVisionTower(self._bundle, self.num_threads, self.kernels)
        else:
            own, other = self._bundle, beside._bundle
            if (own.signature, own.numerics, 0) != (other.signature, other.numerics, beside.weights_version):
                raise OtherBundleError
            self.num_threads, self.kernels = beside.num_threads, beside.kernels
            self._weights, self._model = beside._weights, beside._model
            self._owns_weights = beside._owns_weights = False
            self._tower = beside._tower
        self._adapter = None if adapter is None else self._model.adapter(adapter)

    @property
    def runner(self) -> object:
        return self._model

    def _new_model(self, library: ctypes.CDLL) -> NativeModel:
        return NativeModel(library, self._bundle, self._weights, self.num_threads, self.kernels)

    def _new_cache(self) -> Cache:
        handle = self._model.library.oa_cache_new(self._model.handle)
        if not handle:
            raise OutOfMemoryError("no memory for another sequence; close other sequences")
        return NativeCache(self._model, handle)

    def encode_views(self, views_VYXC: NDArray[np.uint8], num_tokens: int) -> NDArray[np.float32]:
        if not isinstance(self._bundle.config, MultimodalConfig):
            return super().encode_views(views_VYXC, num_tokens)
        return self._tower.encode(views_VYXC, num_tokens)

    def release_vision(self) -> None:
        self._tower.release()

    def update_weights(self, tensors: Mapping[str, Any], version: int) -> None:
        """See `Engine.update_weights`. The first update copies weights that are shared with other engines.

        Raises:
            WeightUpdateError: the bundle is compressed or has a vision encoder, the version is not above the present one, or
                a name or shape is not one of the bundle's.
        """
        if not self._takes_new_weights:
            super().update_weights(tensors, version)
        if version <= self.weights_version:
            raise WeightUpdateError(f"weights version {version} is not above the present {self.weights_version}")
        packed = packed_update(self._bundle, tensors, self._model.library)
        with self.scheduler.exclusive():
            if not self._owns_weights:
                self._weights, self._owns_weights = self._weights.copy(), True
                self._model = self._new_model(self._model.library)
            for name, section in packed.items():
                self._weights.write(name, section)
            self._drop_caches()
            self.weights_version = version
            self.signature = f"{self._first_signature} weights {version}"

    def forward(self, chunks: Sequence[TokenChunk]) -> list[NDArray[np.float32]]:
        arguments = _StepArguments(chunks, self.vocab_size, self._dim)
        return arguments.outputs(self._model.library.oa_step(self._model.handle, *arguments.values))

    def _states(self, chunk: TokenChunk) -> NDArray[np.float32]:
        library, handle = self._model.library, self._model.handle
        arguments = _StepArguments([chunk], 0, self._dim)
        arguments.check(library.oa_step(handle, *arguments.values[:-1], None))
        states_ND = np.empty((len(chunk.tokens), self._dim), np.float32)
        library.oa_states(handle, len(states_ND), states_ND.ctypes.data)
        return states_ND


class _StepArguments:
    """The arrays that one step in C reads and writes. Must live until the step ends."""

    def __init__(self, chunks: Sequence[TokenChunk], vocab_size: int, dim: int) -> None:
        tokens = array("i")
        for chunk in chunks:
            tokens += chunk.tokens
        self._wanted = array("i", [chunk.num_wanted for chunk in chunks])
        self._caches = [cast(NativeCache, chunk.cache) for chunk in chunks]
        self._adapters = [cast(NativeEngine, chunk.engine)._adapter for chunk in chunks]
        self._inputs = (
            array("Q", [cache.handle for cache in self._caches]),
            array("Q", [0 if adapter is None else adapter.address for adapter in self._adapters]),
            array("q", [chunk.start for chunk in chunks]),
            array("i", [len(chunk.tokens) for chunk in chunks]),
            self._wanted,
            tokens,
        )
        self._inserted_rows, self._inserted_ND = _inserted(chunks, dim)
        self._logits_NV = np.empty((sum(self._wanted), vocab_size), np.float32)

    @property
    def values(self) -> tuple[int, ...]:
        """Arguments of `oa_step` after the model."""
        addresses = (each.buffer_info()[0] for each in self._inputs)
        inserted = len(self._inserted_rows), self._inserted_rows.buffer_info()[0], self._inserted_ND.ctypes.data
        return (len(self._wanted), *addresses, *inserted, self._logits_NV.ctypes.data)

    def check(self, failed: int) -> None:
        """Check the result of `oa_step`.

        Raises:
            OutOfMemoryError: the step failed.
        """
        if failed:
            num_tokens = len(self._inputs[-1])
            raise OutOfMemoryError(
                f"no memory for a step of {num_tokens} tokens; close sequences or feed fewer tokens at once"
            )

    def outputs(self, failed: int) -> list[NDArray[np.float32]]:
        """Return the logits [num_wanted, V] of each chunk.

        Raises:
            OutOfMemoryError: the step failed.
        """
        self.check(failed)
        stops = accumulate(self._wanted)
        return [self._logits_NV[stop - wanted : stop] for stop, wanted in zip(stops, self._wanted, strict=True)]


def _inserted(chunks: Sequence[TokenChunk], dim: int) -> tuple[array[int], NDArray[np.float32]]:
    """Return the rows of a step that have inserted embeddings, and these, [N, D].

    Raises:
        InsertedEmbeddingsError: embeddings have another dim than the model's.
    """
    if not any(chunk.entry.inserted or chunk.entry.sequence.inserted for chunk in chunks):
        return array("i"), _NOTHING
    rows, vectors, first = array("i"), [_NOTHING.reshape(0, dim)], 0
    for chunk in chunks:
        for each in chunk.inserted:
            if each.vectors_LD.shape[1:] != (dim,):
                raise InsertedEmbeddingsError(
                    f"embeddings have shape {list(each.vectors_LD.shape)}; the model's dim is {dim}"
                )
            rows.extend(range(first + each.start, first + each.stop))
            vectors.append(each.vectors_LD)
        first += len(chunk.tokens)
    return rows, np.ascontiguousarray(np.concatenate(vectors), np.float32)


def chosen_threads() -> int:
    """Return OPENAFM_THREADS, else the number of available processors.

    Raises:
        ThreadsError: the variable is not a number from 1 to 256.
    """
    chosen = os.environ.get("OPENAFM_THREADS", "")
    if not chosen:
        available = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return min(available, MOST_THREADS)
    if not chosen.isdecimal() or not 1 <= int(chosen) <= MOST_THREADS:
        raise ThreadsError(f"OPENAFM_THREADS is '{chosen}'; set it to a number from 1 to {MOST_THREADS}, or unset it")
    return int(chosen)


def chosen_kernels(library: ctypes.CDLL) -> str:
    """Return OPENAFM_KERNELS, else the best kernel set for this processor.

    Raises:
        KernelsError: the variable is not a kernel set that this processor supports.
    """
    supported = kernel_names(library)
    chosen = os.environ.get("OPENAFM_KERNELS", "") or supported[0]
    if chosen not in supported:
        raise KernelsError(f"OPENAFM_KERNELS is '{chosen}'; this processor supports {', '.join(supported)}")
    return chosen
