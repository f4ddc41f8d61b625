"""The C model of a bundle: structs that point into mapped weights. Imports no tensor library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, cast
from weakref import WeakValueDictionary

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
    LayerConfig,
    LinearRotaryConfig,
    Llama3RotaryConfig,
    RotaryConfig,
    SharedKeysValuesConfig,
    TiedHeadConfig,
    YarnRotaryConfig,
)
from openafm.models.feed_forward.experts_config import ExpertsConfig, TopKRouterConfig
from openafm.runtime.native.adapter_weights import NativeAdapter
from openafm.runtime.native.layout import layouts
from openafm.runtime.native.library import FeedForwardStruct, LayerStruct, MatrixStruct, ModelStruct, kernel_names
from openafm.runtime.native.matrix_layout import MatrixLayout
from openafm.runtime.native.shapes import block_depth, in_order, numbered, vectors
from openafm.runtime.native.support import LEVEL_ZEROS, rotaries
from openafm.runtime.native.weights import NativeWeights

_LINEARS = {
    "query": "attention.query",
    "key": "attention.keys_values.key",
    "value": "attention.keys_values.value",
    "output": "attention.output",
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
        num_threads: int,
        kernels: str | None,
    ) -> None:
        self.library, self._weights, self._bundle = library, weights, bundle
        config = bundle.config
        attention = cast(AttentionConfig, config.layers[0].attention)
        self._rotaries = rotaries(config)
        tables = [frequencies(position, attention.head_dim) for position in self._rotaries]
        self._frequencies = np.concatenate([*tables, np.zeros(0, np.float32)])
        self._amplitudes = np.array([position.amplitude for position in self._rotaries], np.float32)
        self._layouts, self._vectors = layouts(bundle), vectors(config)
        self._adapters: WeakValueDictionary[str, NativeAdapter] = WeakValueDictionary()  # by digest
        self._tracks = () if config.tracks is None else (config.num_tracks,)  # leading dims of the layers' tensors
        self._feed_forwards: list[Any] = []  # the arrays that layers point to
        entries = in_order(config)
        self._layers = (LayerStruct * len(entries))(*(self._layer(config, *entry, entries) for entry in entries))
        tracks = config.tracks
        self._config = ModelStruct(
            vocab_size=config.vocab_size,
            dim=config.dim,
            num_layers=len(config.layers),
            num_heads=attention.num_heads,
            num_kv_heads=config.kv_heads(0) // config.num_tracks,
            head_dim=attention.head_dim,
            hidden_dim=max(map(_hidden_numbers, config.layers)),
            num_prefill_layers=config.num_prefill_layers,
            num_rotaries=len(self._rotaries),
            num_tracks=config.num_tracks,
            block_depth=block_depth(config),
            track_divisor=config.num_tracks if tracks is not None and tracks.combine == "mean" else 1,
            track_norm_eps=0.0 if tracks is None or tracks.norm is None else tracks.norm.eps,
            norm_eps=config.norm_eps,
            qk_norm_eps=attention.qk_norm.eps if attention.qk_norm else 0.0,
            norm_before_position=attention.qk_norm is not None and attention.qk_norm.order == "before_position",
            interleaved=any(position.layout == "interleaved" for position in self._rotaries),
            float_cache=bundle.numerics.kv == "float32",
            level_zero=_level_zero(self._layouts),
            frequencies=self._frequencies.ctypes.data,
            amplitudes=self._amplitudes.ctypes.data,
            final_norm=weights.address("norm.weight"),
            embedding=self._matrix("embedding", dims=()),
            head=self._matrix("embedding" if isinstance(config.head, TiedHeadConfig) else "head", dims=()),
            layers=self._layers,
        )
        name = None if kernels is None else kernels.encode()
        self.handle = library.oa_model_new(ctypes.byref(self._config), num_threads, name)
        if not self.handle:
            raise OutOfMemoryError(f"the native runtime cannot start with kernels {kernels or kernel_names(library)[0]}")
        finalize(self, library.oa_model_free, self.handle)  # not at exit: the worker may be computing

    def adapter(self, package: AdapterPackage) -> NativeAdapter:
        """Return the weights of an adapter, which all engines of this model share.

        Raises:
            AdapterMismatchError: a weight is missing, unexpected or of another shape.
            AdapterError: the adapter is damaged or has changed since it was opened.
        """
        adapter = self._adapters.get(package.digest)
        if adapter is None:
            adapter = self._adapters[package.digest] = NativeAdapter(package, self._bundle.config)
        return adapter

    def _layer(self, config: DecoderConfig, index: int, track: int, entries: list[tuple[int, int]]) -> LayerStruct:
        attention = cast(AttentionConfig, config.layers[index].attention)
        prefix, keys_values, position = f"layers.{index}.", attention.keys_values, attention.position
        source = keys_values.layer if isinstance(keys_values, SharedKeysValuesConfig) else index
        layer = LayerStruct(
            source=entries.index((source, track)),
            rotary=-1 if position is None else self._rotaries.index(cast(RotaryConfig, position)),
            window=attention.window or 0,
            feed_forwards=self._feed_forward(config, index, track),
        )
        for field, name in _LINEARS.items():
            if numbered(prefix + name, track, self._tracks) in self._layouts:  # not if it shares keys and values
                setattr(layer, field, self._matrix(prefix + name, track))
        experts = config.layers[index].feed_forward
        if isinstance(experts, ExpertsConfig):
            router = cast(TopKRouterConfig, experts.router)
            layer.router = self._matrix(f"{prefix}feed_forward.router", track)
            layer.num_experts, layer.num_chosen = experts.num_experts, router.num_chosen
            layer.soft_cap = router.soft_cap or 0.0
        layer.attention_norm = self._vector(f"{prefix}attention_norm.weight", track)
        layer.feed_forward_norm = self._vector(f"{prefix}feed_forward_norm.weight", track)
        block, place = divmod(index, block_depth(config))
        if place == block_depth(config) - 1 and f"tracks.norms.{block}.weight" in self._vectors:
            layer.track_norm = self._vector(f"tracks.norms.{block}.weight", track)
        if attention.qk_norm is not None:
            layer.query_norm = self._vector(f"{prefix}attention.query_norm.weight", track)
            if source == index:
                layer.key_norm = self._vector(f"{prefix}attention.keys_values.key_norm.weight", track)
        return layer

    def _feed_forward(self, config: DecoderConfig, index: int, track: int) -> Any:
        """Return an array of the feed-forward of a layer and track, or of all its experts."""
        feed_forward, prefix = config.layers[index].feed_forward, f"layers.{index}.feed_forward."
        structs = []
        for number in range(feed_forward.num_experts if isinstance(feed_forward, ExpertsConfig) else 1):
            dims, at = self._tracks, track
            if isinstance(feed_forward, ExpertsConfig):
                dims, at = (*dims, feed_forward.num_experts), track * feed_forward.num_experts + number
            parts = {part: self._matrix(prefix + part, at, dims) for part in ("gate", "up", "down")}
            structs.append(FeedForwardStruct(**parts))
        self._feed_forwards.append((FeedForwardStruct * len(structs))(*structs))
        return self._feed_forwards[-1]

    def _vector(self, name: str, track: int) -> int:
        """Return the address of a track's norm or bias."""
        return self._weights.address(name) + track * self._vectors[name][-1] * np.dtype(np.float32).itemsize

    def _matrix(self, name: str, index: int = 0, dims: tuple[int, ...] | None = None) -> MatrixStruct:
        """Return a matrix by its number in a stack; `dims` are those of the stack, by default the tracks."""
        layout = self._layouts[numbered(name, index, self._tracks if dims is None else dims)]
        return MatrixStruct(
            codes=self._weights.address(layout.name),
            scales=self._weights.address(f"{layout.name}.scale") if layout.has_row_scales else None,
            bias=self._vector(f"{name}.bias", index) if f"{name}.bias" in self._vectors else None,
            kind=layout.kind,
            group=layout.group,
            has_minimum=layout.has_minimum,
            num_outputs=layout.num_outputs,
            num_inputs=layout.num_inputs,
        )


def _hidden_numbers(layer: LayerConfig) -> int:
    """Return the numbers between gate and down of one token."""
    feed_forward = layer.feed_forward
    if isinstance(feed_forward, ExpertsConfig):
        return feed_forward.hidden_dim * feed_forward.router.num_chosen
    return cast(DenseFeedForwardConfig, feed_forward).hidden_dim


def frequencies(position: RotaryConfig, head_dim: int) -> NDArray[np.float32]:
    """Return the radians per position of each pair of channels, [C / 2], in the fp32 operations of `rotary.py`."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    plain: NDArray[np.float32] = (position.theta ** -exponents.astype(np.float64)).astype(np.float32)
    if isinstance(position, LinearRotaryConfig):
        return plain / np.float32(position.factor)
    if isinstance(position, Llama3RotaryConfig):
        turns = np.float32(position.original_context_length) * plain / np.float32(2 * np.pi)
        span = np.float32(position.high_turns - position.low_turns)
        kept = np.clip((turns - np.float32(position.low_turns)) / span, np.float32(0), np.float32(1))
    elif isinstance(position, YarnRotaryConfig):
        kept = np.array(position.kept_shares(head_dim), np.float32)
    else:
        return plain
    return kept * plain + (1 - kept) * plain / np.float32(position.factor)


def _level_zero(found: Mapping[str, MatrixLayout]) -> float:
    return next((LEVEL_ZEROS[layout.weights] for layout in found.values() if layout.weights in LEVEL_ZEROS), 0.0)
