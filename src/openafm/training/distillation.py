"""Agreement with a teacher: what a draft model is trained for, since a draft counts only if it is the target's own choice.

The teacher computes in the numerics of its bundle, adapter included, while the student trains; nothing is stored.

Shapes: N positions that carry loss, C positions of a chunk, D and E dims of student and teacher, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.data.loader import Batch
from openafm.models.accounting import training_flops
from openafm.models.attention_context import PackedDocuments
from openafm.models.decoder import Decoder
from openafm.training.cross_entropy import CHUNK_ELEMENTS
from openafm.training.objectives import Losses

LEAST_CHUNK = 256  # positions


class Distillation:
    """KL divergence of the student's law from the teacher's at the positions that carry loss, at temperature 1.

    `hard_weight` times the cross entropy of the data's own tokens is added. Logits beyond the first `num_tokens`, rows that
    the tokenizer does not fill, count for neither. Logs `kl`, `cross_entropy` and `agreement`, the share of positions where
    both think the same token the likeliest: what greedy drafts will be accepted at.
    """

    def __init__(self, teacher: Decoder, hard_weight: float, num_tokens: int | None) -> None:
        self._teacher = teacher.requires_grad_(False)
        self._hard_weight, self._num_tokens = hard_weight, num_tokens

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        device = model.device
        self._teacher.to(device)
        indices_N = torch.from_numpy(batch.loss_mask_BS).flatten().nonzero()[:, 0].to(device)
        if len(indices_N) == 0:
            return Losses(total=torch.zeros((), device=device), count=0)
        tokens_BS = torch.from_numpy(batch.tokens_BS).to(device)
        targets_N = torch.from_numpy(batch.targets_BS).to(device).flatten()[indices_N]

        def hidden(decoder: Decoder) -> Tensor:
            context = PackedDocuments(batch.documents, tokens_BS.shape[0], tokens_BS.shape[1], device)
            return decoder.hidden_at(tokens_BS, context, indices_N)[0]

        with torch.no_grad():
            teacher = Head(hidden(self._teacher), self._teacher.head_weight[: self._num_tokens])
        sums = Agreement(0.0, 0.0, 0)
        total: Tensor = _DistillationSum.apply(
            hidden(model), model.head_weight[: self._num_tokens], teacher, targets_N, self._hard_weight, sums
        )
        lengths = [span.stop - span.start for span in batch.documents]
        flops = training_flops(model.config, lengths, len(indices_N))
        parts = {"kl": sums.kl, "cross_entropy": sums.cross_entropy, "agreement": float(sums.num_equal)}
        return Losses(
            total=total,
            count=len(indices_N),
            parts={name: torch.tensor(value) for name, value in parts.items()},
            flops=flops + training_flops(self._teacher.config, lengths, len(indices_N)) // 3,
        )


@dataclass(frozen=True)
class Head:
    """What logits are made of: they are its product."""

    x_NE: Tensor
    weight_VE: Tensor

    def log_law(self, rows: slice) -> Tensor:
        """log softmax(x W^T) of some rows, in fp32."""
        x_CE = self.x_NE[rows]
        return F.linear(x_CE, self.weight_VE.to(x_CE.dtype)).float().log_softmax(-1)


@dataclass
class Agreement:
    """Sums over positions."""

    kl: float
    cross_entropy: float
    num_equal: int


class _DistillationSum(torch.autograd.Function):
    """sum of KL(p || q) + hard_weight * -log q[target] over positions, a chunk of logits at a time; its gradient is made on
    the way: (1 + hard_weight) q - p - hard_weight onehot(target)."""

    @staticmethod
    def forward(
        ctx: Any, x_ND: Tensor, weight_VD: Tensor, teacher: Head, targets_N: Tensor, hard_weight: float, sums: Agreement
    ) -> Tensor:
        with_gradient = any(ctx.needs_input_grad)
        cast_VD = weight_VD.to(x_ND.dtype)
        dx_ND, dweight_VD = torch.zeros_like(x_ND), torch.zeros_like(weight_VD)
        chunk = max(LEAST_CHUNK, CHUNK_ELEMENTS // len(weight_VD))
        for start in range(0, len(x_ND), chunk):
            rows = slice(start, start + chunk)
            log_p_CV, log_q_CV = teacher.log_law(rows), Head(x_ND[rows], cast_VD).log_law(rows=slice(None))
            targets_C1, p_CV = targets_N[rows, None], log_p_CV.exp()
            sums.kl += float((p_CV * (log_p_CV - log_q_CV)).sum())
            sums.cross_entropy -= float(log_q_CV.gather(1, targets_C1).sum())
            sums.num_equal += int((log_p_CV.argmax(1) == log_q_CV.argmax(1)).sum())
            if with_gradient:
                dlogits_CV = log_q_CV.exp_().mul_(1 + hard_weight).sub_(p_CV)
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
