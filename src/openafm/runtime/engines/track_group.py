"""The process group that shares the tracks of a model at inference: the processes that torchrun started.

All processes run the same program: the same engine calls in the same order with the same tokens. Seeds of answers without
one are drawn identically in all of them.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

import numpy as np
import torch

from openafm.core.processes import backend, world_size
from openafm.models.config import DecoderConfig
from openafm.runtime.decoding.sampling import draw_seeds_from

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_opened: list[ProcessGroup] = []


def track_group(config: DecoderConfig) -> ProcessGroup | None:
    """Return the process group for the tracks of this model, creating it on first use; None if this process has all tracks.

    That is the case for a model without tracks, for one process, and during a training run, whose processes do not make the
    same calls.
    """
    from torch import distributed

    if config.tracks is None or world_size() == 1 or (distributed.is_initialized() and not _opened):
        return None
    if not _opened:
        distributed.init_process_group(backend())
        group = distributed.group.WORLD
        assert group is not None
        seed = torch.randint(2**62, (1,))
        distributed.broadcast(seed, 0)
        generator = np.random.Generator(np.random.Philox(int(seed)))
        draw_seeds_from(lambda: int.from_bytes(generator.bytes(16), "little"))
        _opened.append(group)
        atexit.register(_leave)
    return _opened[0]


def _leave() -> None:
    """Destroy the group at exit. A group that still exists at interpreter shutdown sometimes aborts the process."""
    from torch import distributed

    _opened.clear()
    if distributed.is_initialized():
        distributed.destroy_process_group()
