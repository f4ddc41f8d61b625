"""Expert parallelism: each process holds some of the experts of every track; rows are exchanged by all-to-all.

The forward pass has one all-to-all of counts and two of rows, the backward pass two of rows. Routers are replicated. The
host reads the numbers of rows once per layer, because the sizes of buffers depend on them.

Shapes: P processes, T local tracks, E experts of a track, L = E / P of them local, M rows, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from openafm.core.errors import UsageError
from openafm.models.feed_forward.experts import Experts


class ExpertsNotDivisibleError(UsageError):
    """The number of experts is not a multiple of the number of processes."""


@torch.no_grad()
def share_experts(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Keep the experts of this rank of `group` and exchange rows over the group.

    Parameters stay the same objects and shrink.

    Raises:
        ExpertsNotDivisibleError: the number of experts is not a multiple of the group's size.
    """
    for experts in (module for module in model.modules() if isinstance(module, Experts)):
        num_experts = experts.gate.shape[-3]
        if num_experts % group.size():
            raise ExpertsNotDivisibleError(
                f"{num_experts} experts cannot be divided over {group.size()} processes; use a number that divides them"
            )
        num_local = num_experts // group.size()
        for weight in (experts.gate, experts.up, experts.down):
            weight.data = weight.data.narrow(-3, group.rank() * num_local, num_local).clone()
        experts.exchange = AllToAllExchange(group)


@dataclass(frozen=True)
class RowCounts:
    """Rows that this process sends to each process of the group, and receives from it."""

    to_send: list[int]
    to_receive: list[int]


def read_counts(sent_PTL: Tensor, received_PTL: Tensor, num_rows: int) -> RowCounts:
    """Return the numbers of rows from the counts of each expert; on a GPU the host waits for it."""
    to_send, to_receive = torch.stack([sent_PTL, received_PTL]).sum((2, 3)).tolist()
    return RowCounts(to_send, to_receive)


def even_counts(sent_PTL: Tensor, received_PTL: Tensor, num_rows: int) -> RowCounts:
    """Return equal numbers of rows without reading any: for traces with tensors that have no values."""
    each, rest = divmod(num_rows, len(sent_PTL))
    counts = [each + (process < rest) for process in range(len(sent_PTL))]
    return RowCounts(counts, counts)


class AllToAllExchange:
    """Send each row to the process of its expert and return its result. `count_rows` is `read_counts` except in traces."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.count_rows = read_counts

    def __call__(self, x_MD: Tensor, counts_TE: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        num_processes = self._group.size()
        counts_TPL = counts_TE.unflatten(1, (num_processes, -1))
        sent_PTL = counts_TPL.transpose(0, 1).contiguous()
        received_PTL = torch.empty_like(sent_PTL)
        dist.all_to_all_single(received_PTL, sent_PTL, group=self._group)
        rows_of = self.count_rows(sent_PTL, received_PTL, len(x_MD))

        by_process_M = _reordered(counts_TPL, (1, 0, 2), len(x_MD))
        by_expert_M = _reordered(received_PTL, (1, 2, 0), sum(rows_of.to_receive))
        rows = _AllToAll.apply(x_MD[by_process_M], rows_of.to_send, rows_of.to_receive, self._group)
        results = compute(rows[by_expert_M], received_PTL.sum(0))
        back = _AllToAll.apply(results[by_expert_M.argsort()], rows_of.to_receive, rows_of.to_send, self._group)
        return back[by_process_M.argsort()]


def _reordered(counts: Tensor, dims: tuple[int, int, int], num_rows: int) -> Tensor:
    """Return the indices that reorder the rows of groups; `counts` are the rows of each group in their present order."""
    starts = (counts.flatten().cumsum(0) - counts.flatten()).view(counts.shape)
    counts_G, starts_G = counts.permute(dims).flatten(), starts.permute(dims).flatten()
    shifts_G = starts_G - (counts_G.cumsum(0) - counts_G)
    shifts_M = shifts_G.repeat_interleave(counts_G, output_size=num_rows)
    return torch.arange(len(shifts_M), device=counts.device) + shifts_M


class _AllToAll(torch.autograd.Function):
    """Send `to_send[p]` rows to process p and receive `to_receive[p]`; the backward pass sends gradients back."""

    @staticmethod
    def forward(ctx: Any, x_MD: Tensor, to_send: list[int], to_receive: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.to_send, ctx.to_receive, ctx.group = to_send, to_receive, group
        return _all_to_all(x_MD, to_send, to_receive, group)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(dys[0], ctx.to_receive, ctx.to_send, ctx.group), None, None, None


def _all_to_all(x_MD: Tensor, to_send: list[int], to_receive: list[int], group: dist.ProcessGroup) -> Tensor:
    received_MD = x_MD.new_empty(sum(to_receive), x_MD.shape[1])
    dist.all_to_all_single(received_MD, x_MD.contiguous(), to_receive, to_send, group=group)
    return received_MD
