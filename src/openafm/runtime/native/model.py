"""The C model of a bundle: structs that point into mapped weights. Imports no tensor library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.core.errors import OpenAFMError
from openafm.core.processes import finalize
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
)
from openafm.runtime.native.adapter_weights import check_shapes
from openafm.runtime.native.library import LayerStruct, MatrixStruct, ModelStruct, kernel_names
from openafm.runtime.native.support import LEVEL_ZEROS
from openafm.runtime.native.weights import PANEL_ROWS, NativeWeights, matrices

_LINEARS = {
    "query": "attention.query",
    "key": "attention.keys_values.key",
    "value": "attention.keys_values.value",
    "output": "attention.output",
    "gate": "feed_forward.gate",
    "up": "feed_forward.up",
    "down": "feed_forward.down",
}


class OutOfMemoryError(OpenAFMError):
    """Memory for weights or for keys and values cannot be allocated. The call changed nothing."""


class NativeModel:
    """A C model and the arrays that it points to."""

    def __init__(
        self,
        library: ctypes.CDLL,
        bundle: Bundle,
        weights: NativeWeights,
        adapter: AdapterPackage | None,
        num_threads: int,
        kernels: str | None,
    ) -> None:
        self.library, self._weights = library, weights
        config = bundle.config
        attention = cast(AttentionConfig, config.layers[0].attention)
        position = cast(RotaryConfig, attention.position)
        pairs = np.arange(0, attention.head_dim, 2, dtype=np.float64)
        self._frequencies = (position.theta ** -(pairs / attention.head_dim)).astype(np.float32)
        self._adapter = {} if adapter is None else _adapter_weights(adapter, config)
        self._scale = 0.0 if adapter is None else adapter.config.scale
        shapes = matrices(config)
        layers = (self._layer(config, index, shapes) for index in range(len(config.layers)))
        self._layers = (LayerStruct * len(config.layers))(*layers)
        self._config = ModelStruct(
            vocab_size=config.vocab_size,
            dim=config.dim,
            num_layers=len(config.layers),
            num_heads=attention.num_heads,
            num_kv_heads=config.kv_heads(0),
            head_dim=attention.head_dim,
            hidden_dim=cast(DenseFeedForwardConfig, config.layers[0].feed_forward).hidden_dim,
            num_prefill_layers=config.num_prefill_layers,
            norm_eps=config.norm_eps,
            qk_norm_eps=attention.qk_norm.eps if attention.qk_norm else 0.0,
            norm_before_position=attention.qk_norm is not None and attention.qk_norm.order == "before_position",
            interleaved=position.layout == "interleaved",
            level_zero=LEVEL_ZEROS[bundle.numerics.weights],
            frequencies=self._frequencies.ctypes.data,
            final_norm=weights.address("norm.weight"),
            embedding=weights.address("embedding"),
            layers=self._layers,
        )
        name = None if kernels is None else kernels.encode()
        self.handle = library.oa_model_new(ctypes.byref(self._config), num_threads, name)
        if not self.handle:
            raise OutOfMemoryError(f"the native runtime cannot start with kernels {kernels or kernel_names(library)[0]}")
        finalize(self, library.oa_model_free, self.handle)  # not at exit: the worker may be computing

    def _layer(self, config: DecoderConfig, index: int, shapes: Mapping[str, tuple[int, int]]) -> LayerStruct:
        attention = cast(AttentionConfig, config.layers[index].attention)
        prefix, keys_values = f"layers.{index}.", attention.keys_values
        layer = LayerStruct(source=keys_values.layer if isinstance(keys_values, SharedKeysValuesConfig) else index)
        for field, name in _LINEARS.items():
            if prefix + name in shapes:  # a layer that shares keys and values has no matrices for them
                setattr(layer, field, self._matrix(prefix + name, *shapes[prefix + name]))
        layer.attention_norm = self._weights.address(f"{prefix}attention_norm.weight")
        layer.feed_forward_norm = self._weights.address(f"{prefix}feed_forward_norm.weight")
        if attention.qk_norm is not None:
            layer.query_norm = self._weights.address(f"{prefix}attention.query_norm.weight")
            if layer.source == index:
                layer.key_norm = self._weights.address(f"{prefix}attention.keys_values.key_norm.weight")
        return layer

    def _matrix(self, name: str, num_outputs: int, num_inputs: int) -> MatrixStruct:
        a, b = self._adapter.get(f"{name}.lora.a"), self._adapter.get(f"{name}.lora.b")
        return MatrixStruct(
            codes=self._weights.address(name),
            scales=self._weights.address(f"{name}.scale"),
            lora_a=None if a is None else a.ctypes.data,
            lora_b=None if b is None else b.ctypes.data,
            num_outputs=num_outputs,
            num_inputs=num_inputs,
            rank=0 if a is None else len(a),
            lora_bits=0 if a is None else 8 * a.itemsize,
            lora_scale=self._scale,
        )


def _adapter_weights(adapter: AdapterPackage, config: DecoderConfig) -> dict[str, NDArray[Any]]:
    """Return an adapter's weights in its precision, b [R, rank] in the kernels' panels [R / 64, rank, 64]."""
    weights: dict[str, NDArray[Any]] = {}
    loaded = adapter.weights()
    check_shapes(loaded, adapter, config)
    for name, weight in loaded.items():
        weight = weight.astype(adapter.config.precision)
        if name.endswith(".lora.b"):
            num_outputs, rank = weight.shape
            padded = np.zeros((-(-num_outputs // PANEL_ROWS) * PANEL_ROWS, rank), weight.dtype)
            padded[:num_outputs] = weight
            weight = padded.reshape(-1, PANEL_ROWS, rank).transpose(0, 2, 1)
        weights[name] = np.ascontiguousarray(weight)
    return weights
