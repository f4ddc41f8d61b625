"""The model of letters: an encoder of convolutions, and a linear layer that classifies the letter of each cell.

Shapes: B images, Y and X pixels, R rows and C columns of cells, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openafm.models.decoder import Decoder
from openafm.models.layers import Linear
from openafm.models.vision.letters import NO_LETTER, NUM_CLASSES
from openafm.models.vision.multimodal_config import LettersModelConfig

EMPTY_BIAS = 5.0
"""Initial logit of cells to have no letter, as most do."""


class LettersModel(Decoder):
    """See `LettersModelConfig`. It is a `Decoder` for the trainer alone: it has no method of texts."""

    config: LettersModelConfig

    def __init__(self, config: LettersModelConfig, seed: int = 0) -> None:
        nn.Module.__init__(self)  # without the weights of a decoder
        self.config, self.compute_dtype = config, torch.float32
        self.tracks = self.output = self.key_value_exchange = self.vocabulary_group = None
        self.layers = nn.ModuleList()
        self.vision = config.vision.build(seed)
        self.letters = Linear(config.vision.dim, config.patch_classes, bias=True)
        if not self.letters.weight.is_meta:
            self.letters.initialize(torch.Generator(device=self.device).manual_seed(seed + 1))
            assert self.letters.bias is not None
            with torch.no_grad():
                self.letters.bias.unflatten(0, (-1, NUM_CLASSES))[:, NO_LETTER] = EMPTY_BIAS

    @property
    def device(self) -> torch.device:
        return self.letters.weight.device

    def letter_logits(self, pixels_BYXC: Tensor) -> Tensor:
        """Return the logits of the classes in all cells of square images, [B, R, C, K] in `compute_dtype`.

        Raises:
            ConfigError: the images do not divide into patches.
        """
        self.vision.compute_dtype = self.compute_dtype
        logits_BYXE = self.letters(self.vision(pixels_BYXC.to(self.device)).patches_BYXD)
        logits_BRCK: Tensor = logits_BYXE.unflatten(-1, (-1, NUM_CLASSES)).flatten(2, 3)
        return logits_BRCK
