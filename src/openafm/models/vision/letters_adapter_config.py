"""The adapter of a model that reads, as data. Imports no tensor library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.models.vision.config import VisionConfig
from openafm.models.vision.letters import CELL, LETTER_TOKENS, NUM_CLASSES
from openafm.models.vision.pixel_shuffle_config import PatchGroupsConfig

if TYPE_CHECKING:
    from openafm.models.vision.letters_adapter import LettersAdapter


MOST_BEFORE = 8
"""Of `LettersAdapterConfig.num_before`, with which time and memory grow."""


@dataclass(frozen=True, kw_only=True)
class LettersAdapterConfig(PatchGroupsConfig):
    """Image tokens made of the letters in them, which the objective `ReadingConfig` teaches by place.

    A linear layer gives the probabilities of the classes of letters in each cell of a patch. A token of `factor` x `factor`
    patches is the sum of the decoder's embeddings of its letters, expected and scaled by cell, and of those of the nearest
    `num_before` tokens to its left in the row that have letters, each with scales of its own. So a decoder that has written
    some letters finds the next. A decoder of 1 M parameters learns to transcribe from these tokens, and not from learned
    ones (docs/benchmarks.md, Transcribing). Not in the report.
    """

    patch_side: int = 8
    num_before: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            1 <= self.num_before <= MOST_BEFORE, f"num_before is a number from 1 to {MOST_BEFORE}, got {self.num_before}"
        )
        self.require(
            self.patch_side > 0 and self.patch_side % math.lcm(*CELL) == 0,
            f"patches of {self.patch_side} pixels do not divide into cells of {CELL[0]} x {CELL[1]} pixels",
        )

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of the cells of a patch."""
        return self.patch_side // CELL[0], self.patch_side // CELL[1]

    @property
    def cells_of_token(self) -> int:
        """Cells of an image token: of its patches row by row, then of each patch."""
        return self.factor**2 * math.prod(self.cells)

    def check_model(self, vision: VisionConfig, vocab_size: int) -> None:
        least = LETTER_TOKENS.stop
        self.require(vocab_size >= least, f"letters need a vocab_size of {least} or more, got {vocab_size}")
        self.require(
            vision.patch_side == self.patch_side,
            f"the encoder has patches of {vision.patch_side} pixels, the adapter of {self.patch_side}",
        )

    def num_parameters(self, vision_dim: int, decoder_dim: int) -> int:
        scales = (1 + self.num_before) * self.cells_of_token * decoder_dim
        return (vision_dim + 1) * math.prod(self.cells) * NUM_CLASSES + scales

    def layer_flops(self, vision: VisionConfig, num_tokens: int) -> float:
        """Return the operations of the forward pass of the layer that classifies letters."""
        return 2.0 * num_tokens * self.cells_of_token * NUM_CLASSES * vision.dim

    def flops(self, vision: VisionConfig, decoder_dim: int, image_side: int, num_tokens: int) -> float:
        embeddings = 2.0 * num_tokens * self.cells_of_token * len(LETTER_TOKENS) * decoder_dim
        before = 2.0 * num_tokens * self.num_before * math.isqrt(num_tokens) * decoder_dim
        return self.layer_flops(vision, num_tokens) + embeddings + before

    def build(self, vision_dim: int, decoder_dim: int, seed: int = 0) -> LettersAdapter:
        from openafm.models.vision.letters_adapter import LettersAdapter

        return LettersAdapter(self, vision_dim, decoder_dim, seed)
