"""Track parallelism: each process holds some of the tracks; processes synchronize at block boundaries only (report 2.2).

Each block has one all-reduce in the forward pass, in `Tracks.reduce_from_tracks`, and one in the backward pass, in
`Tracks.copy_to_tracks`. All other computation is local: heads, router, experts and their dispatch.

The all-reduce is asynchronous: the first operation that reads its result waits, on an accelerator in the device's stream.
It overlaps with operations that were queued before it, with FSDP's all-gather of the next block's weights, and in the
backward pass with FSDP's reduce-scatter of the previous block's gradients. It does not overlap with the next block of the
same tokens, whose first norm reads the sum.
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
    """The number of tracks is not a multiple of the number of processes, or the model has no tracks."""


def has_track_dim(name: str) -> bool:
    """Return True if a parameter of a model with tracks has tracks as its first dim."""
    return name.startswith(("layers.", "tracks.norms."))


@torch.no_grad()
def share_tracks(model: Decoder, group: dist.ProcessGroup) -> None:
    """Keep the tracks of this rank of `group` and sum over the group at block boundaries.

    Parameters stay the same objects and shrink.

    Raises:
        TracksNotDivisibleError: the model has no tracks, or their number is not a multiple of the group's size.
    """
    size, tracks = group.size(), model.tracks
    if tracks is None or tracks.num_local % size:
        count = "no" if tracks is None else tracks.num_local
        raise TracksNotDivisibleError(
            f"a model with {count} tracks cannot be divided over {size} processes; use a number that divides the tracks"
        )
    num_local = tracks.num_local // size
    first = group.rank() * num_local
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if has_track_dim(name):
            tensor.data = tensor.data[first : first + num_local].clone()
    tracks.num_local = num_local
    tracks.copy_to_tracks = lambda x: _CopyToTracks.apply(x, group)
    tracks.reduce_from_tracks = lambda x: _ReduceFromTracks.apply(x, group)


class _ReduceFromTracks(torch.autograd.Function):
    """Sum over the processes; the backward pass is the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return all_reduce(x, "sum", group)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        return dys[0], None


class _CopyToTracks(torch.autograd.Function):
    """Identity; the backward pass sums the gradients over the processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        return all_reduce(dys[0].contiguous(), "sum", ctx.group), None
