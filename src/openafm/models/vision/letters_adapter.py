"""An adapter whose image tokens have the embeddings of their letters; see `LettersAdapterConfig`.

Shapes: B images, Y and X patches of a side, V encoder dim, D decoder dim, E tokens of the decoder, T image tokens of a side,
F factor, N cells of a patch or of a token, K classes, L letters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from openafm.models.attention.spans import SpanError
from openafm.models.layers import Linear
from openafm.models.vision.adapter import BaseVisionAdapter, by_token
from openafm.models.vision.encoder import VisionStates
from openafm.models.vision.letters import LETTER_TOKENS, NO_LETTER, NUM_CLASSES
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig


class LettersAdapter(BaseVisionAdapter):
    """See `LettersAdapterConfig`."""

    def __init__(self, config: LettersAdapterConfig, vision_dim: int, decoder_dim: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        rows, columns = config.cells
        self.letters = Linear(vision_dim, rows * columns * NUM_CLASSES, bias=True)
        self.scale_ND = nn.Parameter(torch.empty(config.cells_of_token, decoder_dim))
        self.scale_before_ND = nn.Parameter(torch.empty(config.cells_of_token, decoder_dim))
        if not self.scale_ND.is_meta:
            self.initialize(seed)

    def forward(self, states: VisionStates, tokens_side: int | None = None, embedding_ED: Tensor | None = None) -> Tensor:
        assert embedding_ED is not None
        factor, grid = self.config.factor, states.patches_BYXD.shape[1]
        if grid % factor or tokens_side not in (None, grid // factor):
            raise SpanError(f"{grid} patches of a side give {grid / factor:g} tokens of a side, not {tokens_side}")
        probabilities_BYXNK = self._logits(states.patches_BYXD).float().softmax(-1)
        table_KD = embedding_ED[LETTER_TOKENS.start : LETTER_TOKENS.stop].float()
        letters_BYXND = probabilities_BYXNK[..., 1 : 1 + len(table_KD)] @ table_KD
        letters_BTTND = by_token(letters_BYXND, factor).flatten(3, 5)  # the cells of a token together
        empty_BTT = by_token(probabilities_BYXNK[..., NO_LETTER], factor).flatten(3).prod(3)
        before_BTTD = _last_before((letters_BTTND * self.scale_before_ND).sum(3), empty_BTT)
        tokens_BTTD = (letters_BTTND * self.scale_ND).sum(3) + before_BTTD
        return tokens_BTTD.flatten(1, 2).to(states.patches_BYXD.dtype)

    def letter_logits(self, states: VisionStates, image_L: Tensor, row_L: Tensor, column_L: Tensor) -> Tensor:
        """Return the logits of the classes at cells of images, [L, K]."""
        rows, columns = self.config.cells
        logits_LNK = self._logits(states.patches_BYXD[image_L, row_L // rows, column_L // columns])
        cell_L = row_L % rows * columns + column_L % columns
        return logits_LNK[torch.arange(len(cell_L), device=cell_L.device), cell_L]

    def initialize(self, seed: int) -> None:
        """Draw initial weights. Random signs make the letters to the left of a token differ from its own."""
        generator = torch.Generator(device=self.scale_ND.device).manual_seed(seed)
        self.letters.initialize(generator)
        nn.init.ones_(self.scale_ND)
        with torch.no_grad():
            signs_D = torch.empty_like(self.scale_before_ND[0]).bernoulli_(generator=generator) * 2 - 1
            self.scale_before_ND.copy_(signs_D.expand_as(self.scale_before_ND))

    def _logits(self, patches_V: Tensor) -> Tensor:
        """Return the logits of the classes in the cells of patches, [..., N, K]."""
        logits_NK: Tensor = self.letters(patches_V).unflatten(-1, (-1, NUM_CLASSES))
        return logits_NK


def _last_before(letters_BTTD: Tensor, empty_BTT: Tensor) -> Tensor:
    """Return, for each token, the letters of the nearest token to its left that is not empty, [B, T, T, D].

    `empty_BTT` are the probabilities of tokens to have no letter.
    """
    before_BTD = torch.zeros_like(letters_BTTD[:, :, 0])
    found = [before_BTD]
    for letters_BTD, empty_BT in zip(letters_BTTD[:, :, :-1].unbind(2), empty_BTT[:, :, :-1].unbind(2), strict=True):
        before_BTD = letters_BTD + empty_BT[..., None] * before_BTD
        found.append(before_BTD)
    return torch.stack(found, 2)
