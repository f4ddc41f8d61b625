"""Rank and number of the processes of a run, from the environment that torchrun sets, and finalizers that respect forks.

Imports torch only in `backend`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def rank() -> int:
    """Return the rank of this process; rank 0 writes files and prints."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes of this run; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def finalize(owner: object, free: Callable[..., object], *arguments: object, at_exit: bool = False) -> None:
    """Call `free(*arguments)` when `owner` is collected, in this process only.

    A forked process has none of the threads that `free` may join, and its copies of locks may be held without end.
    """
    process = os.getpid()

    def run() -> None:
        if os.getpid() == process:
            free(*arguments)

    weakref.finalize(owner, run).atexit = at_exit


def backend() -> str:
    """Return the communication backend: gloo, plus NCCL if every process on this machine has a GPU, which it selects."""
    import torch

    if torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) or not torch.cuda.is_available():
        return "gloo"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cpu:gloo,cuda:nccl"
