"""Agreement with what a teacher has left in a cache: its likeliest tokens, and one bucket for all others (report 4.3).

Shapes: N positions that carry loss, C positions of a chunk, K tokens that the teacher names, D model dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.data.loader import Batch
from openafm.models.decoder import Decoder
from openafm.training.cross_entropy import CHUNK_ELEMENTS
from openafm.training.distillation import Agreement
from openafm.training.objective_config import RoutingLossConfig
from openafm.training.objectives import DEFAULT_ROUTING, Losses, nothing_to_learn, target_states
from openafm.training.teacher_logits import TeacherLogits

LEAST_CHUNK = 256  # positions


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
        total: Tensor = _CachedSum.apply(states.x_ND, weight_VD, told, states.targets_N, self._hard_weight, sums)
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


class _CachedSum(torch.autograd.Function):
    """sum of KL(p || q) over K + 1 buckets, + hard_weight * -log q[target], a chunk of logits at a time.

    The gradient is made on the way. Of the logit of a named token it is (1 + hard_weight) q - p; of any other, with t the
    tail of each, (1 + hard_weight) q - p_t q / q_t; less hard_weight at the target.
    """

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_VD: Tensor, told: Told, targets_N: Tensor, hard_weight: float, sums: Agreement
    ) -> Tensor:
        with_gradient = any(ctx.needs_input_grad)
        cast_VD = weight_VD.to(x_ND.dtype)
        dx_ND, dweight_VD = torch.zeros_like(x_ND), torch.zeros_like(weight_VD)
        chunk = max(LEAST_CHUNK, CHUNK_ELEMENTS // len(weight_VD))
        for start in range(0, len(x_ND), chunk):
            rows = slice(start, start + chunk)
            ids_CK, targets_C1, log_p = told.ids_NK[rows], targets_N[rows, None], told.log_law(rows)
            log_q_CV = F.linear(x_ND[rows], cast_VD).float().log_softmax(-1)
            log_q_CK = log_q_CV.gather(1, ids_CK)
            log_tail_C1 = log_q_CV.scatter(1, ids_CK, -torch.inf).logsumexp(-1, keepdim=True)
            sums.kl += float((log_p.exp() * (log_p - torch.cat([log_q_CK, log_tail_C1], dim=1))).sum())
            sums.cross_entropy -= float(log_q_CV.gather(1, targets_C1).sum())
            sums.num_equal += int((log_q_CV.argmax(1) == ids_CK[:, 0]).sum())
            if with_gradient:
                dlogits_CV = log_q_CV.exp().mul_(1 + hard_weight)
                dlogits_CV -= log_q_CV.add_(log_p[:, -1:] - log_tail_C1).exp_()
                dlogits_CV.scatter_(1, ids_CK, log_q_CK.exp().mul_(1 + hard_weight) - log_p[:, :-1].exp())
                dlogits_CV.scatter_add_(1, targets_C1, dlogits_CV.new_full((), -hard_weight).expand_as(targets_C1))
                dlogits_CV = dlogits_CV.to(x_ND.dtype)
                dx_ND[rows] = dlogits_CV @ cast_VD
                dweight_VD += dlogits_CV.T @ x_ND[rows]
        ctx.save_for_backward(dx_ND, dweight_VD)
        return x_ND.new_tensor(sums.kl + hard_weight * sums.cross_entropy, dtype=torch.float32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dlosses: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        (dloss,) = dlosses
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND.mul_(dloss), dweight_VD.mul_(dloss), None, None, None, None
