"""An adapter's weights as C code reads them, after checks. Imports no tensor library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.config import LoRAConfig
from openafm.adapters.package import AdapterMismatchError, AdapterPackage
from openafm.models.config import DecoderConfig
from openafm.runtime.native.library import LowRankStruct
from openafm.runtime.native.matrix_layout import PANEL_ROWS
from openafm.runtime.native.shapes import experts_of, in_order, matrices, stack

_MATRICES = (  # those of a layer, in the order of the C enum
    "attention.query",
    "attention.keys_values.key",
    "attention.keys_values.value",
    "attention.output",
    "feed_forward.gate",
    "feed_forward.up",
    "feed_forward.down",
)


class NativeAdapter:
    """An adapter in memory. A step in C reads it at `address`.

    Raises:
        AdapterMismatchError: a weight is missing, unexpected or of another shape.
        AdapterError: the adapter is damaged or has changed since it was opened.
    """

    def __init__(self, adapter: AdapterPackage, config: DecoderConfig) -> None:
        loaded = adapter.weights()
        check_shapes(loaded, adapter, config)
        self._weights = {name: _packed(name, weight.astype(adapter.config.precision)) for name, weight in loaded.items()}
        self._scale, self._has_tracks = adapter.config.scale, config.tracks is not None
        structs = [self._struct(f"layers.{layer}.{name}", track) for layer, track in in_order(config) for name in _MATRICES]
        self._structs = (LowRankStruct * len(structs))(*structs)
        self.address = ctypes.addressof(self._structs)

    def _struct(self, name: str, track: int) -> LowRankStruct:
        """Return the pair of a matrix; of rank 0 if the adapter has none."""
        if f"{name}.lora.a" not in self._weights:
            return LowRankStruct()
        a, b = (self._weights[f"{name}.lora.{part}"] for part in "ab")
        if self._has_tracks:
            a, b = a[track], b[track]
        return LowRankStruct(a=a.ctypes.data, b=b.ctypes.data, rank=len(a), bits=8 * a.itemsize, scale=self._scale)


def _packed(name: str, weight: NDArray[Any]) -> NDArray[Any]:
    """Return a as it is, and b [R, rank] in the kernels' panels [R / 64, rank, 64]. With tracks both have a leading dim."""
    if name.endswith(".lora.b"):
        *tracks, num_outputs, rank = weight.shape
        padded = np.zeros((*tracks, -(-num_outputs // PANEL_ROWS) * PANEL_ROWS, rank), weight.dtype)
        padded[..., :num_outputs, :] = weight
        weight = padded.reshape(*tracks, -1, PANEL_ROWS, rank).swapaxes(-1, -2)
    return np.ascontiguousarray(weight)


def check_shapes(weights: Mapping[str, NDArray[Any]], adapter: AdapterPackage, config: DecoderConfig) -> None:
    """Check that the weights are an A and a B of the right shape for every adapted matrix, and nothing else.

    Raises:
        AdapterMismatchError: the message names the weight.
    """
    rank, expected = adapter.config.rank, dict[str, tuple[int, ...]]()
    for name, (num_outputs, num_inputs) in adapted(config, adapter.config).items():
        tracks = stack(config, name)
        expected |= {f"{name}.lora.a": (*tracks, rank, num_inputs), f"{name}.lora.b": (*tracks, num_outputs, rank)}
    for name in sorted(expected.keys() | weights.keys()):
        wanted = list(expected[name]) if name in expected else "no weight"
        found = list(weights[name].shape) if name in weights else "no weight"
        if wanted != found:
            raise AdapterMismatchError(
                f"adapter '{adapter.name}' is for another model: it has {found} for '{name}', expected {wanted}"
            )


def adapted(config: DecoderConfig, lora: LoRAConfig) -> dict[str, tuple[int, int]]:
    """Return the matrices that an adapter applies to, as `matrices` does; experts have none."""
    return {
        name: shape
        for name, shape in matrices(config).items()
        if experts_of(config, name) is None and (not lora.targets or name.rpartition(".")[2] in lora.targets)
    }
