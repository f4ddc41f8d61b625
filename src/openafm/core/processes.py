"""Which of a run's processes this one is, as torchrun tells in the environment.

Imports no tensor library until a backend is asked for.
"""

from __future__ import annotations

import os


def rank() -> int:
    """The number of this process, counted from 0, which writes and speaks for all."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes run this program together; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def backend() -> str:
    """What the processes talk through: gloo, and NCCL where each one on this machine has a GPU, which becomes its device."""
    import torch

    if torch.cuda.device_count() < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) or not torch.cuda.is_available():
        return "gloo"
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return "cpu:gloo,cuda:nccl"
