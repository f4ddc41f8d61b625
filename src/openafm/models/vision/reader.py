"""A decoder that sees images, with a head that classifies letters.

Shapes: I images, Y and X outputs of the stem or patches of a side, L letters of the images, D dim of these,
N cells of one of them, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openafm.models.layers import Linear
from openafm.models.vision.letters import NUM_CLASSES
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import ReaderConfig


class Reader(MultimodalDecoder):
    """See `ReaderConfig`."""

    config: ReaderConfig

    def __init__(self, config: ReaderConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        rows, columns = config.cells
        self.letters = Linear(config.letters_dim, rows * columns * NUM_CLASSES, bias=True)
        if not self.letters.weight.is_meta:
            self.letters.initialize(torch.Generator(device=self.device).manual_seed(seed + 3))

    def letter_logits(self, pixels_IYXC: Tensor, image_L: Tensor, row_L: Tensor, column_L: Tensor) -> Tensor:
        """Return the logits of the classes at cells of images, [L, K]."""
        self.vision.compute_dtype = self.compute_dtype
        pixels_IYXC = pixels_IYXC.to(self.device)
        has_stem = bool(self.config.vision.stem)
        x_IYXD = self.vision.local_states(pixels_IYXC) if has_stem else self.vision(pixels_IYXC).patches_BYXD
        rows, columns = self.config.cells
        states_LD = x_IYXD[image_L, row_L // rows, column_L // columns]
        logits_LNK = self.letters(states_LD).unflatten(-1, (rows * columns, NUM_CLASSES))
        cell_L = row_L % rows * columns + column_L % columns
        return logits_LNK[torch.arange(len(cell_L), device=cell_L.device), cell_L]
