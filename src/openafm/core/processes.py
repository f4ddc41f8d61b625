"""Which of a run's processes this one is, as torchrun tells in the environment. Imports no tensor library."""

from __future__ import annotations

import os


def rank() -> int:
    """The number of this process, counted from 0, which writes and speaks for all."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes run this program together; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))
