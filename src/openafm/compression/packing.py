"""2-bit codes as bytes: four per byte along the input axis, code i in bits 2i and 2i + 1. Imports no tensor library.

Shapes: R outputs, C inputs, P = C / 4 bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from openafm.compression.errors import CompressionError

_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


def pack_codes(codes_RC: NDArray[np.uint8], name: str = "the matrix") -> NDArray[np.uint8]:
    """Return codes 0 to 3 as bytes [R, P].

    Raises:
        CompressionError: the number of inputs is not a multiple of four; the message holds `name`.
    """
    num_rows, num_inputs = codes_RC.shape
    if num_inputs % 4:
        raise CompressionError(f"{name} has {num_inputs} inputs; 2-bit codes need a multiple of 4")
    packed = codes_RC.reshape(num_rows, -1, 4).astype(np.uint8) << _SHIFTS
    return np.bitwise_or.reduce(packed, axis=2)


def unpack_codes(packed_RP: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the codes [R, C] of bytes: the inverse of `pack_codes`."""
    codes: NDArray[np.uint8] = (packed_RP[:, :, None] >> _SHIFTS) & np.uint8(3)
    return codes.reshape(len(packed_RP), -1)
