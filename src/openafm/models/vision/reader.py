"""A decoder that sees images, and adds the letters that it finds in them to the image tokens.

Shapes: V views or images, Y and X outputs of the stem or patches of a side, L letters of the images or tokens of a view,
D dim of the decoder, C of the states, N cells of a state or of a token, S states of a token's side, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openafm.models.layers import Linear
from openafm.models.vision.encoder import VisionStates
from openafm.models.vision.letters import LETTER_TOKENS, NUM_CLASSES
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.models.vision.multimodal_config import ReaderConfig


class Reader(MultimodalDecoder):
    """See `ReaderConfig`."""

    config: ReaderConfig

    def __init__(self, config: ReaderConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        rows, columns = config.cells
        self.letters = Linear(config.letters_dim, rows * columns * NUM_CLASSES, bias=True)
        self.letter_scale_ND = nn.Parameter(torch.ones(config.cells_of_token, config.dim))
        if not self.letters.weight.is_meta:
            self.letters.initialize(torch.Generator(device=self.device).manual_seed(seed + 3))

    def image_tokens(self, states: VisionStates, side: int) -> Tensor:
        """Return the tokens of views, [V, L, D]: the adapter's output plus the expected embeddings of the letters."""
        tokens_VLD = super().image_tokens(states, side)
        probabilities_VYXNK = self._logits(_local(states)).float().softmax(-1)
        table_KD = self.embedding[LETTER_TOKENS.start : LETTER_TOKENS.stop].float()
        letters_VYXND = probabilities_VYXNK[..., 1 : 1 + len(table_KD)] @ table_KD
        step = letters_VYXND.shape[1] // side
        letters_VYSXSND = letters_VYXND.unflatten(2, (side, step)).unflatten(1, (side, step))
        letters_VLND = letters_VYSXSND.transpose(2, 3).flatten(1, 2).flatten(2, 4)  # the cells of a token together
        found_VLD = (letters_VLND * self.letter_scale_ND).sum(2)
        return tokens_VLD + found_VLD.to(tokens_VLD.dtype)

    def eyes(self) -> list[nn.Parameter]:
        return [*super().eyes(), *self.letters.parameters(), self.letter_scale_ND]

    def letter_logits(self, pixels_VYXC: Tensor, image_L: Tensor, row_L: Tensor, column_L: Tensor) -> Tensor:
        """Return the logits of the classes at cells of images, [L, K]."""
        self.vision.compute_dtype = self.compute_dtype
        pixels_VYXC = pixels_VYXC.to(self.device)
        has_stem = bool(self.config.vision.stem)
        x_VYXC = self.vision.local_states(pixels_VYXC) if has_stem else self.vision(pixels_VYXC).patches_BYXD
        rows, columns = self.config.cells
        logits_LNK = self._logits(x_VYXC[image_L, row_L // rows, column_L // columns])
        cell_L = row_L % rows * columns + column_L % columns
        return logits_LNK[torch.arange(len(cell_L), device=cell_L.device), cell_L]

    def _logits(self, states_C: Tensor) -> Tensor:
        """Return the logits of the classes in the cells of states, [..., N, K]."""
        logits_NK: Tensor = self.letters(states_C).unflatten(-1, (-1, NUM_CLASSES))
        return logits_NK


def _local(states: VisionStates) -> Tensor:
    return states.patches_BYXD if states.local_BYXC is None else states.local_BYXC
