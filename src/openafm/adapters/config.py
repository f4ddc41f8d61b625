"""Low-rank adapters as data. Imports no tensor library."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openafm.core.config import Config
from openafm.models.config import DecoderConfig

if TYPE_CHECKING:
    from openafm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class AdapterStartConfig(Config, ABC):
    """Base of the initializations of an adapter."""

    @abstractmethod
    def apply(self, decoder: Decoder, config: LoRAConfig, seed: int) -> None:
        """Put an adapter with these initial weights on the decoder."""


@dataclass(frozen=True, kw_only=True)
class ZeroStart(AdapterStartConfig):
    """Random `a`, zero `b`: the outputs of the decoder are unchanged (arXiv 2106.09685)."""

    def apply(self, decoder: Decoder, config: LoRAConfig, seed: int) -> None:
        from openafm.adapters.lora import start_at_zero

        start_at_zero(decoder, config, seed)


@dataclass(frozen=True, kw_only=True)
class SingularValueStart(AdapterStartConfig):
    """The top singular vectors of each weight, subtracted from the decoder (arXiv 2404.02948, report 6)."""

    def apply(self, decoder: Decoder, config: LoRAConfig, seed: int) -> None:
        from openafm.adapters.singular import move_singular_vectors

        move_singular_vectors(decoder, config)


@dataclass(frozen=True, kw_only=True)
class LoRAConfig(Config):
    """Low-rank adapters of the Linears of a decoder's layers (arXiv 2106.09685).

    `targets` are last components of module names, such as "query" or "gate"; an empty tuple means every Linear of the
    layers. Each track has separate adapters. Routers and experts are not Linears and have none. `precision` is that of the
    stored weights; in memory they are fp32 masters.
    """

    rank: int = 32
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    start: AdapterStartConfig = ZeroStart()
    precision: Literal["float16", "float32"] = "float16"

    def __post_init__(self) -> None:
        self.require(self.rank > 0, f"rank must be positive, got {self.rank}")
        self.require(self.alpha > 0 and math.isfinite(self.alpha), f"alpha must be positive and finite, got {self.alpha}")
        self.require(len(set(self.targets)) == len(self.targets), f"targets must be unique, got {', '.join(self.targets)}")
        for target in self.targets:
            self.require(
                bool(target) and "." not in target,
                f"a target is the last component of a module name, such as 'query', got '{target}'",
            )

    @property
    def scale(self) -> float:
        """The factor of the adapter's output."""
        return self.alpha / self.rank


def num_adapter_parameters(decoder: DecoderConfig, config: LoRAConfig) -> int:
    """Return the number of weights of the adapter: 66,633,728 for rank 32 on `on_device.base`.

    Raises:
        AdapterTargetError: the decoder has no such target.
    """
    import torch

    from openafm.adapters.lora import attach

    with torch.device("meta"):
        model = decoder.build()
    return sum(parameter.numel() for lora in attach(model, config).values() for parameter in lora.parameters())
