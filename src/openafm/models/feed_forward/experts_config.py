"""Mixture-of-experts feed-forward as data (report 2.2, 4.3). Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openafm.core.config import Config
from openafm.models.activations import INDEX_BYTES, MASTER_BYTES, ActivationBytes
from openafm.models.feed_forward.config import FeedForwardConfig

if TYPE_CHECKING:
    from openafm.models.feed_forward.experts import Router
    from openafm.models.layers import Sublayer

ALIGNMENT = 8  # grouped products need rows of weights that start at multiples of 16 bytes: eight numbers of 16 bits


@dataclass(frozen=True, kw_only=True)
class RouterConfig(Config, ABC):
    """Base of the routers, which choose `num_chosen` experts for each token."""

    num_chosen: int = 2

    def __post_init__(self) -> None:
        self.require(self.num_chosen > 0, f"num_chosen must be at least 1, got {self.num_chosen}")

    @property
    def learns_from_loss(self) -> bool:
        """Return True if the loss has a gradient with respect to the router's logits; otherwise training refuses it."""
        return True

    @property
    def num_saved_logits(self) -> int:
        """Return how many fp32 numbers of a token and expert the backward pass needs: logits and probabilities."""
        return 2

    @abstractmethod
    def build(self, dim: int, num_experts: int) -> Router:
        """Return the router of a layer."""


@dataclass(frozen=True, kw_only=True)
class TopKRouterConfig(RouterConfig):
    """Choose the experts with the highest logits, weighted by the softmax over the chosen logits.

    Equal to a softmax over all experts, renormalized over the chosen ones. Logits are computed in fp32 and, with a
    `soft_cap`, bounded by soft_cap * tanh(logit / soft_cap) first.
    """

    soft_cap: float | None = 50.0

    @property
    def learns_from_loss(self) -> bool:
        return self.num_chosen > 1  # a softmax over one logit is 1

    @property
    def num_saved_logits(self) -> int:
        return 2 if self.soft_cap is None else 3  # tanh keeps its result

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.soft_cap is None or self.soft_cap > 0, f"soft_cap must be above 0, got {self.soft_cap}")

    def build(self, dim: int, num_experts: int) -> Router:
        from openafm.models.feed_forward.experts import TopKRouter

        return TopKRouter(self, dim, num_experts)


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(FeedForwardConfig):
    """Gated feed-forwards of which a token passes those that the router chooses, without a capacity limit (dropless).

    In a model with tracks, each track has its own router and its own `num_experts` experts.
    """

    num_experts: int
    hidden_dim: int
    router: RouterConfig = TopKRouterConfig()
    activation: Literal["silu", "gelu"] = "silu"

    def __post_init__(self) -> None:
        self.require(
            self.num_experts >= self.router.num_chosen,
            f"{self.num_experts} experts are fewer than the {self.router.num_chosen} that the router chooses",
        )
        self.require(
            self.hidden_dim > 0 and self.hidden_dim % ALIGNMENT == 0,
            f"hidden_dim must be a multiple of {ALIGNMENT}, which grouped products need, got {self.hidden_dim}",
        )

    def build(self, dim: int) -> Sublayer:
        self.require(dim % ALIGNMENT == 0, f"the model's dim must be a multiple of {ALIGNMENT} for experts, got {dim}")
        from openafm.models.feed_forward.experts import Experts

        return Experts(self, dim)

    def num_parameters(self, dim: int) -> int:
        return self.matrix_parameters(dim) + self.expert_parameters(dim)

    def matrix_parameters(self, dim: int) -> int:
        return self.num_experts * dim  # of the router

    def expert_parameters(self, dim: int) -> int:
        return 3 * dim * self.hidden_dim * self.num_experts

    def fp32_parameters(self, dim: int) -> int:
        return self.num_experts * dim

    def idle_parameters(self, dim: int) -> int:
        return 3 * dim * self.hidden_dim * (self.num_experts - self.router.num_chosen)

    def activation_bytes(self, dim: int, number_bytes: int) -> ActivationBytes:
        hidden, chosen = self.hidden_dim, self.router.num_chosen
        # The router's input, logits, probabilities and log-sum-exp, for the choice and for the routing losses.
        logits = self.router.num_saved_logits * self.num_experts
        routed = MASTER_BYTES * (dim + logits + 2) + chosen * (3 * INDEX_BYTES + MASTER_BYTES + number_bytes)
        # The sorted input, the inside as in a dense feed-forward, the output before and after weighting.
        rows = chosen * number_bytes * (3 * dim + 4 * hidden)
        return ActivationBytes(saved=routed + rows, working=number_bytes * (dim + chosen * max(2 * dim, 2 * hidden - dim)))
