"""Contrastive pre-training of the vision encoder on pairs of images and texts (report 4.2).

Shapes: I pairs of this process, A pairs of all processes, E the shared dim.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.accounting import training_flops
from openafm.models.attention.spans import EmbeddingSpan, ImageKey
from openafm.models.decoder import Decoder
from openafm.models.vision.clip import ClipModel, contrastive_loss, sigmoid_loss
from openafm.training.objectives.base import Losses, ScheduledObjective, zero_losses
from openafm.training.objectives.config import ContrastiveConfig


class PairsError(UsageError):
    """A batch has no pairs of an image and a text."""


class Contrastive(ScheduledObjective):
    """CLIP's loss; candidates are the pairs of all processes. `accuracy` is the share of images that pick their text.

    With microbatches, the candidates are those of one microbatch: use as many rows as memory allows.
    """

    def __init__(self, config: ContrastiveConfig) -> None:
        self._config = config

    @property
    def kept(self) -> float:
        """The share of the patches that the next batch encodes."""
        is_masked = torch.is_grad_enabled() and self.progress < 1 - self._config.unmasked_share
        return self._config.kept if is_masked else 1.0

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        towers = cast("ClipModel", model)
        if batch.num_targets == 0:
            return zero_losses(model)
        images, texts = _pairs(batch)
        # A process without pairs takes part in the collectives with none, and has zero gradients.
        images_IE = texts_IE = torch.zeros(0, towers.config.shared_dim, device=model.device, requires_grad=True)
        vision_flops = 0.0
        if images:
            pixels_IYXC = torch.stack([torch.tensor(batch.images[key][0]) for key in images])
            images_IE, texts_IE = towers.encode_images(pixels_IYXC, self.kept), towers.encode_texts(texts)
            vision_flops = 3 * len(images) * towers.config.vision.flops(pixels_IYXC.shape[1], self.kept)
        all_images_AE, first = towers.gather(images_IE)
        all_texts_AE, _ = towers.gather(texts_IE)
        if not len(all_images_AE):
            raise PairsError("no document of the batch has an image and a text after it; pack an image corpus with captions")
        total = self._loss(towers, images_IE, texts_IE, all_images_AE, all_texts_AE, first)
        if not images:
            total = total + 0 * sum(weight.sum() for weight in model.parameters())
        with torch.no_grad():
            picked_I = (images_IE @ all_texts_AE.T).argmax(-1)
            num_right = (picked_I == torch.arange(first, first + len(images), device=picked_I.device)).sum()
        text_flops = training_flops(towers.config, [len(text) for text in texts], 0)
        return Losses(
            total=total,
            count=len(images),
            parts={"accuracy": num_right.float()},
            flops=round(vision_flops) + text_flops,
        )

    def _loss(
        self, model: ClipModel, images_IE: Tensor, texts_IE: Tensor, all_images_AE: Tensor, all_texts_AE: Tensor, first: int
    ) -> Tensor:
        return contrastive_loss(images_IE, texts_IE, all_images_AE, all_texts_AE, model.scale, model.bias, first)


class SigmoidContrastive(Contrastive):
    """SigLIP's loss."""

    def _loss(
        self, model: ClipModel, images_IE: Tensor, texts_IE: Tensor, all_images_AE: Tensor, all_texts_AE: Tensor, first: int
    ) -> Tensor:
        return sigmoid_loss(images_IE, all_texts_AE, model.scale, model.bias, first)


def _pairs(batch: Batch) -> tuple[list[ImageKey], list[Tensor]]:
    """Return the first image of each document and the tokens between it and the next one."""
    images, texts = [], []
    for document in batch.documents:
        spans = [
            span
            for span in batch.embedding_spans
            if span.row == document.row and document.start <= span.start and span.stop <= document.stop
        ]
        if spans and (text := _text_after(batch, spans, document.stop)).size:
            images.append(spans[0].image)
            texts.append(torch.from_numpy(text))
    return images, texts


def _text_after(batch: Batch, spans: list[EmbeddingSpan], document_stop: int) -> npt.NDArray[np.int64]:
    stop = spans[1].start if len(spans) > 1 else document_stop
    return batch.tokens_BS[spans[0].row, spans[0].stop : stop]
