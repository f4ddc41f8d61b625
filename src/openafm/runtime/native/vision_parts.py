"""Products, norms and attention of the vision encoder in the native library (source/vision.cpp).

Everything is fp32 but products with matrices in 8 bits, whose inputs are rounded to 8 bits with one scale per token.

Shapes: T tokens, I inputs and R outputs of a matrix, D encoder dim, N windows of S tokens, H heads, C head dim.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from openafm.core.processes import finalize
from openafm.runtime.native.library import MatrixStruct, kernel_names, native_library
from openafm.runtime.native.matrix_layout import FLOAT32, INT8, PANEL_ROWS, TILE_ROWS
from openafm.runtime.native.model import OutOfMemoryError

Floats = NDArray[np.float32]
Weights = dict[str, NDArray[Any]]
"""Arrays of fp32 and, for codes of matrices, int8."""


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """A matrix in the kernels' layout, and the struct that points to it."""

    struct: MatrixStruct
    tiles: NDArray[Any]
    bias_R: Floats
    scale_R: Floats | None = None


class TowerParts:
    """Computes with named weights: `NAME.weight` [R, I] and `NAME.bias` [R] of matrices and norms.

    Args:
        weights: contiguous fp32 arrays; of matrices also int8 with `NAME.weight.scale` [R], if I is a multiple of 32.
            Matrices are removed here when they are converted, at their first use.
        kernels: name of a kernel set; None for the best of this processor.

    Raises:
        NativeBuildError: the native runtime cannot be compiled here.
        OutOfMemoryError: the threads cannot be started, or the processor lacks the kernel set.
    """

    def __init__(self, weights: Weights, num_threads: int, kernels: str | None) -> None:
        self._weights, self._matrices = weights, dict[str, _Matrix]()
        self._library = native_library()
        self._handle = self._library.oa_tower_new(num_threads, None if kernels is None else kernels.encode())
        if not self._handle:
            raise OutOfMemoryError(
                f"the vision encoder cannot start with kernels {kernels or kernel_names(self._library)[0]}"
            )
        finalize(self, self._library.oa_tower_free, self._handle)

    def linear(self, name: str, x: NDArray[np.float32], *, has_gelu: bool = False) -> Floats:
        """Return x [..., I] times the matrix plus its bias, [..., R], and GELU of that with `has_gelu`.

        Raises:
            ValueError: the rows have another number of inputs than the matrix.
            OutOfMemoryError: there is no memory for the rounded inputs.
        """
        matrix = self._matrix(name)
        num_inputs = matrix.struct.num_inputs
        if x.shape[-1] != num_inputs:
            raise ValueError(f"{name} has {num_inputs} inputs, got rows of {x.shape[-1]}")
        x_TI = np.ascontiguousarray(x.reshape(-1, num_inputs), np.float32)
        y_TR = np.empty((len(x_TI), matrix.struct.num_outputs), np.float32)
        rows = (x_TI.ctypes.data, len(x_TI), y_TR.ctypes.data)
        if self._library.oa_tower_product(self._handle, ctypes.byref(matrix.struct), has_gelu, *rows):
            raise OutOfMemoryError(f"no memory for the rounded inputs of {len(x_TI)} image tokens")
        return y_TR.reshape(*x.shape[:-1], y_TR.shape[1])

    def feed_forward(self, norm: str, up: str, down: str, eps: float, x_TD: Floats) -> Floats:
        """Return x plus the feed-forward of its layer norm, with GELU between the two products.

        Raises:
            ValueError: the matrices or the rows do not fit each other.
            OutOfMemoryError: there is no memory for the rows between the products.
        """
        first, second = self._matrix(up), self._matrix(down)
        sizes = (first.struct.num_inputs, second.struct.num_outputs, first.struct.num_outputs)
        if sizes != (x_TD.shape[1], x_TD.shape[1], second.struct.num_inputs):
            raise ValueError(f"{up} and {down} do not fit each other, or rows of {x_TD.shape[1]}")
        weight_D, bias_D = self._norm_weights(norm, x_TD.shape[1])
        x_TD = np.ascontiguousarray(x_TD)
        y_TD = np.empty_like(x_TD)
        matrices = (ctypes.byref(first.struct), ctypes.byref(second.struct))
        vectors = (weight_D.ctypes.data, bias_D.ctypes.data)
        rows = (x_TD.ctypes.data, len(x_TD), y_TD.ctypes.data)
        if self._library.oa_tower_feed_forward(self._handle, *matrices, *vectors, eps, *rows):
            raise OutOfMemoryError("no memory for the feed-forward of image tokens")
        return y_TD

    def norm(self, name: str, eps: float, x_TD: Floats) -> Floats:
        """Return the layer norm of each row.

        Raises:
            ValueError: the norm has another number of weights than the rows have values.
        """
        weight_D, bias_D = self._norm_weights(name, x_TD.shape[1])
        x_TD = np.ascontiguousarray(x_TD)
        y_TD = np.empty_like(x_TD)
        vectors = (x_TD.ctypes.data, weight_D.ctypes.data, bias_D.ctypes.data)
        self._library.oa_tower_norm(self._handle, *vectors, *x_TD.shape, eps, y_TD.ctypes.data)
        return y_TD

    def attention(self, qkv_T3HC: Floats, *, num_shared: int, num_windows: int) -> Floats:
        """Return the attention within each window, [N, S, H * C].

        A window has the first `num_shared` tokens, and its share of the others, in order.

        Raises:
            OutOfMemoryError: there is no memory for the scores.
        """
        num_tokens, _, num_heads, head_dim = qkv_T3HC.shape
        window_tokens = (num_tokens - num_shared) // num_windows
        qkv_T3HC = np.ascontiguousarray(qkv_T3HC)
        o_NSD = np.empty((num_windows, num_shared + window_tokens, num_heads * head_dim), np.float32)
        sizes = (num_shared, num_windows, window_tokens, num_heads, head_dim)
        if self._library.oa_tower_attend(self._handle, qkv_T3HC.ctypes.data, *sizes, o_NSD.ctypes.data):
            raise OutOfMemoryError(f"no memory for the attention of {window_tokens} image tokens")
        return o_NSD

    def _norm_weights(self, name: str, dim: int) -> tuple[Floats, Floats]:
        """Return weight and bias of a norm, [D] each. The native library reads as many without a check."""
        weight_D, bias_D = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        if weight_D.shape != (dim,) or bias_D.shape != (dim,):
            raise ValueError(f"{name} has weights {weight_D.shape} and a bias {bias_D.shape}, expected ({dim},)")
        return weight_D, bias_D

    def _matrix(self, name: str) -> _Matrix:
        if name not in self._matrices:
            self._matrices[name] = self._packed(name)
        return self._matrices[name]

    def _packed(self, name: str) -> _Matrix:
        weight_RI, bias_R = self._weights.pop(f"{name}.weight"), cast(Floats, self._weights[f"{name}.bias"])
        if weight_RI.ndim != 2 or bias_R.shape != weight_RI.shape[:1]:
            raise ValueError(f"{name} has weights {weight_RI.shape} and a bias {bias_R.shape}")
        if weight_RI.dtype == np.int8:
            return self._packed_codes(weight_RI, cast(Floats, self._weights.pop(f"{name}.weight.scale")), bias_R)
        num_outputs, num_inputs = weight_RI.shape
        tiles = np.zeros(-(-num_outputs // TILE_ROWS) * TILE_ROWS * num_inputs, np.float32)
        self._library.oa_pack_float32(weight_RI.ctypes.data, num_outputs, num_inputs, tiles.ctypes.data)
        struct = MatrixStruct(
            codes=tiles.ctypes.data,
            bias=bias_R.ctypes.data,
            kind=FLOAT32,
            num_outputs=num_outputs,
            num_inputs=num_inputs,
        )
        return _Matrix(struct=struct, tiles=tiles, bias_R=bias_R)

    def _packed_codes(self, codes_RI: NDArray[Any], scale_R: Floats, bias_R: Floats) -> _Matrix:
        num_outputs, num_inputs = codes_RI.shape
        tiles = np.zeros(-(-num_outputs // TILE_ROWS) * TILE_ROWS * num_inputs, np.uint8)
        self._library.oa_pack_groups(codes_RI.ctypes.data, None, None, num_outputs, num_inputs, 8, 0, tiles.ctypes.data)
        padded_R = np.pad(scale_R, (0, -num_outputs % PANEL_ROWS))
        struct = MatrixStruct(
            codes=tiles.ctypes.data,
            scales=padded_R.ctypes.data,
            bias=bias_R.ctypes.data,
            kind=INT8,
            num_outputs=num_outputs,
            num_inputs=num_inputs,
        )
        return _Matrix(struct=struct, tiles=tiles, bias_R=bias_R, scale_R=padded_R)
