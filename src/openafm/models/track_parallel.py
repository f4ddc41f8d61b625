"""Track parallelism: each process holds some of the tracks, and sums meet at block boundaries only (report 2.2).

One all-reduce for each block in the forward pass, in `Tracks.gather`, and one in the backward pass, its mirror in
`Tracks.spread`. All else of a layer is local: weights, heads, router, experts and their dispatch.

What overlaps: the all-reduce is started and not waited for; whoever first reads its result waits, on an accelerator in the
stream of the device and not in Python. Whatever does not read it goes on meanwhile: work that was put on the device before,
of any microbatch, FSDP's gathering of the next block's weights, in the backward pass FSDP's sums of the gradients of the
block that is left. What does not overlap: the next block of the same tokens, its expert dispatch included, whose first norm
reads the sum. It can only overlap with the other half of a batch that is passed in two halves, block by block in turn;
nothing here stands in the way of that, since each half has its own context and a sum that waits by itself, but nobody does
it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_reduce

from openafm.core.errors import UsageError
from openafm.models.decoder import Decoder


class TracksNotDivisibleError(UsageError):
    """Tracks that the processes cannot share evenly, or a model without tracks."""


def is_of_tracks(name: str) -> bool:
    """Whether a parameter of a model with tracks carries them as its first dim."""
    return name.startswith(("layers.", "tracks.norms."))


@torch.no_grad()
def share_tracks(model: Decoder, group: dist.ProcessGroup) -> None:
    """Keep the tracks of this process, by its rank in `group`, and let block boundaries sum over the group.

    Parameters stay the same objects, with fewer numbers in them.

    Raises:
        TracksNotDivisibleError: the model has no tracks, or they do not divide over the group.
    """
    size, tracks = group.size(), model.tracks
    if tracks is None or tracks.num_local % size:
        count = "no" if tracks is None else tracks.num_local
        raise TracksNotDivisibleError(
            f"a model with {count} tracks cannot be shared by {size} processes; start as many as divide the tracks"
        )
    num_local = tracks.num_local // size
    first = group.rank() * num_local
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_of_tracks(name):
            tensor.data = tensor.data[first : first + num_local].clone()
    tracks.num_local = num_local
    tracks.spread = lambda x: _Spread.apply(x, group)
    tracks.gather = lambda x: _Gather.apply(x, group)


class _Gather(torch.autograd.Function):
    """The sum over the processes; every process gets its gradient whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        return dys[0], None


class _Spread(torch.autograd.Function):
    """The same in every process; the gradient is the sum of what the processes' tracks make of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        return all_reduce(dys[0].contiguous(), "sum", ctx.group), None
