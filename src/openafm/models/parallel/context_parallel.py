"""Context parallelism: the ranks of a group divide the positions of each row and exchange keys and values.

A layer that sees whole documents gathers the keys and values of whole rows: one all-gather in the forward pass, one
reduce-scatter of their gradients in the backward pass. A layer with a window gets the last keys and values before each of
its chunks of positions, and returns their gradients, in one all-to-all each.

Shapes: B rows, S positions of a rank, P ranks, Z any further dims.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from openafm.models.attention.row_parts import KeyValueExchange
from openafm.models.parallel.row_layout import RowLayoutConfig


class GroupKeyValueExchange(KeyValueExchange):
    """The exchange over a process group, whose ranks hold the chunks of a layout."""

    def __init__(self, group: dist.ProcessGroup, layout: RowLayoutConfig) -> None:
        self._group = group
        self._chunks = [layout.chunks(rank, group.size()) for rank in range(group.size())]

    def gather(self, x_BSKC: Tensor) -> Tensor:
        whole: Tensor = _Gather.apply(x_BSKC, self._group, list(chain(*self._chunks)))
        return whole

    def with_past(self, x_BSKC: Tensor, length: int) -> Tensor:
        if length == 0:
            return x_BSKC
        holders = {chunk: rank for rank, chunks in enumerate(self._chunks) for chunk in chunks}
        own = self._chunks[self._group.rank()]
        before, after = [holders.get(chunk - 1) for chunk in own], [holders.get(chunk + 1) for chunk in own]
        extended: Tensor = _WithPast.apply(x_BSKC, length, before, after, self._group)
        return extended

    def sum(self, x: Tensor) -> Tensor:
        total = x.detach().clone()
        dist.all_reduce(total, group=self._group)
        return total


class _Gather(torch.autograd.Function):
    """Gather along the positions; the backward pass sums over the ranks and returns the gradients of the own positions.

    `order` has the numbers of the chunks, rank by rank.
    """

    @staticmethod
    def forward(ctx: Any, x_BSZ: Tensor, group: dist.ProcessGroup, order: list[int]) -> Tensor:
        ctx.group, ctx.order = group, order
        gathered = x_BSZ.new_empty(group.size() * len(x_BSZ), *x_BSZ.shape[1:])
        dist.all_gather_single(gathered, x_BSZ.contiguous(), group=group)
        rows_BSZ = gathered.unflatten(0, (group.size(), -1)).transpose(0, 1).flatten(1, 2)
        return _reordered(rows_BSZ, sorted(range(len(order)), key=order.__getitem__))

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None, None]:
        dy_BSZ = _reordered(dys[0], ctx.order)
        dy_PBSZ = dy_BSZ.unflatten(1, (ctx.group.size(), -1)).transpose(0, 1).contiguous()
        dx_BSZ = torch.empty_like(dy_PBSZ[0])
        dist.reduce_scatter_single(dx_BSZ, dy_PBSZ.flatten(0, 1), group=ctx.group)
        return dx_BSZ, None, None


def _reordered(x_BSZ: Tensor, order: list[int]) -> Tensor:
    """Return the equal chunks of the positions in this order."""
    if order == sorted(order):
        return x_BSZ
    return torch.cat([x_BSZ.chunk(len(order), dim=1)[chunk] for chunk in order], dim=1)


class _WithPast(torch.autograd.Function):
    """Put the last `length` positions of the chunk before it in front of each chunk; the backward pass returns gradients.

    `before` and `after` are the ranks that hold the chunks before and after each own one, None at the ends of the row.
    """

    @staticmethod
    def forward(
        ctx: Any, x_BSZ: Tensor, length: int, before: list[int | None], after: list[int | None], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.length, ctx.before, ctx.after, ctx.group = length, before, after, group
        chunks = x_BSZ.chunk(len(before), dim=1)
        pasts = _exchanged([chunk[:, -length:] for chunk in chunks], after, before, group)
        return torch.cat([x for pair in zip(pasts, chunks, strict=True) for x in pair if x is not None], dim=1)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None, None, None, None]:
        (dy,), length = dys, ctx.length
        num_pasts = sum(rank is not None for rank in ctx.before)
        own = (dy.shape[1] - num_pasts * length) // len(ctx.before)
        dextended = dy.split([own + (length if rank is not None else 0) for rank in ctx.before], dim=1)
        returned = _exchanged([each[:, :length] for each in dextended], ctx.before, ctx.after, ctx.group)
        dchunks = [each[:, -own:].clone() for each in dextended]
        for dchunk, of_successor in zip(dchunks, returned, strict=True):
            if of_successor is not None:
                dchunk[:, -length:] += of_successor
        return torch.cat(dchunks, dim=1), None, None, None, None


def _exchanged(
    parts: list[Tensor], to: list[int | None], sources: list[int | None], group: dist.ProcessGroup
) -> list[Tensor | None]:
    """Send each of these equal parts to a rank; return what comes from the `sources`. None is no rank.

    Several parts for one rank are sent in the order of their chunks.
    """
    outgoing = sorted((rank, place) for place, rank in enumerate(to) if rank is not None)
    incoming = sorted((rank, place) for place, rank in enumerate(sources) if rank is not None)
    size = parts[0].numel()
    to_send, to_receive = (
        [size * sum(rank == peer for rank, _ in pairs) for peer in range(group.size())] for pairs in (outgoing, incoming)
    )
    sent = torch.cat([parts[place].reshape(-1) for _, place in outgoing] or [parts[0].new_empty(0)])
    received = sent.new_empty(size * len(incoming))
    dist.all_to_all_single(received, sent, to_receive, to_send, group=group)
    found: list[Tensor | None] = [None] * len(parts)
    for (_, place), values in zip(incoming, received.view(-1, size), strict=True):
        found[place] = values.view(parts[0].shape)
    return found
