"""The loop that trains both rankers: Adam, lazy for the table, whose gradients are sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from openafm.core.config import Config


@dataclass(frozen=True, kw_only=True)
class TableTrainingConfig(Config):
    """Base of the configs of training. The learning rate of the table decays linearly to 0; that of the rest is constant."""

    num_buckets: int
    dim: int
    num_steps: int
    learning_rate: float
    dense_learning_rate: float = 0.003
    warmup_steps: int = 100
    seed: int = 0


def optimize(
    config: TableTrainingConfig,
    table: Tensor,
    dense: Iterable[nn.Parameter],
    next_loss: Callable[[], Tensor],
    on_step: Callable[[int, float], None],
) -> None:
    """Train for `config.num_steps` steps. `on_step` gets the number of each, from 1, and its loss."""
    sparse = torch.optim.SparseAdam([table], lr=config.learning_rate)
    adam = torch.optim.Adam(dense, lr=config.dense_learning_rate)
    for number in range(1, config.num_steps + 1):
        decay = 1 - (number - 1) / config.num_steps
        sparse.param_groups[0]["lr"] = config.learning_rate * min(1.0, number / config.warmup_steps) * decay
        loss = next_loss()
        sparse.zero_grad()
        adam.zero_grad()
        torch.autograd.backward(loss)
        sparse.step()  # type: ignore[no-untyped-call]  # torch declares no types for it
        adam.step()
        on_step(number, loss.item())
