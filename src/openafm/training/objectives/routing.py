"""Auxiliary losses of the routing, which balance the load of the experts.

Both losses are computed per row of the batch and weighted by the row's number of positions that carry loss. They add up over
rows, so they do not depend on how a batch is split into microbatches or over processes.

Shapes: T tracks, E experts of a track, N positions that a router received, K experts chosen for each, B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import Span
from openafm.models.config import DecoderConfig
from openafm.models.feed_forward.experts import Routing
from openafm.models.transfer import to_device
from openafm.training.objectives.config import RoutingLossConfig


@dataclass(frozen=True, kw_only=True)
class RoutingLosses:
    """`total` is added to the objective's sum. `parts` are balance and z loss before their weights, detached.

    `tokens_TE` counts, by layer, the tokens of the batch routed to each expert.
    """

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    tokens_TE: Mapping[int, Tensor] = field(default_factory=dict)


def routing_losses(
    config: RoutingLossConfig,
    model: DecoderConfig,
    seen: Mapping[int, Routing],
    batch: Batch,
    indices_N: Tensor,
    gather: Callable[[Tensor], Tensor] = lambda x: x,
    sum_over_parts: Callable[[Tensor], Tensor] = lambda x: x,
) -> RoutingLosses:
    """Return the losses of one forward pass of `hidden_at` at the positions `indices_N` of the flattened batch.

    The balance loss of a row is E * sum over experts of (share of its tokens) * (mean probability), 1 at equal load
    (arXiv 2101.03961, by row as in arXiv 2412.19437); the z loss is the mean squared logsumexp of the logits (arXiv
    2202.08906). Both are means over tracks and layers; `gather` sums over the tracks of all processes. Of a part of rows
    they are its terms of the losses of whole rows, with the shares that `sum_over_parts` adds up.
    """
    device = indices_N.device
    if not seen:
        return RoutingLosses(total=torch.zeros((), device=device))
    num_rows, row_length = batch.tokens_BS.shape
    part = batch.row_part
    real_N = to_device(_real_positions(batch), device)
    targets_B = to_device(batch.loss_mask_BS.sum(1) if part is None else part.targets_B, device).float()
    real_B = targets_B if part is None else to_device(_num_real(part.documents, num_rows), device)
    divisor = len(seen) * model.num_tracks
    balance, z = torch.zeros((), device=device), torch.zeros((), device=device)
    tokens_TE: dict[int, Tensor] = {}
    for layer, routing in seen.items():
        narrowed = layer >= model.num_prefill_layers - 1
        places_N = indices_N if narrowed else real_N
        logits_TNE, chosen_TNK = routing.logits_TNE, routing.chosen_TNK
        if not narrowed:
            logits_TNE, chosen_TNK = logits_TNE[:, places_N], chosen_TNK[:, places_N]
        num_experts = logits_TNE.shape[-1]
        got_TNE = F.one_hot(chosen_TNK, num_experts).sum(2)
        counts_B = None if part is None else targets_B if narrowed else real_B
        in_row_BN = _means_by_row(places_N // row_length, num_rows, counts_B)
        if narrowed and part is not None and part.is_silent:
            in_row_BN, got_TNE = in_row_BN * 0, got_TNE * 0
        tokens_TE[layer] = got_TNE.sum(1)
        shares_TBE = sum_over_parts(in_row_BN @ got_TNE.float() / chosen_TNK.shape[-1])
        probabilities_TBE = in_row_BN @ logits_TNE.softmax(-1)
        balance = balance + num_experts * (shares_TBE * probabilities_TBE).sum((0, 2)) @ targets_B / divisor
        squares_TN1 = logits_TNE.logsumexp(-1, keepdim=True).square()
        z = z + (in_row_BN @ squares_TN1).sum((0, 2)) @ targets_B / divisor
    balance, z = gather(torch.stack([balance, z]))
    return RoutingLosses(
        total=config.balance_weight * balance + config.z_weight * z,
        parts={"expert_balance": balance.detach(), "router_z": z.detach()},
        tokens_TE=tokens_TE,
    )


def _real_positions(batch: Batch) -> Tensor:
    """Return the indices of the flattened batch that are not padding."""
    row_length = batch.tokens_BS.shape[1]
    spans = [torch.arange(row * row_length + start, row * row_length + stop) for row, start, stop in batch.documents]
    return torch.cat(spans) if spans else torch.zeros(0, dtype=torch.long)


def _num_real(documents: Sequence[Span], num_rows: int) -> Tensor:
    """Return the number of positions of each row that are not padding."""
    counts_B = torch.zeros(num_rows)
    for row, start, stop in documents:
        counts_B[row] += stop - start
    return counts_B


def _means_by_row(rows_N: Tensor, num_rows: int, counts_B: Tensor | None) -> Tensor:
    """A matrix [B, N] that takes the mean over the positions of each row; zeros for a row without any.

    The sums are divided by the numbers of positions, or by those of whole rows, `counts_B`.
    """
    membership_BN = (torch.arange(num_rows, device=rows_N.device)[:, None] == rows_N).float()
    counts_B1 = membership_BN.sum(1, keepdim=True) if counts_B is None else counts_B[:, None]
    return membership_BN / counts_B1.clamp(min=1)
