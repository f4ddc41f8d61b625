"""The C library's allocator in a process that trains on a CPU."""

from __future__ import annotations

import ctypes
import os
import platform

RETURNED_BYTES = 1 << 20
"""Freed blocks from this size go back to the system; smaller ones hold little of a step's memory."""
_M_MMAP_THRESHOLD = -3  # of mallopt, as in malloc.h


def return_freed_blocks() -> None:
    """Make glibc return large freed blocks at once, for the rest of the process, at the price of page faults.

    Torch asks for aligned memory, for which glibc before 2.38 does not take a freed block of exactly that size. Between the
    inputs of recomputed layers, which stay, freed activations are therefore never used again, and a step took up to twice
    the memory of its tensors. A threshold in the environment (MALLOC_MMAP_THRESHOLD_) has precedence.
    """
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, RETURNED_BYTES)
