"""The sections of a bundle's weights in the kernels' layout, and the repacking of its tensors. Imports no tensor library.

Shapes: R outputs, C inputs, V vocabulary, D model dim.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle, BundleError
from openafm.bundle.tensor_file import MappedTensor
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import Numerics
from openafm.models.config import TiedHeadConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig
from openafm.runtime.native.decoding import astc_tensors, decoded, in_fp32
from openafm.runtime.native.matrix_layout import BFLOAT16, FLOAT32, INT4, PANEL_ROWS, MatrixLayout
from openafm.runtime.native.shapes import block_depth, experts_of, matrices, numbered, stack, vectors


@dataclass(frozen=True, kw_only=True)
class WeightsSection:
    """A section of the file: name, dtype and number of items."""

    name: str
    dtype: str
    num_items: int

    @property
    def num_bytes(self) -> int:
        return self.num_items * np.dtype(self.dtype).itemsize


def layouts(bundle: Bundle) -> dict[str, MatrixLayout]:
    """Return the layout of every matrix in the order of a decode step: those of the layers, the embedding, the head.

    Matrices of a stack are separate, `layers.1.feed_forward.gate[5]`; see `numbered`.
    """
    config, numerics = bundle.config, bundle.numerics
    names: list[list[str]] = [[] for _ in config.layers]
    for name in matrices(config):
        names[int(name.split(".")[1])].append(name)
    depth = block_depth(config)
    found = [
        layout
        for first in range(0, len(config.layers), depth)
        for track in range(config.num_tracks)
        for layer in range(first, first + depth)
        for layout in _of_layer(bundle, layer, names[layer], track)
    ]
    heads = {"embedding": "embedding"}
    if not isinstance(config.head, TiedHeadConfig):
        heads["head"] = "output.weight"
    for name, tensor in heads.items():
        found.append(_layout(name, (config.vocab_size, config.dim), numerics, numerics.embedding, tensor))
    return {layout.name: layout for layout in found}


def _of_layer(bundle: Bundle, layer: int, names: list[str], track: int) -> Iterator[MatrixLayout]:
    """Yield the matrices of a layer and track: those of every token, the router, those of each expert."""
    config, numerics = bundle.config, bundle.numerics
    shapes, experts = matrices(config), config.layers[layer].feed_forward
    chosen = [name for name in names if experts_of(config, name) is not None]
    tracks = stack(config, names[0])
    for name in names:
        if name not in chosen:
            yield _layout(name, shapes[name], numerics, numerics.weights_of(name), f"{name}.weight", track, tracks)
    if isinstance(experts, ExpertsConfig):
        router = f"layers.{layer}.feed_forward.router"
        yield _layout(router, (experts.num_experts, config.dim), None, "float32", f"{router}.weight", track, tracks)
        for index in range(track * experts.num_experts, (track + 1) * experts.num_experts):
            for name in chosen:
                dims = (*tracks, experts.num_experts)
                yield _layout(name, shapes[name], numerics, numerics.weights_of(name), name, index, dims)


def _layout(
    name: str,
    shape: tuple[int, int],
    numerics: Numerics | None,
    stored: str,
    tensor: str,
    index: int = 0,
    dims: tuple[int, ...] = (),
) -> MatrixLayout:
    """Return a layout; without numerics, that of a matrix which is computed as it is stored."""
    return MatrixLayout(
        name=numbered(name, index, dims),
        num_outputs=shape[0],
        num_inputs=shape[1],
        weights=stored if numerics is None else computed_format(numerics, stored),
        stored=stored,
        tensor=tensor,
        index=index,
        stack=dims,
    )


def computed_format(numerics: Numerics, stored: str) -> str:
    """Return the format that the kernels read for a stored one.

    Beside float activations, matrices are decoded to the numbers that the torch engine multiplies: bfloat16 for activations
    in bfloat16, otherwise fp32.
    """
    if numerics.activations == "int8_per_token":
        return stored
    return "bfloat16" if numerics.activations == "bfloat16" or stored == "bfloat16" else "float32"


def decoded_format(bundle: Bundle) -> str | None:
    """Return the format to which matrices of the layers are decoded when they are loaded; None if they run as stored."""
    numerics = bundle.numerics
    stored = [numerics.weights, *(each.weights for each in numerics.exceptions)]
    found = {computed_format(numerics, each) for each in stored if computed_format(numerics, each) != each}
    return next(iter(found), None)


def sections(bundle: Bundle) -> list[WeightsSection]:
    """Return the sections in file order: small ones first, then the matrices in the order of a decode step."""
    found = layouts(bundle)
    scales = [
        WeightsSection(name=f"{name}.scale", dtype="float32", num_items=layout.num_panels * PANEL_ROWS)
        for name, layout in found.items()
        if layout.has_row_scales
    ]
    small = [
        WeightsSection(name=name, dtype="float32", num_items=math.prod(shape))
        for name, shape in vectors(bundle.config).items()
    ]
    codes = [WeightsSection(name=name, dtype="uint8", num_items=layout.num_bytes) for name, layout in found.items()]
    return [*scales, *small, *codes]


def bytes_per_step(bundle: Bundle) -> int:
    """Return the bytes of weights that a decode step reads: the chosen experts, and one row of an untied embedding."""
    found, config = layouts(bundle), bundle.config
    total = sum(section.num_bytes for section in sections(bundle))
    shares: dict[str, tuple[int, int]] = {}  # of the experts of a token, by tensor
    for name in matrices(config):
        if (experts := experts_of(config, name)) is not None:
            shares[name] = experts.router.num_chosen, experts.num_experts
    for layout in found.values():
        if layout.index == 0 and layout.tensor in shares:
            num_chosen, num_experts = shares[layout.tensor]
            total -= layout.num_bytes * layout.num_in_stack * (num_experts - num_chosen) // num_experts
    if isinstance(bundle.config.head, TiedHeadConfig):
        return total
    embedding = found["embedding"]
    return total - embedding.num_bytes + embedding.num_bytes // embedding.num_outputs


def repacked(bundle: Bundle, stored: Mapping[str, NDArray[Any]], library: ctypes.CDLL) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of all sections in file order, from those of `stored_tensors`; one matrix in memory at a time."""
    found = layouts(bundle)
    for layout in found.values():
        if layout.has_row_scales:
            scales_R = np.zeros(layout.num_panels * PANEL_ROWS, np.float32)
            scales_R[: layout.num_outputs] = _of_stack(stored[f"{layout.tensor}.scale"], layout, dims=1)
            yield scales_R.view(np.uint8)
    for name in vectors(bundle.config):
        yield in_fp32(stored[name]).reshape(-1).view(np.uint8)
    for layout in found.values():
        yield packed_codes(layout, stored, library)


def packed_codes(layout: MatrixLayout, stored: Mapping[str, NDArray[Any]], library: ctypes.CDLL) -> NDArray[np.uint8]:
    """Return the codes of a matrix in the kernels' layout, from its tensors.

    Raises:
        BundleError: ASTC blocks are damaged.
    """
    packed = np.zeros(layout.num_bytes, np.uint8)
    shape = (layout.num_outputs, layout.num_inputs)
    codes = decoded(layout, stored) if layout.is_decoded else _of_stack(stored[layout.tensor], layout)
    codes = in_fp32(codes) if layout.kind == FLOAT32 else np.ascontiguousarray(codes)
    match layout.weights:
        case "float32":
            library.oa_pack_float32(codes.ctypes.data, *shape, packed.ctypes.data)
        case "bfloat16":
            library.oa_pack_bfloat16(codes.ctypes.data, *shape, packed.ctypes.data)
        case "int2_balanced" | "int2_unbalanced":
            library.oa_pack_panels(codes.ctypes.data, *shape, packed.ctypes.data)
        case _:
            scales, minima = (
                np.ascontiguousarray(_of_stack(stored[layout.tensor + suffix], layout)) if is_there else None
                for suffix, is_there in ((".scale", layout.group), (".minimum", layout.has_minimum))
            )
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


def _of_stack(tensor: NDArray[Any], layout: MatrixLayout, dims: int = 2) -> NDArray[Any]:
    """Return the part of one matrix of a stack, which has `dims` dims; a scalar for all matrices as it is."""
    leading = tensor.ndim - dims
    return tensor.reshape(-1, *tensor.shape[leading:])[layout.index] if leading > 0 else tensor


def stored_tensors(bundle: Bundle) -> dict[str, NDArray[Any]]:
    """Return the tensors to repack by name, mapped, after checking their shapes. bfloat16 is returned as uint16.

    Raises:
        BundleError: a tensor is missing or does not fit the config.
    """
    expected: dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]] = {}
    for layout in {each.tensor: each for each in layouts(bundle).values()}.values():
        expected |= _expected(layout, bundle)
    for name, shape in vectors(bundle.config).items():
        expected[name] = _FLOATS, [shape]
    tensors = bundle.stored_tensors
    return {name: _checked(bundle, tensors.get(name), name, *wanted) for name, wanted in expected.items()}


def _expected(layout: MatrixLayout, bundle: Bundle) -> dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]]:
    """Return the dtypes and shapes that the tensors of a stack or matrix may have, by name."""
    shape, tensor, stored = layout.shape, layout.tensor, layout.stored
    if stored in ("int2_balanced", "int2_unbalanced"):
        scales = [(), (*layout.stack, layout.num_outputs)]
        return {tensor: (("U8",), [(*shape[:-1], shape[-1] // 4)]), f"{tensor}.scale": (("F32",), scales)}
    if stored == "astc_6x6":
        return astc_tensors(layout, bundle.stored_tensors.keys())
    if stored in FORMATS:
        shapes = FORMATS[stored].shapes(layout.num_outputs, layout.num_inputs).items()
        return {tensor + suffix: ((_SAFETENSORS[dtype],), [(*layout.stack, *wanted)]) for suffix, (dtype, wanted) in shapes}
    return {tensor: (("BF16",) if layout.kind == BFLOAT16 and not layout.is_decoded else _FLOATS, [shape])}


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
