"""Sparse upcycling of a dense decoder, as data (report 4.3). Imports no tensor library."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from openafm.core.config import Config
from openafm.core.errors import UsageError
from openafm.models.config import DecoderConfig, DenseFeedForwardConfig, LayerConfig
from openafm.models.feed_forward.experts_config import ExpertsConfig, RouterConfig, TopKRouterConfig

if TYPE_CHECKING:
    import torch

    from openafm.models.feed_forward.experts import Experts


class UpcyclingError(UsageError):
    """The model cannot be upcycled: experts replace dense feed-forwards without biases."""


@dataclass(frozen=True, kw_only=True)
class ExpertStartConfig(Config, ABC):
    """Base of the initial changes to the experts, which are copies of the dense feed-forward."""

    @abstractmethod
    def apply(self, experts: Experts, generator: torch.Generator) -> None:
        """Change the copies in place."""


@dataclass(frozen=True, kw_only=True)
class CopiedExperts(ExpertStartConfig):
    """Keep exact copies (arXiv 2212.05055): the upcycled model has the outputs of the dense one."""

    def apply(self, experts: Experts, generator: torch.Generator) -> None:
        """Change nothing."""


@dataclass(frozen=True, kw_only=True)
class PartlyFreshExperts(ExpertStartConfig):
    """Redraw a `share` of the hidden units of each expert, independently per expert (Drop-Upcycling, arXiv 2502.19261).

    Identical experts diverge slowly. The new weights have the mean and standard deviation of the old ones. The outputs of
    the upcycled model differ from those of the dense one.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        self.require(0 < self.share <= 1, f"share must lie in (0, 1], got {self.share}")

    def apply(self, experts: Experts, generator: torch.Generator) -> None:
        from openafm.models.initialization.upcycling import redraw_units

        redraw_units(experts, self.share, generator)


@dataclass(frozen=True, kw_only=True)
class UpcyclingConfig(Config):
    """Replace the feed-forward of every second layer by `num_experts` copies and a new router."""

    num_experts: int = 64
    router: RouterConfig = field(default_factory=TopKRouterConfig)
    experts: ExpertStartConfig = CopiedExperts()


def upcycled_config(dense: DecoderConfig, upcycling: UpcyclingConfig) -> DecoderConfig:
    """Return the config of `dense` with experts in layers 1, 3, 5, ...

    Raises:
        UpcyclingError: one of these layers has no dense feed-forward, or one with biases.
        ConfigError: fewer experts than the router chooses, or a hidden dim that grouped products do not support.
    """
    layers = (_with_experts(layer, index, upcycling) if index % 2 else layer for index, layer in enumerate(dense.layers))
    return replace(dense, layers=tuple(layers))


def _with_experts(layer: LayerConfig, index: int, upcycling: UpcyclingConfig) -> LayerConfig:
    feed_forward = layer.feed_forward
    if not isinstance(feed_forward, DenseFeedForwardConfig):
        raise UpcyclingError(
            f"layer {index} has a {type(feed_forward).__name__}; only a DenseFeedForwardConfig can be upcycled, start from a"
            " dense model"
        )
    if feed_forward.bias:
        raise UpcyclingError(
            f"layer {index} has biases in its feed-forward, but experts have none; start from a model without them"
        )
    experts = ExpertsConfig(
        num_experts=upcycling.num_experts,
        hidden_dim=feed_forward.hidden_dim,
        router=upcycling.router,
        activation=feed_forward.activation,
    )
    return replace(layer, feed_forward=experts)
