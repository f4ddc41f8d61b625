"""The adapter of InternVL (arXiv 2404.16821) as data. Imports no tensor library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.models.vision.config import BaseAdapterConfig, VisionConfig

if TYPE_CHECKING:
    from openafm.models.vision.pixel_shuffle import PixelShuffleAdapter


@dataclass(frozen=True, kw_only=True)
class PixelShuffleAdapterConfig(BaseAdapterConfig):
    """Pixel shuffle, layer norm, and two linear layers with GELU between them.

    The shuffle joins the states of `factor` x `factor` patches into one token. Registers are dropped.
    """

    factor: int = 2
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        self.require(self.factor > 0, f"factor must be at least 1, got {self.factor}")

    def usual_tokens(self, vision: VisionConfig, image_side: int) -> int:
        grid = vision.grid_side(image_side)
        self.require(grid % self.factor == 0, f"{grid} patches of a side do not divide into groups of {self.factor}")
        return (grid // self.factor) ** 2

    def check_view(self, vision: VisionConfig, image_side: int, num_tokens: int) -> None:
        tokens = self.usual_tokens(vision, image_side)
        self.require(num_tokens == tokens, f"a view of {image_side} pixels has {tokens} tokens, got {num_tokens}")

    def num_parameters(self, vision_dim: int, decoder_dim: int) -> int:
        joined = vision_dim * self.factor**2
        return 2 * joined + (joined + 1) * decoder_dim + (decoder_dim + 1) * decoder_dim

    def flops(self, vision: VisionConfig, decoder_dim: int, image_side: int, num_tokens: int) -> float:
        return 2.0 * num_tokens * decoder_dim * (vision.dim * self.factor**2 + decoder_dim)

    def build(self, vision_dim: int, decoder_dim: int, seed: int = 0) -> PixelShuffleAdapter:
        from openafm.models.vision.pixel_shuffle import PixelShuffleAdapter

        return PixelShuffleAdapter(self, vision_dim, decoder_dim, seed)
