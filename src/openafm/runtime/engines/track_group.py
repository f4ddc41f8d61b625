"""The processes that share the tracks of a model at inference: those that torchrun has started.

Each runs the same program: the same calls of the engine in the same order, with the same tokens. What would differ by
chance, the seed of an answer that was given none, is drawn alike in all of them.
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
    """The processes to share the tracks of this model with, joined on first use; None if it is computed here alone.

    It is where the model has no tracks, where there is one process, and in the middle of a training run, whose processes do
    not all do the same.
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
    """Let the group go while its threads can be ended: what is left of it to the very end aborts the process at times."""
    from torch import distributed

    _opened.clear()
    if distributed.is_initialized():
        distributed.destroy_process_group()
