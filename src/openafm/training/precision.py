"""Which number format a device multiplies fast."""

from __future__ import annotations

import torch

_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")


def fast_dtype(device: str) -> torch.dtype:
    """Return bf16 if this kind of device multiplies it in hardware, else fp32.

    x86 processors with AVX-512 but without its bf16 instructions emulate them, at half the speed of fp32; those without
    AVX-512 multiply bf16 matrices about 50 times slower than fp32.
    """
    if device == "cuda":
        return torch.bfloat16
    return torch.bfloat16 if device == "cpu" and _multiplies_bf16() else torch.float32


def _multiplies_bf16() -> bool:
    """Return True if this processor has instructions for products in bf16, of x86 or ARM, and torch uses them."""
    found = torch.cpu.get_capabilities()
    return torch.backends.mkldnn.is_available() and any(found.get(name, False) for name in _INSTRUCTIONS)
