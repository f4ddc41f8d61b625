"""The averaging matrices of `PooledConvolution`, for torch and for engines without it. Imports no tensor library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

TAPS = 3


def pooling_of_taps(side: int, tokens_side: int) -> NDArray[np.float32]:
    """Return the averaging matrix of one axis for each tap, [T, K, side]: token t averages the patches of its cell, shifted
    by the tap's offset; patches outside of the image count as zero."""
    matrix_TKY = np.zeros((tokens_side, TAPS, side), np.float32)
    for token in range(tokens_side):
        start, stop = token * side // tokens_side, -(-(token + 1) * side // tokens_side)
        for tap in range(TAPS):
            shifted = [place + tap - TAPS // 2 for place in range(start, stop)]
            matrix_TKY[token, tap, [place for place in shifted if 0 <= place < side]] = 1 / (stop - start)
    return matrix_TKY
