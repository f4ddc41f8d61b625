"""Sparse upcycling of a dense decoder, as data (report 4.3). Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.models.config import DecoderConfig, DenseFeedForwardConfig, LayerConfig
from openafm.models.experts_config import ExpertsConfig, RouterConfig, TopKRouterConfig

if TYPE_CHECKING:
    import torch

    from openafm.models.experts import Experts


class UpcyclingError(UsageError):
    """A model that cannot be upcycled: experts take the place of dense feed-forwards without biases."""


@dataclass(frozen=True, kw_only=True)
class ExpertStartConfig(Config, ABC):
    """Base of what experts are, beside copies of the dense feed-forward, before the first step."""

    @abstractmethod
    def apply(self, experts: Experts, generator: torch.Generator) -> None:
        """Change the copies in place."""


@dataclass(frozen=True, kw_only=True)
class CopiedExperts(ExpertStartConfig):
    """Exact copies (arXiv 2212.05055): the upcycled model computes what the dense one does."""

    def apply(self, experts: Experts, generator: torch.Generator) -> None:
        """Nothing to change."""


@dataclass(frozen=True, kw_only=True)
class PartlyFreshExperts(ExpertStartConfig):
    """Each expert forgets a `share` of its hidden units, others than its neighbors do (Drop-Upcycling, arXiv 2502.19261).

    Experts that are all the same drift apart slowly. The fresh weights have the mean and standard deviation of those that
    they replace; the upcycled model is no longer the dense one at the start.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        self.require(0 < self.share <= 1, f"share must lie in (0, 1], got {self.share}")

    def apply(self, experts: Experts, generator: torch.Generator) -> None:
        from openafm.models.upcycling import forget_units

        forget_units(experts, self.share, generator)


@dataclass(frozen=True, kw_only=True)
class UpcyclingConfig(Config):
    """Every second layer's feed-forward becomes `num_experts` of its kind behind a new router."""

    num_experts: int = 64
    router: RouterConfig = field(default_factory=TopKRouterConfig)
    experts: ExpertStartConfig = CopiedExperts()


def upcycled_config(dense: DecoderConfig, upcycling: UpcyclingConfig) -> DecoderConfig:
    """The config of `dense` upcycled: layers 1, 3, 5, ... have experts, all else is as it was.

    Raises:
        UpcyclingError: one of these layers has no dense feed-forward, or one with biases.
        ConfigError: fewer experts than the router chooses, or a hidden dim that grouped products cannot take.
    """
    layers = (_with_experts(layer, index, upcycling) if index % 2 else layer for index, layer in enumerate(dense.layers))
    return replace(dense, layers=tuple(layers))


def _with_experts(layer: LayerConfig, index: int, upcycling: UpcyclingConfig) -> LayerConfig:
    feed_forward = layer.feed_forward
    if not isinstance(feed_forward, DenseFeedForwardConfig):
        raise UpcyclingError(
            f"layer {index} has a {type(feed_forward).__name__}, only dense feed-forwards are upcycled; start from a dense"
            " model"
        )
    if feed_forward.bias:
        raise UpcyclingError(
            f"layer {index} has biases in its feed-forward, which experts have not; start from another model"
        )
    experts = ExpertsConfig(
        num_experts=upcycling.num_experts,
        hidden_dim=feed_forward.hidden_dim,
        router=upcycling.router,
        activation=feed_forward.activation,
    )
    return replace(layer, feed_forward=experts)
