"""Feed-forward layers as data. Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openafm.core.config import Config
from openafm.models.activations import ActivationBytes

if TYPE_CHECKING:
    from openafm.models.layers import Sublayer


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config, ABC):
    """Base of the feed-forward kinds.

    The accounting methods count one track; a multiply-add is two operations. The defaults hold for dense layers, all of
    whose weights are matrices that every token passes.
    """

    @abstractmethod
    def build(self, dim: int) -> Sublayer:
        """Return the module; its forward takes x_BSD."""

    def num_parameters(self, dim: int) -> int:
        """Return the number of weights. The default counts the built module without allocating it, which imports torch."""
        from openafm.models.layers import count_parameters

        return count_parameters(lambda: self.build(dim))

    def matrix_parameters(self, dim: int) -> int:
        """Return the number of weights in matrices of two dims; experts are stacks of three."""
        return self.num_parameters(dim) - self.expert_parameters(dim)

    def expert_parameters(self, dim: int) -> int:
        """Return the number of weights in experts, which expert parallelism divides over processes."""
        return 0

    def fp32_parameters(self, dim: int) -> int:
        """Return the number of weights that compute in fp32 whatever the precision, such as a router's."""
        return 0

    def idle_parameters(self, dim: int) -> int:
        """Return the number of weights that one token does not pass, such as those of experts that are not chosen."""
        return 0

    def linear_flops(self, dim: int) -> int:
        """Return the floating-point operations of one token."""
        return 2 * (self.num_parameters(dim) - self.idle_parameters(dim))

    def activation_bytes(self, dim: int, number_bytes: int) -> ActivationBytes:
        """Return the bytes of activations per position in a precision of `number_bytes`.

        The default is an estimate: the input, and one number for each row of each weight matrix.
        """
        rows = self.matrix_parameters(dim) // dim
        return ActivationBytes(saved=number_bytes * (dim + rows), working=number_bytes * (dim + rows))


@dataclass(frozen=True, kw_only=True)
class DenseFeedForwardConfig(FeedForwardConfig):
    """Gated feed-forward: out(activation(gate(x)) * up(x)); SwiGLU with the default activation (arXiv 2002.05202)."""

    hidden_dim: int
    activation: Literal["silu", "gelu"] = "silu"
    bias: bool = False

    def __post_init__(self) -> None:
        self.require(self.hidden_dim > 0, f"hidden_dim must be positive, got {self.hidden_dim}")

    def build(self, dim: int) -> Sublayer:
        from openafm.models.feed_forward.gated import FeedForward

        return FeedForward(self, dim)

    def num_parameters(self, dim: int) -> int:
        return self.matrix_parameters(dim) + self.bias * (2 * self.hidden_dim + dim)

    def matrix_parameters(self, dim: int) -> int:
        return 3 * dim * self.hidden_dim

    def linear_flops(self, dim: int) -> int:
        return 2 * self.matrix_parameters(dim)

    def activation_bytes(self, dim: int, number_bytes: int) -> ActivationBytes:
        # Saved: the input, gate, up, the activation of the gate, and their product.
        return ActivationBytes(
            saved=number_bytes * (dim + 4 * self.hidden_dim), working=number_bytes * (2 * self.hidden_dim + dim)
        )
