"""Contrastive image and text towers (arXiv 2103.00020, report 4.2).

Shapes: I images, T texts, E the shared dim, D dim of a tower, N windows of W patches, K of them kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.models.attention.context import PackedDocuments
from openafm.models.attention.spans import Span
from openafm.models.decoder import Decoder
from openafm.models.layers import Linear
from openafm.models.vision.multimodal_config import ClipConfig

Gather: TypeAlias = Callable[[Tensor], tuple[Tensor, int]]
"""From the vectors of this process to those of all processes, and the index of this process's first one."""

START_SCALE, MAX_SCALE = 1 / 0.07, 100.0
START_BIAS = -10.0


class ClipModel(Decoder):
    """A text tower, which is a decoder, and an image tower.

    `log_scale` and `bias` turn similarities into logits; the bias matters to the sigmoid loss only. `gather` is a
    slot: a run over several processes puts a collective there.
    """

    config: ClipConfig

    def __init__(self, config: ClipConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.vision = config.vision.build(seed + 1)
        self.image_projection = Linear(config.vision.dim, config.shared_dim)
        self.text_projection = Linear(config.dim, config.shared_dim)
        self.gather: Gather = _only_process
        self.log_scale, self.bias = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(()))
        if not self.log_scale.is_meta:
            generator = torch.Generator(device=self.device).manual_seed(seed + 2)
            self.image_projection.initialize(generator)
            self.text_projection.initialize(generator)
            nn.init.constant_(self.log_scale, math.log(START_SCALE))
            nn.init.constant_(self.bias, START_BIAS)

    @property
    def scale(self) -> Tensor:
        """The factor of similarities, at most 100."""
        return self.log_scale.exp().clamp(max=MAX_SCALE)

    def encode_images(self, pixels_IYXC: Tensor, kept: float = 1.0) -> Tensor:
        """Return unit vectors, [I, E]. Of each window a random share `kept` of the patches is encoded."""
        self.vision.compute_dtype = self.compute_dtype
        states = self.vision(pixels_IYXC.to(self.device), self._kept(pixels_IYXC, kept))
        pooled_ID = (states.registers_BRD if self.config.vision.num_registers else states.patches_BYXD.flatten(1, 2)).mean(1)
        return F.normalize(self.image_projection(pooled_ID).float(), dim=-1)

    def encode_texts(self, texts: Sequence[Tensor]) -> Tensor:
        """Return unit vectors of texts, each a sequence of tokens, [T, E]. Texts are packed: no padding is computed."""
        lengths = [len(text) for text in texts]
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        documents = [Span(0, start, start + length) for start, length in zip(starts, lengths, strict=True)]
        tokens_1S = torch.cat(list(texts))[None].to(self.device)
        context = PackedDocuments(documents, 1, tokens_1S.shape[1], self.device)
        last_T = torch.tensor([document.stop - 1 for document in documents], device=self.device)
        x_TD = self.hidden_at(tokens_1S, context, last_T)[0]
        return F.normalize(self.text_projection(x_TD).float(), dim=-1)

    def _kept(self, pixels_IYXC: Tensor, kept: float) -> Tensor | None:
        if kept >= 1:
            return None
        num_windows, window_tokens = self.config.vision.windows(pixels_IYXC.shape[1])
        num_kept = max(1, round(window_tokens * kept))
        noise_INW = torch.rand(len(pixels_IYXC), num_windows, window_tokens)
        return noise_INW.argsort(dim=-1)[..., :num_kept].to(self.device)


def _only_process(x_IE: Tensor) -> tuple[Tensor, int]:
    return x_IE, 0


def contrastive_loss(
    images_IE: Tensor,
    texts_IE: Tensor,
    all_images_AE: Tensor,
    all_texts_AE: Tensor,
    scale: Tensor,
    bias: Tensor,
    first: int,
) -> Tensor:
    """Return the sum of CLIP's symmetric cross entropy over these pairs, with all pairs A of the step as candidates.

    Pair i is candidate `first` + i. The bias cancels in the softmax.
    """
    labels_I = torch.arange(first, first + len(images_IE), device=images_IE.device)
    to_texts = F.cross_entropy(scale * images_IE @ all_texts_AE.T + bias, labels_I, reduction="sum")
    to_images = F.cross_entropy(scale * texts_IE @ all_images_AE.T + bias, labels_I, reduction="sum")
    return (to_texts + to_images) / 2


def sigmoid_loss(images_IE: Tensor, all_texts_AE: Tensor, scale: Tensor, bias: Tensor, first: int) -> Tensor:
    """Return the sum of SigLIP's loss over these images and all texts of the step (arXiv 2303.15343)."""
    logits_IA = scale * images_IE @ all_texts_AE.T + bias
    signs_IA = torch.full_like(logits_IA, -1.0)
    signs_IA[torch.arange(len(images_IE)), torch.arange(first, first + len(images_IE))] = 1.0
    return -F.logsigmoid(signs_IA * logits_IA).sum()
