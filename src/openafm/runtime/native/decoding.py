"""Matrices that are decoded when they are loaded: ASTC blocks, and groups beside float activations.

Decoding gives the numbers that the torch engine multiplies, in fp32 or rounded to bfloat16. One matrix of a stack is decoded
at a time. Imports no tensor library.

Shapes: R outputs and I inputs of a matrix, S matrices of a stack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import BundleError
from openafm.compression.errors import CompressionError
from openafm.compression.grouped import FORMATS, GroupedMatrix
from openafm.runtime.native.matrix_layout import MatrixLayout

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_BLOCK = 6


def astc_tensors(layout: MatrixLayout, present: Collection[str]) -> dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]]:
    """Return the dtypes and shapes of the tensors of ASTC blocks by name. The seed of a rotation is optional."""
    name, count = layout.tensor, layout.num_in_stack
    grid = (count, -(-layout.num_outputs // _BLOCK), -(-layout.num_inputs // _BLOCK))
    expected: dict[str, tuple[tuple[str, ...], list[tuple[int, ...]]]] = {name: (("U8",), [(*grid, 16)])}
    if f"{name}.minima" in present:
        expected[f"{name}.minima"] = ("F16",), [grid]
    else:
        expected[f"{name}.offset"] = ("F32",), [(count,)]
    if f"{name}.minima" not in present or f"{name}.scale" in present:
        expected[f"{name}.scale"] = ("F32",), [(count,)]
    if f"{name}.rotation_seed" in present:
        expected[f"{name}.rotation_seed"] = ("I64",), [(1,)]
    return expected


def decoded(layout: MatrixLayout, stored: Arrays) -> NDArray[Any]:
    """Return a matrix as fp32, or as bfloat16 in uint16 if its layout has that format.

    Raises:
        BundleError: its blocks are damaged.
    """
    try:
        values_RI = _values(layout, stored)
    except CompressionError as error:
        raise BundleError(f"'{layout.name}' cannot be decoded: {error}") from error
    return rounded_to(layout.weights, values_RI)


def _values(layout: MatrixLayout, stored: Arrays) -> NDArray[np.float32]:
    shape = (layout.num_outputs, layout.num_inputs)
    if layout.stored == "astc_6x6":
        from openafm.compression.astc.matrix import AstcMatrix, decode_matrix  # takes a sixth of the start

        whole = AstcMatrix.from_tensors(layout.tensor, stored, layout.shape)
        part = slice(layout.index, layout.index + 1)
        minima = None if whole.minima is None else whole.minima[part]
        one = replace(
            whole,
            blocks=whole.blocks[part],
            scale=whole.scale[part],
            offset=whole.offset[part],
            shape=shape,
            minima=minima,
        )
        return decode_matrix(one)
    if layout.stored in FORMATS:
        return GroupedMatrix.from_tensors(layout.tensor, stored, FORMATS[layout.stored], shape).dequantize()
    return in_fp32(stored[layout.tensor]).reshape(-1, *shape)[layout.index]


def rounded_to(weights: str, values: NDArray[np.float32]) -> NDArray[Any]:
    """Return fp32 numbers as they are stored: bfloat16 as uint16, rounded to the nearest, ties to even."""
    if weights == "float32":
        return values
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    return (rounded >> 16).astype(np.uint16)


def in_fp32(vector: NDArray[Any]) -> NDArray[np.float32]:
    if vector.dtype == np.uint16:  # bfloat16
        return (vector.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(vector, np.float32)
