"""The optimizers of training, as data. Imports torch inside of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.core.config import Config

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config, ABC):
    """Base of the optimizers. Weight decay applies to matrices only, not to norms and biases.

    `gradient_clip` bounds the norm of the whole gradient; None does not clip.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    gradient_clip: float | None = 1.0

    def __post_init__(self) -> None:
        self.require(self.learning_rate > 0, f"learning_rate must be above 0, got {self.learning_rate}")
        self.require(self.weight_decay >= 0, f"weight_decay must not be negative, got {self.weight_decay}")
        self.require(
            self.gradient_clip is None or self.gradient_clip > 0, f"gradient_clip must be above 0, got {self.gradient_clip}"
        )

    @abstractmethod
    def build(self, parameters: Mapping[str, Parameter]) -> tuple[Optimizer, ...]:
        """Return optimizers that together train all parameters. Schedules scale each group's `initial_lr`."""

    def state_numbers(self, weights: int, matrices: int) -> int:
        """Return how many fp32 numbers the state of `weights` parameters holds, `matrices` of them in matrices of layers.

        Plans use it; the default is the two moments of Adam-like optimizers.
        """
        return 2 * weights


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    """AdamW (arXiv 1711.05101)."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(all(0 <= beta < 1 for beta in self.betas), f"betas must lie in [0, 1), got {self.betas}")

    def build(self, parameters: Mapping[str, Parameter]) -> tuple[Optimizer, ...]:
        from openafm.training.optimizers import adamw

        return (adamw(self, parameters),)


@dataclass(frozen=True, kw_only=True)
class MuonConfig(OptimizerConfig):
    """Muon (Jordan et al. 2024) for the matrices of the layers; AdamW for embedding, head, experts, norms and biases.

    The updates of a matrix are orthogonalized momentum; with parallel tracks each track's matrix by itself. At the same
    learning rate they are as large as AdamW's (arXiv 2502.16982).
    """

    momentum: float = 0.95
    adamw: AdamWConfig = AdamWConfig(weight_decay=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")

    def build(self, parameters: Mapping[str, Parameter]) -> tuple[Optimizer, ...]:
        from openafm.training.optimizers import muon

        return muon(self, parameters)

    def state_numbers(self, weights: int, matrices: int) -> int:
        return 2 * weights - matrices  # Muon keeps one momentum per matrix
