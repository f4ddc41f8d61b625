"""Context parallelism: the ranks of a group divide the positions of each row and exchange keys and values.

A layer that sees whole documents gathers the keys and values of whole rows: one all-gather in the forward pass, one
reduce-scatter of their gradients in the backward pass. A layer with a window gets the last keys and values of the previous
rank, and returns their gradients, in one all-to-all each.

Shapes: B rows, S positions of a rank, P ranks, Z any further dims.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from openafm.models.row_parts import KeyValueExchange


class GroupKeyValueExchange(KeyValueExchange):
    """The exchange over a process group; ranks hold consecutive parts of the positions, in order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def gather(self, x_BSKC: Tensor) -> Tensor:
        whole: Tensor = _Gather.apply(x_BSKC, self._group)
        return whole

    def with_past(self, x_BSKC: Tensor, length: int) -> Tensor:
        extended: Tensor = _WithPast.apply(x_BSKC, length, self._group)
        return extended

    def sum(self, x: Tensor) -> Tensor:
        total = x.detach().clone()
        dist.all_reduce(total, group=self._group)
        return total


class _Gather(torch.autograd.Function):
    """Gather along the positions; the backward pass sums over the ranks and returns the gradients of the own positions."""

    @staticmethod
    def forward(ctx: Any, x_BSZ: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        gathered = x_BSZ.new_empty(group.size() * len(x_BSZ), *x_BSZ.shape[1:])
        dist.all_gather_single(gathered, x_BSZ.contiguous(), group=group)
        return gathered.unflatten(0, (group.size(), -1)).transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None]:
        dy_PBSZ = dys[0].unflatten(1, (ctx.group.size(), -1)).transpose(0, 1).contiguous()
        dx_BSZ = torch.empty_like(dy_PBSZ[0])
        dist.reduce_scatter_single(dx_BSZ, dy_PBSZ.flatten(0, 1), group=ctx.group)
        return dx_BSZ, None


class _WithPast(torch.autograd.Function):
    """Put the last `length` positions of the previous rank before the own ones; the backward pass returns gradients."""

    @staticmethod
    def forward(ctx: Any, x_BSZ: Tensor, length: int, group: dist.ProcessGroup) -> Tensor:
        ctx.length, ctx.group = length, group
        if length == 0:
            return x_BSZ.view_as(x_BSZ)
        past_BLZ = _send(x_BSZ[:, -length:], group, distance=1)
        return x_BSZ.clone() if past_BLZ is None else torch.cat((past_BLZ, x_BSZ), dim=1)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None, None]:
        (dy,), length = dys, ctx.length
        if length == 0:
            return dy, None, None
        has_past = ctx.group.rank() > 0
        returned_BLZ = _send(dy[:, :length], ctx.group, distance=-1)
        dx_BSZ = dy[:, length if has_past else 0 :].clone()
        if returned_BLZ is not None:
            dx_BSZ[:, -length:] += returned_BLZ
        return dx_BSZ, None, None


def _send(x: Tensor, group: dist.ProcessGroup, *, distance: int) -> Tensor | None:
    """Send x to the rank that is `distance` ahead; return what the one behind sends, None without one."""
    rank, size = group.rank(), group.size()
    sends, receives = 0 <= rank + distance < size, 0 <= rank - distance < size
    to_send, to_receive = [0] * size, [0] * size
    if sends:
        to_send[rank + distance] = x.numel()
    if receives:
        to_receive[rank - distance] = x.numel()
    received = x.new_empty(x.numel() if receives else 0)
    sent = x.reshape(-1) if sends else x.new_empty(0)
    dist.all_to_all_single(received, sent.contiguous(), to_receive, to_send, group=group)
    return received.view(x.shape) if receives else None
