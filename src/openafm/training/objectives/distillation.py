"""Online distillation from a teacher's full distribution; the objective of draft models.

The teacher runs during training, in the numerics of its bundle and with its adapter; nothing is stored.

Shapes: N positions that carry loss, C positions of a chunk, D and E dims of student and teacher, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from openafm.data.loading.batch import Batch
from openafm.models.decoder import Decoder
from openafm.training.device import sum_dtype
from openafm.training.objectives.base import DEFAULT_ROUTING, Losses, target_states, zero_losses
from openafm.training.objectives.config import RoutingLossConfig
from openafm.training.objectives.cross_entropy import CHUNK_ELEMENTS

MIN_CHUNK = 256
"""Fewest positions of a chunk."""


class Distillation:
    """KL divergence from the teacher's distribution at the positions that carry loss, at temperature 1.

    `hard_weight` times the cross entropy of the data is added. Logits beyond the first `num_tokens`, those of unused
    vocabulary rows, are excluded from both. Logs `kl`, `cross_entropy` and `agreement`, the share of positions with equal
    argmax, which is the acceptance of greedy drafts.
    """

    def __init__(
        self,
        teacher: Decoder,
        hard_weight: float,
        num_tokens: int | None,
        routing: RoutingLossConfig = DEFAULT_ROUTING,
    ) -> None:
        self._teacher = teacher.requires_grad_(False)
        self._hard_weight, self._num_tokens, self._routing = hard_weight, num_tokens, routing

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        if batch.num_targets == 0:
            return zero_losses(model)
        self._teacher.to(model.device)
        with torch.no_grad():
            taught = target_states(self._teacher, batch, self._routing)
        teacher = FullDistribution(taught.x_ND, taught.head_weight_VD[: self._num_tokens])
        states = target_states(model, batch, self._routing)
        sums = DistillationSums(states.x_ND.device)
        total: Tensor = DistillationLoss.apply(
            states.x_ND, states.head_weight_VD[: self._num_tokens], teacher, states.targets_N, self._hard_weight, sums
        )
        return states.losses(total, sums.parts, teacher_flops=taught.flops // 3)


class TeacherDistribution(Protocol):
    """A teacher's distribution over the next token at the positions that carry loss."""

    def compare(self, rows: slice, log_q_CV: Tensor, hard_weight: float, sums: DistillationSums) -> Callable[[], Tensor]:
        """Add the KL divergence of the student's log probabilities and the number of equal argmaxes to `sums`.

        Return a function that computes the gradient [C, V] to the student's logits: that of the divergence plus
        `hard_weight` times the cross entropy's without the term of the target. It may overwrite `log_q_CV`.
        """


@dataclass(frozen=True)
class FullDistribution:
    """The distribution over the whole vocabulary, as the input of the head and the head's weight."""

    x_NE: Tensor
    weight_VE: Tensor

    def compare(self, rows: slice, log_q_CV: Tensor, hard_weight: float, sums: DistillationSums) -> Callable[[], Tensor]:
        """As `TeacherDistribution.compare`, over the whole vocabulary; the gradient is (1 + hard_weight) q - p."""
        x_CE = self.x_NE[rows]
        log_p_CV = F.linear(x_CE, self.weight_VE.to(x_CE.dtype)).float().log_softmax(-1)
        p_CV = log_p_CV.exp()
        sums.add_divergence((p_CV * (log_p_CV - log_q_CV)).sum())
        sums.num_equal += (log_p_CV.argmax(1) == log_q_CV.argmax(1)).sum()
        return lambda: log_q_CV.exp_().mul_(1 + hard_weight).sub_(p_CV)


class DistillationSums:
    """Sums over positions, to be logged. They stay on the device: reading one would make the host wait in every chunk."""

    def __init__(self, device: torch.device) -> None:
        self.kl, self.cross_entropy = (torch.zeros((), dtype=sum_dtype(device), device=device) for _ in range(2))
        self.num_equal = torch.zeros((), dtype=torch.long, device=device)

    def add_divergence(self, kl: Tensor) -> None:
        self.kl += kl.to(self.kl.dtype)

    def add_cross_entropy(self, cross_entropy: Tensor) -> None:
        self.cross_entropy += cross_entropy.to(self.cross_entropy.dtype)

    @property
    def parts(self) -> dict[str, Tensor]:
        """Return the sums by name."""
        values = {"kl": self.kl, "cross_entropy": self.cross_entropy, "agreement": self.num_equal}
        return {name: value.float() for name, value in values.items()}


class DistillationLoss(torch.autograd.Function):
    """Sum of KL(p || q) + hard_weight * -log q[target] over positions, in chunks of logits.

    The gradient is computed in the forward pass: that of `TeacherDistribution.compare`, less hard_weight at the target.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        teacher: TeacherDistribution,
        targets_N: Tensor,
        hard_weight: float,
        sums: DistillationSums,
    ) -> Tensor:
        with_gradient = any(ctx.needs_input_grad)
        cast_VD = weight_VD.to(x_ND.dtype)
        dx_ND, dweight_VD = torch.zeros_like(x_ND), torch.zeros_like(weight_VD)
        chunk = max(MIN_CHUNK, CHUNK_ELEMENTS // len(weight_VD))
        for start in range(0, len(x_ND), chunk):
            rows = slice(start, start + chunk)
            targets_C1 = targets_N[rows, None]
            log_q_CV = F.linear(x_ND[rows], cast_VD).float().log_softmax(-1)
            gradient = teacher.compare(rows, log_q_CV, hard_weight, sums)
            sums.add_cross_entropy(-log_q_CV.gather(1, targets_C1).sum())
            if with_gradient:
                dlogits_CV = gradient()
                dlogits_CV.scatter_add_(1, targets_C1, dlogits_CV.new_full((), -hard_weight).expand_as(targets_C1))
                dlogits_CV = dlogits_CV.to(x_ND.dtype)
                dx_ND[rows] = dlogits_CV @ cast_VD
                dweight_VD += dlogits_CV.T @ x_ND[rows]
        ctx.save_for_backward(dx_ND, dweight_VD)
        return (sums.kl + hard_weight * sums.cross_entropy).float()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *dlosses: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        (dloss,) = dlosses
        dx_ND, dweight_VD = ctx.saved_tensors
        return dx_ND.mul_(dloss), dweight_VD.mul_(dloss), None, None, None, None
