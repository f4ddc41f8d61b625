"""An adapter whose image tokens have the embeddings of their letters; see `LettersAdapterConfig`.

Shapes: B images, Y and X patches of a side, V encoder dim, D decoder dim, E tokens of the decoder, T image tokens of a side,
F factor, N cells of a patch or of a token, K classes, L letters, P tokens to the left of another.
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
        self.scale_before_PND = nn.Parameter(torch.empty(config.num_before, config.cells_of_token, decoder_dim))
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
        tokens_BTTD = (letters_BTTND * self.scale_ND).sum(3)
        letters_BTTPD = torch.stack([(letters_BTTND * scale_ND).sum(3) for scale_ND in self.scale_before_PND], 3)
        weights_BTTPT = _weights_before(empty_BTT, self.config.num_before)
        tokens_BTTD = tokens_BTTD + (weights_BTTPT.flatten(3) @ letters_BTTPD.transpose(2, 3).flatten(2, 3))
        return tokens_BTTD.flatten(1, 2).to(states.patches_BYXD.dtype)

    def letter_logits(self, states: VisionStates, image_L: Tensor, row_L: Tensor, column_L: Tensor) -> Tensor:
        """Return the logits of the classes at cells of images, [L, K]."""
        rows, columns = self.config.cells
        logits_LNK = self._logits(states.patches_BYXD[image_L, row_L // rows, column_L // columns])
        cell_L = row_L % rows * columns + column_L % columns
        return logits_LNK[torch.arange(len(cell_L), device=cell_L.device), cell_L]

    def initialize(self, seed: int) -> None:
        """Draw initial weights. Random signs make the letters to the left of a token differ from its own and each other."""
        generator = torch.Generator(device=self.scale_ND.device).manual_seed(seed)
        self.letters.initialize(generator)
        nn.init.ones_(self.scale_ND)
        with torch.no_grad():
            signs_P1D = torch.empty_like(self.scale_before_PND[:, :1]).bernoulli_(generator=generator) * 2 - 1
            self.scale_before_PND.copy_(signs_P1D.expand_as(self.scale_before_PND))

    def _logits(self, patches_V: Tensor) -> Tensor:
        """Return the logits of the classes in the cells of patches, [..., N, K]."""
        logits_NK: Tensor = self.letters(patches_V).unflatten(-1, (-1, NUM_CLASSES))
        return logits_NK


def _weights_before(empty_BTT: Tensor, num_before: int) -> Tensor:
    """Return how much each token of a row counts as the token number P to the left of another, [B, T, T, P, T].

    Number 0 is the nearest token to the left that has letters, 1 the one before that, and so on. `empty_BTT` are the
    probabilities of tokens to have no letter.
    """
    side = empty_BTT.shape[-1]
    columns_TT = torch.eye(side, dtype=empty_BTT.dtype, device=empty_BTT.device)
    weights_BTPT = empty_BTT.new_zeros(*empty_BTT.shape[:2], num_before, side)
    found = [weights_BTPT]
    for column_T, empty_BT in zip(columns_TT[:-1], empty_BTT[:, :, :-1].unbind(2), strict=True):
        empty_BT11 = empty_BT[..., None, None]
        # The embeddings of a token's letters already contain the probability that it has letters.
        nearest_BT1T = column_T.expand_as(weights_BTPT[:, :, :1])
        shifted_BTPT = torch.cat([nearest_BT1T, (1 - empty_BT11) * weights_BTPT[:, :, :-1]], 2)
        weights_BTPT = shifted_BTPT + empty_BT11 * weights_BTPT
        found.append(weights_BTPT)
    return torch.stack(found, 2)
