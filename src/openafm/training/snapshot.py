"""A copy of the training state between two steps: what checkpoints store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainingSnapshot:
    """A copy of the state on the host.

    `tensors` are grouped: model, optimizer, random and, if the run averages its weights, ema. With several processes they
    are DTensors that hold this process's part.
    """

    step: int
    num_steps: int
    num_tokens: int
    seconds: float
    tensors: Mapping[str, Tensors]
