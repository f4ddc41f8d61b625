"""Which number format a device multiplies fast."""

from __future__ import annotations

import torch


def fast_dtype(device: str) -> torch.dtype:
    """Return bf16 if this kind of device multiplies it in hardware, else fp32.

    Processors without bf16 or AVX-512 instructions multiply bf16 matrices about 50 times slower than fp32.
    """
    if device == "cuda":
        return torch.bfloat16
    has_bfloat16 = device == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if has_bfloat16 else torch.float32
