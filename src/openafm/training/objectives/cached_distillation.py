"""Distillation from cached logits: the teacher's likeliest tokens and one bucket for all others (report 4.3).

Shapes: N positions that carry loss, C positions of a chunk, K tokens in the cache, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openafm.data.loading.batch import Batch
from openafm.models.decoder import Decoder
from openafm.models.transfer import to_device
from openafm.training.objectives.base import DEFAULT_ROUTING, Losses, target_states, zero_losses
from openafm.training.objectives.config import RoutingLossConfig
from openafm.training.objectives.distillation import DistillationLoss, DistillationSums
from openafm.training.objectives.teacher_logits import TeacherLogits


class CachedDistillation:
    """KL divergence from the teacher's distribution over the cached tokens and the bucket of all others.

    `hard_weight` times the cross entropy of the data is added. Logits of unused vocabulary rows are excluded from both. Logs
    `kl`, `cross_entropy` and `agreement`, the share of positions with equal argmax.
    """

    def __init__(self, cache: TeacherLogits, hard_weight: float, routing: RoutingLossConfig = DEFAULT_ROUTING) -> None:
        self._cache, self._hard_weight, self._routing = cache, hard_weight, routing

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        if batch.num_targets == 0:
            return zero_losses(model)
        rows_N = self._cache.rows(batch)
        teacher = TopTokens(
            log_p_NK=to_device(rows_N["log_p"].astype("f4"), model.device),
            log_tail_N=to_device(rows_N["log_tail"].astype("f4"), model.device),
            ids_NK=to_device(rows_N["ids"].astype("i8"), model.device),
        )
        states = target_states(model, batch, self._routing)
        weight_VD = states.head_weight_VD[: self._cache.manifest.key.num_tokens]
        sums = DistillationSums(states.x_ND.device)
        total: Tensor = DistillationLoss.apply(states.x_ND, weight_VD, teacher, states.targets_N, self._hard_weight, sums)
        return states.losses(total, sums.parts)


@dataclass(frozen=True, kw_only=True)
class TopTokens:
    """A teacher's likeliest tokens at some positions, their log probabilities, and that of all others together."""

    log_p_NK: Tensor
    log_tail_N: Tensor
    ids_NK: Tensor

    def log_probabilities(self, rows: slice) -> Tensor:
        """Return the log probabilities of the tokens and, last, of the others, [C, K + 1], renormalized after rounding."""
        return torch.cat([self.log_p_NK[rows], self.log_tail_N[rows, None]], dim=1).log_softmax(-1)

    def compare(self, rows: slice, log_q_CV: Tensor, hard_weight: float, sums: DistillationSums) -> Callable[[], Tensor]:
        """As `TeacherDistribution.compare`, over K + 1 buckets.

        The gradient of the logit of a cached token is (1 + hard_weight) q - p; of any other token, with t the tail of each
        distribution, (1 + hard_weight) q - p_t q / q_t.
        """
        ids_CK, log_p = self.ids_NK[rows], self.log_probabilities(rows)
        log_q_CK = log_q_CV.gather(1, ids_CK)
        log_tail_C1 = log_q_CV.scatter(1, ids_CK, -torch.inf).logsumexp(-1, keepdim=True)
        sums.add_divergence((log_p.exp() * (log_p - torch.cat([log_q_CK, log_tail_C1], dim=1))).sum())
        sums.num_equal += (log_q_CV.argmax(1) == ids_CK[:, 0]).sum()

        def gradient() -> Tensor:
            dlogits_CV = log_q_CV.exp().mul_(1 + hard_weight)
            dlogits_CV -= log_q_CV.add_(log_p[:, -1:] - log_tail_C1).exp_()
            return dlogits_CV.scatter_(1, ids_CK, log_q_CK.exp().mul_(1 + hard_weight) - log_p[:, :-1].exp())

        return gradient
