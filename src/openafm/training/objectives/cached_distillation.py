"""Agreement with what a teacher has left in a cache: its likeliest tokens, and one bucket for all others (report 4.3).

Shapes: N positions that carry loss, C positions of a chunk, K tokens that the teacher names, D model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from openafm.data.batch import Batch
from openafm.models.decoder import Decoder
from openafm.training.objectives.base import DEFAULT_ROUTING, Losses, nothing_to_learn, target_states
from openafm.training.objectives.config import RoutingLossConfig
from openafm.training.objectives.distillation import Agreement, DistillationSum
from openafm.training.objectives.teacher_logits import TeacherLogits


class CachedDistillation:
    """KL divergence of the student's law from the teacher's, over the tokens that the teacher names and all others as one.

    `hard_weight` times the cross entropy of the data's own tokens is added. Logits of rows that the tokenizer does not fill
    count for neither. Logs `kl`, `cross_entropy` and `agreement`, the share of positions where both think the same token the
    likeliest.
    """

    def __init__(self, cache: TeacherLogits, hard_weight: float, routing: RoutingLossConfig = DEFAULT_ROUTING) -> None:
        self._cache, self._hard_weight, self._routing = cache, hard_weight, routing

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        if batch.num_targets == 0:
            return nothing_to_learn(model)
        rows_N = self._cache.rows(batch)
        told = Told(
            log_p_NK=torch.from_numpy(rows_N["log_p"].astype("f4")).to(model.device),
            log_tail_N=torch.from_numpy(rows_N["log_tail"].astype("f4")).to(model.device),
            ids_NK=torch.from_numpy(rows_N["ids"].astype("i8")).to(model.device),
        )
        states = target_states(model, batch, self._routing)
        weight_VD = states.head_weight_VD[: self._cache.manifest.key.num_tokens]
        sums = Agreement(0.0, 0.0, 0)
        total: Tensor = DistillationSum.apply(states.x_ND, weight_VD, told, states.targets_N, self._hard_weight, sums)
        return states.losses(total, sums.parts)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the teacher said at some positions: tokens, their log probabilities, and that of all others."""

    log_p_NK: Tensor
    log_tail_N: Tensor
    ids_NK: Tensor

    def log_law(self, rows: slice) -> Tensor:
        """Log probabilities of the named tokens and, last, of the others, [C, K + 1]; rounded numbers add up to 1 again."""
        return torch.cat([self.log_p_NK[rows], self.log_tail_N[rows, None]], dim=1).log_softmax(-1)

    def compare(self, rows: slice, log_q_CV: Tensor, hard_weight: float, sums: Agreement) -> Callable[[], Tensor]:
        """As in `TeacherLaw`, over K + 1 buckets.

        The gradient to the logit of a named token is (1 + hard_weight) q - p; to any other, with t the tail of each,
        (1 + hard_weight) q - p_t q / q_t.
        """
        ids_CK, log_p = self.ids_NK[rows], self.log_law(rows)
        log_q_CK = log_q_CV.gather(1, ids_CK)
        log_tail_C1 = log_q_CV.scatter(1, ids_CK, -torch.inf).logsumexp(-1, keepdim=True)
        sums.kl += float((log_p.exp() * (log_p - torch.cat([log_q_CK, log_tail_C1], dim=1))).sum())
        sums.num_equal += int((log_q_CV.argmax(1) == ids_CK[:, 0]).sum())

        def gradient() -> Tensor:
            dlogits_CV = log_q_CV.exp().mul_(1 + hard_weight)
            dlogits_CV -= log_q_CV.add_(log_p[:, -1:] - log_tail_C1).exp_()
            return dlogits_CV.scatter_(1, ids_CK, log_q_CK.exp().mul_(1 + hard_weight) - log_p[:, :-1].exp())

        return gradient
