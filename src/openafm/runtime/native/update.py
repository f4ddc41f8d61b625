"""New weights of a training step in the kernels' layout, in full precision or rounded. Imports no tensor library.

Shapes: R outputs, I inputs, D a norm's or bias's length.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle
from openafm.compression.grouped import FORMATS
from openafm.compression.numerics import Numerics
from openafm.core.config import nearest
from openafm.runtime.engines.base import WeightUpdateError
from openafm.runtime.native.decoding import rounded_to
from openafm.runtime.native.layout import layouts, packed_codes
from openafm.runtime.native.matrix_layout import PANEL_ROWS, MatrixLayout
from openafm.runtime.native.shapes import vectors


def with_numerics(bundle: Bundle, numerics: Numerics) -> Bundle:
    """Return a view of a bundle that declares other numerics; its stored tensors stay those of the bundle."""
    view = copy.copy(bundle)
    view.numerics = numerics
    return view


def packed_update(bundle: Bundle, tensors: Mapping[str, Any], library: ctypes.CDLL) -> dict[str, NDArray[np.uint8]]:
    """Return the new bytes of sections by name. `tensors` are fp32 arrays or torch tensors by parameter name.

    Matrices whose numerics are groups or rows of 4 or 8 bits are rounded to nearest.

    Raises:
        WeightUpdateError: a name or shape is not one of the bundle's.
        CompressionError: a matrix that is rounded is not finite, or exceeds the scales.
    """
    matrices: dict[str, list[MatrixLayout]] = {}
    for layout in layouts(bundle).values():
        matrices.setdefault(layout.tensor, []).append(layout)
    shapes = vectors(bundle.config)
    packed: dict[str, NDArray[np.uint8]] = {}
    for name, tensor in tensors.items():
        if name not in matrices and name not in shapes:
            raise WeightUpdateError(f"the bundle has no parameter '{name}'{nearest(name, [*matrices, *shapes])}")
        stacked = matrices.get(name, [])
        expected = stacked[0].shape if stacked else shapes[name]
        if tuple(tensor.shape) != expected:
            raise WeightUpdateError(f"the new value of '{name}' has shape {list(tensor.shape)}, expected {list(expected)}")
        array = _array(tensor)
        if not stacked:
            packed[name] = array.reshape(-1).view(np.uint8)
        for layout in stacked:
            array_RI = array.reshape(-1, layout.num_outputs, layout.num_inputs)[layout.index]
            packed |= _packed_matrix(layout, array_RI, library)
    return packed


def _packed_matrix(
    layout: MatrixLayout, array_RI: NDArray[np.float32], library: ctypes.CDLL
) -> dict[str, NDArray[np.uint8]]:
    """Return the sections of a matrix: its codes, and the scales of its rows in formats that have them."""
    name, single = layout.tensor, replace(layout, stored=layout.weights, index=0, stack=())
    if layout.weights not in FORMATS:
        return {layout.name: packed_codes(single, {name: rounded_to(layout.weights, array_RI)}, library)}
    tensors = FORMATS[layout.weights].quantize(array_RI, name).tensors(name)
    sections = {layout.name: packed_codes(single, tensors, library)}
    if layout.has_row_scales:
        scales_R = np.zeros(layout.num_panels * PANEL_ROWS, np.float32)
        scales_R[: layout.num_outputs] = tensors[f"{name}.scale"]
        sections[f"{layout.name}.scale"] = scales_R.view(np.uint8)
    return sections


def _array(tensor: Any) -> NDArray[np.float32]:
    if hasattr(tensor, "detach"):  # a torch tensor
        tensor = tensor.detach().float().cpu().numpy()
    return np.ascontiguousarray(tensor, np.float32)
