"""Objectives: functions of a model and a batch that return losses.

Shapes: B rows, S tokens of a row, N positions that carry loss, D model dim, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from openafm.data.loading.batch import Batch
from openafm.models.accounting import training_flops
from openafm.models.attention.branched_documents import BranchedDocuments
from openafm.models.attention.context import BatchContext, PackedDocuments
from openafm.models.attention.row_parts import RowPartContext
from openafm.models.attention.spans import branches_of
from openafm.models.config import DecoderConfig
from openafm.models.decoder import Decoder
from openafm.models.feed_forward.experts import observed_routing
from openafm.models.transfer import to_device
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.training.objectives.config import RoutingLossConfig
from openafm.training.objectives.cross_entropy import cross_entropy_sum
from openafm.training.objectives.routing import RoutingLosses, routing_losses
from openafm.training.objectives.vocabulary_parallel import divided_cross_entropy_sum


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over `count` items (tokens, pairs, ...) of a batch; the trainer divides by the items of the whole step.

    `total` is the differentiable fp32 scalar to minimize. `parts` are further sums to log by name, detached. `flops` counts
    the floating-point operations of forward and backward. `expert_tokens` counts, by layer, the tokens routed to each expert
    of each track, [T, E].
    """

    total: Tensor
    count: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    flops: int = 0
    expert_tokens: Mapping[int, Tensor] = field(default_factory=dict)


DEFAULT_ROUTING = RoutingLossConfig()

Objective = Callable[[Decoder, Batch], Losses]


class ScheduledObjective(ABC):
    """Base of objectives that change during a run. Before a step the trainer sets `progress` to the share of steps done."""

    progress: float = 0.0

    @abstractmethod
    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        """Return the losses of a batch."""


@dataclass(frozen=True, kw_only=True)
class TargetStates:
    """The hidden states at the positions of a batch that carry loss.

    `x_ND` is the input of the head, `head_weight_VD` its weight. `indices_N` are positions in the flattened batch,
    `targets_N` the tokens that follow. `flops` counts forward and backward. The losses of a silent part of rows are zeros.
    """

    x_ND: Tensor
    head_weight_VD: Tensor
    indices_N: Tensor
    targets_N: Tensor
    routing: RoutingLosses
    flops: int
    is_silent: bool = False

    def losses(self, total: Tensor, parts: Mapping[str, Tensor], teacher_flops: int = 0) -> Losses:
        """Return the losses of these positions plus the auxiliary losses of the routing."""
        if self.is_silent:
            total, parts = total * 0, {name: part * 0 for name, part in parts.items()}
        return Losses(
            total=total + self.routing.total,
            count=0 if self.is_silent else len(self.indices_N),
            parts={**parts, **self.routing.parts},
            flops=self.flops + teacher_flops,
            expert_tokens=self.routing.tokens_TE,
        )


def target_states(model: Decoder, batch: Batch, routing: RoutingLossConfig) -> TargetStates:
    """Return the hidden states of a batch; documents do not attend to each other.

    The layers that store no keys and values, and the head, run only for positions that carry loss. This is exact because no
    other position reads their outputs (the prefill bypass of report 2.1, in training).
    """
    device = model.device
    indices_N = target_indices(batch)
    device_indices_N = to_device(indices_N, device)
    images = {key: torch.tensor(views) for key, views in batch.images.items()}
    context = _context(model, batch, device)
    # Cached so that quantization-aware training rounds the embedding once, not at each use.
    with observed_routing(model) as seen, parametrize.cached():
        inserted = model.embed_images(batch.embedding_spans, images)
        x_1ND = model.hidden_at(to_device(batch.tokens_BS, device), context, indices_N, inserted)
        head_weight_VD = model.head_weight
    return TargetStates(
        x_ND=x_1ND[0],
        head_weight_VD=head_weight_VD,
        indices_N=device_indices_N,
        targets_N=to_device(batch.targets_BS[batch.loss_mask_BS], device),
        routing=routing_losses(
            routing, model.config, seen, batch, device_indices_N, model.sum_over_tracks, _sum_over_parts(model)
        ),
        flops=_batch_flops(model.config, batch),
        is_silent=batch.row_part is not None and batch.row_part.is_silent,
    )


def _context(model: Decoder, batch: Batch, device: torch.device) -> BatchContext:
    num_rows, row_length = batch.tokens_BS.shape
    if batch.branches:
        return BranchedDocuments(batch.documents, batch.branches, num_rows, row_length, device, spans=batch.embedding_spans)
    part, exchange = batch.row_part, model.key_value_exchange
    if part is None or exchange is None:
        return PackedDocuments(batch.documents, num_rows, row_length, device, spans=batch.embedding_spans)
    return RowPartContext(part.documents, num_rows, part.row_tokens, part.ranges, exchange, device)


def _sum_over_parts(model: Decoder) -> Callable[[Tensor], Tensor]:
    return (lambda x: x) if model.key_value_exchange is None else model.key_value_exchange.sum


def _batch_flops(config: DecoderConfig, batch: Batch) -> int:
    """Return the operations of forward and backward pass; for a part of rows its share of the whole rows'."""
    part = batch.row_part
    documents = batch.documents if part is None else part.documents
    num_targets, count = (batch.num_targets, 1) if part is None else (int(part.targets_B.sum()), part.count)
    lengths, repeated = list[int](), list[int]()
    for document, own in zip(documents, branches_of(documents, batch.branches), strict=True):
        shared = own[0].start - document.start if own else 0
        lengths += [shared + branch.stop - branch.start for branch in own or [document]]
        repeated += [shared] * (len(own) - 1)
    return training_flops(config, lengths, num_targets, repeated) // count + image_flops(config, batch)


def image_flops(config: DecoderConfig, batch: Batch) -> int:
    """Return the operations of forward and backward pass from the batch's images to their tokens."""
    if not isinstance(config, MultimodalConfig):
        return 0
    views = ((len(views), views.shape[1], key.num_tokens // len(views)) for key, views in batch.images.items())
    return round(3 * sum(count * config.view_flops(side, num_tokens) for count, side, num_tokens in views))


def target_indices(batch: Batch) -> Tensor:
    """Return the positions of the flattened batch that carry loss, on the host."""
    return torch.from_numpy(np.flatnonzero(batch.loss_mask_BS))


def zero_losses(model: Decoder) -> Losses:
    """Return the losses of a batch without a position that carries loss."""
    return Losses(total=torch.zeros((), device=model.device), count=0)


class NextToken:
    """Cross entropy of the next token plus the auxiliary losses of the routing."""

    def __init__(self, routing: RoutingLossConfig = DEFAULT_ROUTING) -> None:
        self._routing = routing

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        if batch.num_targets == 0:
            return zero_losses(model)
        states = target_states(model, batch, self._routing)
        inputs, group = (states.x_ND, states.head_weight_VD, states.targets_N), model.vocabulary_group
        cross_entropy = cross_entropy_sum(*inputs) if group is None else divided_cross_entropy_sum(*inputs, group)
        return states.losses(cross_entropy, {"cross_entropy": cross_entropy.detach()} if states.routing.parts else {})
