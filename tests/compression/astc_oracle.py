"""astcenc (astc-encoder-py) as an independent encoder and decoder of 6x6 blocks: matrices in the red component."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

astc_encoder = pytest.importorskip("astc_encoder")

PROFILES = ("LDR", "HDR")


def astcenc_encode(image: NDArray[np.floating], profile: str, quality: int = 10) -> NDArray[np.uint8]:
    """Blocks [N, 16] of an image whose sides are multiples of six."""
    num_rows, num_columns = image.shape
    config = astc_encoder.ASTCConfig(astc_encoder.ASTCProfile[profile], 6, 6, 1, quality)
    rgba = np.repeat(image[:, :, None].astype(np.float32), 4, axis=2)
    rgba[..., 3] = 1
    texture = astc_encoder.ASTCImage(astc_encoder.ASTCType.F32, num_columns, num_rows, 1, rgba.tobytes())
    data = astc_encoder.ASTCContext(config).compress(texture, astc_encoder.ASTCSwizzle.from_str("RRR1"))
    return np.frombuffer(data, np.uint8).reshape(-1, 16)


def astcenc_decode(blocks: NDArray[np.uint8], profile: str = "HDR") -> NDArray[np.float16]:
    """The components of every texel: [N, 36, 4]."""
    config = astc_encoder.ASTCConfig(astc_encoder.ASTCProfile[profile], 6, 6, 1)
    texture = astc_encoder.ASTCImage(astc_encoder.ASTCType.F16, 6, 6 * len(blocks), 1)
    decoded = astc_encoder.ASTCContext(config).decompress(
        np.ascontiguousarray(blocks).tobytes(), texture, astc_encoder.ASTCSwizzle.from_str("RGBA")
    )
    return np.frombuffer(decoded.data, np.float16).reshape(len(blocks), 36, 4)


def num_mismatches(ours: NDArray[np.float16], theirs: NDArray[np.float16]) -> int:
    """The number of values that differ in any bit."""
    return int(np.count_nonzero(ours.view(np.uint16) != np.ascontiguousarray(theirs).view(np.uint16)))
