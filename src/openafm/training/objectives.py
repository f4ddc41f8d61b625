"""What a model is trained for: functions of a model and a batch that return losses. The trainer knows none of them.

Shapes: B rows, S tokens of a row, N positions that carry loss, D model dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from openafm.data.loader import Batch
from openafm.models.accounting import training_flops
from openafm.models.attention_context import PackedDocuments
from openafm.models.decoder import Decoder
from openafm.models.experts import observed_routing
from openafm.training.config import RoutingLossConfig
from openafm.training.cross_entropy import cross_entropy_sum
from openafm.training.routing import routing_losses


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over `count` items (tokens, pairs, ...) of a batch; the trainer divides by the items of the whole step.

    `total` is what to minimise, a differentiable fp32 scalar. `parts` are further sums to log by name, detached. `flops`
    counts the floating-point operations that forward and backward need. `expert_tokens` counts, by layer, the tokens that
    each expert of each track got, [T, E].
    """

    total: Tensor
    count: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    flops: int = 0
    expert_tokens: Mapping[int, Tensor] = field(default_factory=dict)


DEFAULT_ROUTING = RoutingLossConfig()

Objective = Callable[[Decoder, Batch], Losses]


class NextToken:
    """Cross entropy of the next token, each document by itself.

    Only positions that carry loss pass the layers that store no keys and values and the head: exact, since nobody reads
    the others there (the prefill bypass of report 2.1, in training). Where the model has experts, the auxiliary losses of
    their routing are added to the total.
    """

    def __init__(self, routing: RoutingLossConfig = DEFAULT_ROUTING) -> None:
        self._routing = routing

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        device = model.device
        indices_N = torch.from_numpy(batch.loss_mask_BS).flatten().nonzero()[:, 0].to(device)
        if len(indices_N) == 0:
            return Losses(total=torch.zeros((), device=device), count=0)
        num_rows, row_length = batch.tokens_BS.shape
        context = PackedDocuments(batch.documents, num_rows, row_length, device)
        targets_N = torch.from_numpy(batch.targets_BS).to(device).flatten()[indices_N]
        # Cached: an embedding under quantisation-aware training is rounded once, not for each use.
        with observed_routing(model) as seen, parametrize.cached():
            x_1ND = model.hidden_at(torch.from_numpy(batch.tokens_BS).to(device), context, indices_N)
            cross_entropy = cross_entropy_sum(x_1ND[0], model.head_weight, targets_N)
        routing = routing_losses(self._routing, model.config, seen, batch, indices_N)
        lengths = [span.stop - span.start for span in batch.documents]
        return Losses(
            total=cross_entropy + routing.total,
            count=len(indices_N),
            parts={"cross_entropy": cross_entropy.detach(), **routing.parts} if seen else {},
            flops=training_flops(model.config, lengths, len(indices_N)),
            expert_tokens=routing.tokens_TE,
        )
