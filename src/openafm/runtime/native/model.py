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
    LinearRotaryConfig,
    Llama3RotaryConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    TiedHeadConfig,
)
from openafm.runtime.native.adapter_weights import check_shapes
from openafm.runtime.native.layout import PANEL_ROWS, MatrixLayout, layouts, vectors
from openafm.runtime.native.library import LayerStruct, MatrixStruct, ModelStruct, kernel_names
from openafm.runtime.native.support import LEVEL_ZEROS, rotaries
from openafm.runtime.native.weights import NativeWeights

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
        self._rotaries = rotaries(config)
        tables = [frequencies(position, attention.head_dim) for position in self._rotaries]
        self._frequencies = np.concatenate([*tables, np.zeros(0, np.float32)])
        self._layouts, self._vectors = layouts(bundle), vectors(config)
        self._adapter = {} if adapter is None else _adapter_weights(adapter, config)
        self._scale = 0.0 if adapter is None else adapter.config.scale
        layers = (self._layer(config, index) for index in range(len(config.layers)))
        self._layers = (LayerStruct * len(config.layers))(*layers)
        self._config = ModelStruct(
            vocab_size=config.vocab_size,
            dim=config.dim,
            num_layers=len(config.layers),
            num_heads=attention.num_heads,
            num_kv_heads=config.kv_heads(0),
            head_dim=attention.head_dim,
            hidden_dim=max(cast(DenseFeedForwardConfig, layer.feed_forward).hidden_dim for layer in config.layers),
            num_prefill_layers=config.num_prefill_layers,
            num_rotaries=len(self._rotaries),
            norm_eps=config.norm_eps,
            qk_norm_eps=attention.qk_norm.eps if attention.qk_norm else 0.0,
            norm_before_position=attention.qk_norm is not None and attention.qk_norm.order == "before_position",
            interleaved=any(position.layout == "interleaved" for position in self._rotaries),
            float_cache=bundle.numerics.kv == "float32",
            level_zero=_level_zero(self._layouts),
            frequencies=self._frequencies.ctypes.data,
            final_norm=weights.address("norm.weight"),
            embedding=self._matrix("embedding"),
            head=self._matrix("embedding" if isinstance(config.head, TiedHeadConfig) else "head"),
            layers=self._layers,
        )
        name = None if kernels is None else kernels.encode()
        self.handle = library.oa_model_new(ctypes.byref(self._config), num_threads, name)
        if not self.handle:
            raise OutOfMemoryError(f"the native runtime cannot start with kernels {kernels or kernel_names(library)[0]}")
        finalize(self, library.oa_model_free, self.handle)  # not at exit: the worker may be computing

    def _layer(self, config: DecoderConfig, index: int) -> LayerStruct:
        attention = cast(AttentionConfig, config.layers[index].attention)
        prefix, keys_values, position = f"layers.{index}.", attention.keys_values, attention.position
        layer = LayerStruct(
            source=keys_values.layer if isinstance(keys_values, SharedKeysValuesConfig) else index,
            rotary=-1 if position is None else self._rotaries.index(cast(RotaryConfig, position)),
            window=attention.window or 0,
        )
        for field, name in _LINEARS.items():
            if prefix + name in self._layouts:  # a layer that shares keys and values has no matrices for them
                setattr(layer, field, self._matrix(prefix + name))
        layer.attention_norm = self._weights.address(f"{prefix}attention_norm.weight")
        layer.feed_forward_norm = self._weights.address(f"{prefix}feed_forward_norm.weight")
        if attention.qk_norm is not None:
            layer.query_norm = self._weights.address(f"{prefix}attention.query_norm.weight")
            if layer.source == index:
                layer.key_norm = self._weights.address(f"{prefix}attention.keys_values.key_norm.weight")
        return layer

    def _matrix(self, name: str) -> MatrixStruct:
        layout = self._layouts[name]
        a, b = self._adapter.get(f"{name}.lora.a"), self._adapter.get(f"{name}.lora.b")
        return MatrixStruct(
            codes=self._weights.address(name),
            scales=self._weights.address(f"{name}.scale") if layout.has_row_scales else None,
            bias=self._weights.address(f"{name}.bias") if f"{name}.bias" in self._vectors else None,
            kind=layout.kind,
            group=layout.group,
            has_minimum=layout.has_minimum,
            lora_a=None if a is None else a.ctypes.data,
            lora_b=None if b is None else b.ctypes.data,
            num_outputs=layout.num_outputs,
            num_inputs=layout.num_inputs,
            rank=0 if a is None else len(a),
            lora_bits=0 if a is None else 8 * a.itemsize,
            lora_scale=self._scale,
        )


def frequencies(position: RotaryConfig, head_dim: int) -> NDArray[np.float32]:
    """Return the radians per position of each pair of channels, [C / 2], in the fp32 operations of models/rotary.py."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain: NDArray[np.float32] = (position.theta ** -exponents.astype(np.float64)).astype(np.float32)
    if isinstance(position, LinearRotaryConfig):
        return plain / np.float32(position.factor)
    if isinstance(position, Llama3RotaryConfig):
        turns = np.float32(position.original_context_length) * plain / np.float32(2 * np.pi)
        span = np.float32(position.high_turns - position.low_turns)
        kept = np.clip((turns - np.float32(position.low_turns)) / span, np.float32(0), np.float32(1))
        return kept * plain + (1 - kept) * plain / np.float32(position.factor)
    return plain


def _level_zero(found: Mapping[str, MatrixLayout]) -> float:
    return next((LEVEL_ZEROS[layout.weights] for layout in found.values() if layout.weights in LEVEL_ZEROS), 0.0)


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
