"""The sections of a bundle's weights in the kernels' layout, and the repacking of its tensors. Imports no tensor library.

Shapes: R outputs, C inputs, V vocabulary, D model dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle, BundleError
from openafm.bundle.tensor_file import MappedTensor
from openafm.compression.grouped import FORMATS
from openafm.models.config import AttentionConfig, DecoderConfig, DenseFeedForwardConfig, OwnKeysValuesConfig, TiedHeadConfig

PANEL_ROWS, STEP_INPUTS, TILE_ROWS = 64, 16, 16
INT2, INT4, INT8, BFLOAT16, FLOAT32 = range(5)  # source/abi.h
_TENSORS = {"embedding": "embedding", "head": "output.weight"}  # sections whose tensor has another name


@dataclass(frozen=True, kw_only=True)
class WeightsSection:
    """A section of the file: name, dtype and number of items."""

    name: str
    dtype: str
    num_items: int

    @property
    def num_bytes(self) -> int:
        return self.num_items * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, kw_only=True)
class MatrixLayout:
    """Name, shape and format of a matrix, and the size of its codes in the kernels' layout."""

    name: str
    num_outputs: int
    num_inputs: int
    weights: str

    @property
    def kind(self) -> int:
        """The number of the format in `OaMatrix`."""
        if self.weights in FORMATS:
            return INT4 if FORMATS[self.weights].bits == 4 else INT8
        return {"bfloat16": BFLOAT16, "float32": FLOAT32}.get(self.weights, INT2)

    @property
    def group(self) -> int:
        return FORMATS[self.weights].group if self.weights in FORMATS else 0

    @property
    def has_minimum(self) -> bool:
        return self.weights in FORMATS and FORMATS[self.weights].has_minimum

    @property
    def has_row_scales(self) -> bool:
        return self.kind == INT2 or (self.kind == INT8 and not self.group)

    @property
    def num_panels(self) -> int:
        return -(-self.num_outputs // PANEL_ROWS)

    @property
    def num_bytes(self) -> int:
        """Bytes of the codes, with the scales and minima of groups."""
        if self.kind == INT2:
            return self.num_panels * -(-self.num_inputs // STEP_INPUTS) * PANEL_ROWS * STEP_INPUTS // 4
        row_bytes = self.num_inputs * {INT4: 4, INT8: 8, BFLOAT16: 16, FLOAT32: 32}[self.kind] // 8
        if self.group:
            row_bytes += self.num_inputs // self.group * (4 if self.has_minimum else 2)
        return -(-self.num_outputs // TILE_ROWS) * TILE_ROWS * row_bytes


def matrices(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Return the numbers of outputs and inputs of every matrix of the layers by its name in a bundle."""
    shapes: dict[str, tuple[int, int]] = {}
    for index, layer in enumerate(config.layers):
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(feed_forward, DenseFeedForwardConfig)
        inner = attention.num_heads * attention.head_dim
        shapes[f"layers.{index}.attention.query"] = (inner, config.dim)
        if isinstance(attention.keys_values, OwnKeysValuesConfig):
            kv_dim = attention.keys_values.num_heads * attention.head_dim
            shapes[f"layers.{index}.attention.keys_values.key"] = (kv_dim, config.dim)
            shapes[f"layers.{index}.attention.keys_values.value"] = (kv_dim, config.dim)
        shapes[f"layers.{index}.attention.output"] = (config.dim, inner)
        for name in ("gate", "up"):
            shapes[f"layers.{index}.feed_forward.{name}"] = (feed_forward.hidden_dim, config.dim)
        shapes[f"layers.{index}.feed_forward.down"] = (config.dim, feed_forward.hidden_dim)
    return shapes


def layouts(bundle: Bundle) -> dict[str, MatrixLayout]:
    """Return the layout of every matrix in the order of a decode step: those of the layers, the embedding, the head."""
    config, numerics = bundle.config, bundle.numerics
    found = {
        name: MatrixLayout(name=name, num_outputs=shape[0], num_inputs=shape[1], weights=numerics.weights_of(name))
        for name, shape in matrices(config).items()
    }
    for name in ["embedding"] if isinstance(config.head, TiedHeadConfig) else ["embedding", "head"]:
        found[name] = MatrixLayout(
            name=name, num_outputs=config.vocab_size, num_inputs=config.dim, weights=numerics.embedding
        )
    return found


def norms(config: DecoderConfig) -> Iterator[tuple[str, int]]:
    """Yield name and length of every norm's weight."""
    for index, layer in enumerate(config.layers):
        attention = layer.attention
        yield f"layers.{index}.attention_norm.weight", config.dim
        yield f"layers.{index}.feed_forward_norm.weight", config.dim
        if isinstance(attention, AttentionConfig) and attention.qk_norm is not None:
            yield f"layers.{index}.attention.query_norm.weight", attention.head_dim
            if isinstance(attention.keys_values, OwnKeysValuesConfig):
                yield f"layers.{index}.attention.keys_values.key_norm.weight", attention.head_dim
    yield "norm.weight", config.dim


def vectors(config: DecoderConfig) -> dict[str, int]:
    """Return name and length of every fp32 vector: norms' weights, biases of matrices and of an untied head."""
    found = dict(norms(config))
    for name, (num_outputs, _) in matrices(config).items():
        layer = config.layers[int(name.split(".")[1])]
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(attention, AttentionConfig)
        assert isinstance(feed_forward, DenseFeedForwardConfig)
        has_bias = attention.output_bias if name.endswith("attention.output") else attention.input_bias
        if feed_forward.bias if ".feed_forward." in name else has_bias:
            found[f"{name}.bias"] = num_outputs
    return found


def sections(bundle: Bundle) -> list[WeightsSection]:
    """Return the sections in file order: small ones first, then the matrices in the order of a decode step."""
    found = layouts(bundle)
    scales = [
        WeightsSection(name=f"{name}.scale", dtype="float32", num_items=layout.num_panels * PANEL_ROWS)
        for name, layout in found.items()
        if layout.has_row_scales
    ]
    small = [WeightsSection(name=name, dtype="float32", num_items=length) for name, length in vectors(bundle.config).items()]
    codes = [WeightsSection(name=name, dtype="uint8", num_items=layout.num_bytes) for name, layout in found.items()]
    return [*scales, *small, *codes]


def bytes_per_step(bundle: Bundle) -> int:
    """Return the bytes of weights that a decode step reads: an untied embedding counts one row."""
    total = sum(section.num_bytes for section in sections(bundle))
    if isinstance(bundle.config.head, TiedHeadConfig):
        return total
    embedding = layouts(bundle)["embedding"]
    return total - embedding.num_bytes + embedding.num_bytes // embedding.num_outputs


def repacked(bundle: Bundle, stored: Mapping[str, NDArray[Any]], library: ctypes.CDLL) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of all sections in file order, from the tensors of `stored_tensors`."""
    found = layouts(bundle)
    for name, layout in found.items():
        if layout.has_row_scales:
            scales_R = np.zeros(layout.num_panels * PANEL_ROWS, np.float32)
            scales_R[: layout.num_outputs] = stored[f"{tensor_name(name)}.scale"]
            yield scales_R.view(np.uint8)
    for name in vectors(bundle.config):
        yield in_fp32(stored[name]).view(np.uint8)
    for layout in found.values():
        yield packed_codes(layout, stored, library)


def packed_codes(layout: MatrixLayout, stored: Mapping[str, NDArray[Any]], library: ctypes.CDLL) -> NDArray[np.uint8]:
    """Return the codes of a matrix in the kernels' layout, from its tensors."""
    packed = np.zeros(layout.num_bytes, np.uint8)
    name, shape = tensor_name(layout.name), (layout.num_outputs, layout.num_inputs)
    codes = in_fp32(stored[name]) if layout.kind == FLOAT32 else np.ascontiguousarray(stored[name])
    match layout.weights:
        case "float32":
            library.oa_pack_float32(codes.ctypes.data, *shape, packed.ctypes.data)
        case "bfloat16":
            library.oa_pack_bfloat16(codes.ctypes.data, *shape, packed.ctypes.data)
        case "int2_balanced" | "int2_unbalanced":
            library.oa_pack_panels(codes.ctypes.data, *shape, packed.ctypes.data)
        case _:
            scales = np.ascontiguousarray(stored[f"{name}.scale"]) if layout.group else None
            minima = np.ascontiguousarray(stored[f"{name}.minimum"]) if layout.has_minimum else None
            library.oa_pack_groups(
                codes.ctypes.data,
                None if scales is None else scales.ctypes.data,
                None if minima is None else minima.ctypes.data,
                *shape,
                4 if layout.kind == INT4 else 8,
                layout.group,
                packed.ctypes.data,
            )
    return packed


def stored_tensors(bundle: Bundle) -> dict[str, NDArray[Any]]:
    """Return the tensors to repack by name, mapped, after checking their shapes. bfloat16 is returned as uint16.

    Raises:
        BundleError: a tensor is missing or does not fit the config.
    """
    expected: dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]] = {}
    for name, layout in layouts(bundle).items():
        shape = (layout.num_outputs, layout.num_inputs)
        tensor = tensor_name(name)
        if layout.kind == INT2:
            expected[tensor] = ("U8",), [(shape[0], shape[1] // 4)]
            expected[f"{tensor}.scale"] = ("F32",), [(), (shape[0],)]
        elif layout.kind == BFLOAT16:
            expected[tensor] = ("BF16",), [shape]
        elif layout.kind == FLOAT32:
            expected[tensor] = _FLOATS, [shape]
        else:
            for suffix, (dtype, wanted) in FORMATS[layout.weights].shapes(*shape).items():
                expected[tensor + suffix] = (_SAFETENSORS[dtype],), [wanted]
    for name, length in vectors(bundle.config).items():
        expected[name] = _FLOATS, [(length,)]
    tensors = bundle.stored_tensors
    return {name: _checked(bundle, tensors.get(name), name, *wanted) for name, wanted in expected.items()}


_FLOATS = ("F32", "BF16", "F16")
_SAFETENSORS: dict[type[Any], str] = {np.uint8: "U8", np.int8: "I8", np.float16: "F16", np.float32: "F32"}


def _checked(
    bundle: Bundle, tensor: MappedTensor | None, name: str, dtypes: tuple[str, ...], shapes: list[tuple[int, ...]]
) -> NDArray[Any]:
    if tensor is None or tensor.dtype not in dtypes or tensor.shape not in shapes:
        found = "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
        raise BundleError(
            f"{bundle.path}: the weights do not fit config.json: {name} is {found}, expected {dtypes[0]} {list(shapes[0])}"
        )
    return tensor.data.view(np.uint16).reshape(tensor.shape) if tensor.dtype == "BF16" else tensor.array()


def in_fp32(vector: NDArray[Any]) -> NDArray[np.float32]:
    if vector.dtype == np.uint16:  # bfloat16
        return (vector.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(vector, np.float32)


def tensor_name(name: str) -> str:
    return _TENSORS.get(name, f"{name}.weight")
