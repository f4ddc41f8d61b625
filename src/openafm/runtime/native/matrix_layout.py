"""Format and size of one matrix in the kernels' layout. Imports no tensor library."""

from __future__ import annotations

import math
from dataclasses import dataclass

from openafm.compression.grouped import FORMATS

PANEL_ROWS, STEP_INPUTS, TILE_ROWS = 64, 16, 16
INT2, INT4, INT8, BFLOAT16, FLOAT32 = range(5)  # source/abi.h


@dataclass(frozen=True, kw_only=True)
class MatrixLayout:
    """Name, shape and format of a matrix in the kernels' layout, and where the bundle stores it.

    Attributes:
        weights: format that the kernels read; `stored` is that of the bundle. If they differ, the matrix is decoded.
        tensor: the bundle's tensor, which holds the matrices of all tracks and experts as a stack.
        index: number of this matrix in the flattened stack; `stack` are the stack's dims, () for a single matrix.
    """

    name: str
    num_outputs: int
    num_inputs: int
    weights: str
    stored: str
    tensor: str
    index: int = 0
    stack: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor if it holds one number for each weight."""
        return (*self.stack, self.num_outputs, self.num_inputs)

    @property
    def num_in_stack(self) -> int:
        """Number of matrices of the stack."""
        return math.prod(self.stack)

    @property
    def is_decoded(self) -> bool:
        """Return True if the bundle stores the matrix in another format than the kernels read."""
        return self.stored != self.weights

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
