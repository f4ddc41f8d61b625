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
from openafm.training.cross_entropy import cross_entropy_sum


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over `count` items (tokens, pairs, ...) of a batch; the trainer divides by the items of the whole step.

    `total` is what to minimise, a differentiable fp32 scalar. `parts` are further sums to log by name, detached. `flops`
    counts the floating-point operations that forward and backward need.
    """

    total: Tensor
    count: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    flops: int = 0


Objective = Callable[[Decoder, Batch], Losses]


class NextToken:
    """Cross entropy of the next token, each document by itself.

    Only positions that carry loss pass the layers that store no keys and values and the head: exact, since nobody reads
    the others there (the prefill bypass of report 2.1, in training).
    """

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        device = model.device
        indices_N = torch.from_numpy(batch.loss_mask_BS).flatten().nonzero()[:, 0].to(device)
        if len(indices_N) == 0:
            return Losses(total=torch.zeros((), device=device), count=0)
        num_rows, row_length = batch.tokens_BS.shape
        context = PackedDocuments(batch.documents, num_rows, row_length, device)
        targets_N = torch.from_numpy(batch.targets_BS).to(device).flatten()[indices_N]
        with parametrize.cached():  # an embedding under quantisation-aware training is rounded once, not for each use
            x_1ND = model.hidden_at(torch.from_numpy(batch.tokens_BS).to(device), context, indices_N)
            total = cross_entropy_sum(x_1ND[0], model.head_weight, targets_N)
        lengths = [span.stop - span.start for span in batch.documents]
        return Losses(total=total, count=len(indices_N), flops=training_flops(model.config, lengths, len(indices_N)))
