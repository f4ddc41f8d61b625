"""Reading: which letter is where in an image, beside the next token of texts.

The letters teach the stem of an encoder what no caption does: each gives a gradient to one place of the image. The
report has no such loss.

Shapes: I images, L letters of all images.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, Span
from openafm.models.decoder import Decoder
from openafm.models.transfer import to_device
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.reader import Reader
from openafm.training.objectives.base import Losses, NextToken, zero_losses
from openafm.training.objectives.config import ReadingConfig


class LettersError(UsageError):
    """A document of letters has no image, or numbers that are no letters."""


class Reading:
    """See `ReadingConfig`. The part `letters` is the share of the items that are cells whose class is right."""

    def __init__(self, config: ReadingConfig) -> None:
        self._config, self._next_token = config, NextToken()

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        lettered = [
            document
            for document, origin in zip(batch.documents, batch.origins, strict=True)
            if origin.source in self._config.sources
        ]
        reader = cast("Reader", model)
        with _frozen(reader.vision.stem) if self._config.stem_learns_from == "letters" else nullcontext():
            texts = self._next_token(model, _without(batch, lettered))
        letters = _letter_losses(reader, batch, lettered)
        unused = 0 * sum(weight.sum() for weight in model.parameters()) if torch.is_grad_enabled() else 0
        return Losses(
            total=texts.total + letters.total + unused,
            count=texts.count + letters.count,
            parts=letters.parts,
            flops=texts.flops + letters.flops,
        )


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Compute without gradients of a module's weights."""
    module.requires_grad_(False)
    try:
        yield
    finally:
        module.requires_grad_(True)


def _letter_losses(model: Reader, batch: Batch, lettered: list[Span]) -> Losses:
    images: list[ImageKey] = []
    numbers: list[npt.NDArray[np.int64]] = []
    for document in lettered:
        places = slice(document.start, document.stop)
        spans = [span for span in batch.embedding_spans if _is_in(span, document)]
        found = batch.targets_BS[document.row, places][batch.loss_mask_BS[document.row, places]]
        if len(spans) != 1 or len(found) % 3:
            raise LettersError("a document of letters is one image and three numbers a letter; rows must hold it whole")
        if len(found):
            numbers.append(np.insert(found.reshape(-1, 3), 0, len(images), axis=1))
            images.append(spans[0].image)
    if not images:
        return replace(zero_losses(model), parts={"letters": torch.zeros((), device=model.device)})
    pixels_IYXC = torch.stack([torch.tensor(batch.images[key][0]) for key in images])
    image_L, row_L, column_L, letter_L = to_device(torch.from_numpy(np.concatenate(numbers)), model.device).unbind(1)
    logits_LK = model.letter_logits(pixels_IYXC, image_L, row_L, column_L).float()
    with torch.no_grad():
        num_right = (logits_LK.argmax(-1) == letter_L).sum().float()
    return Losses(
        total=F.cross_entropy(logits_LK, letter_L, reduction="sum"),
        count=len(letter_L),
        parts={"letters": num_right},
        flops=round(3 * len(images) * _letter_flops(model.config.vision, pixels_IYXC.shape[1])),
    )


def _letter_flops(vision: VisionConfig, side: int) -> float:
    return vision.stem_flops(side) if vision.stem else vision.flops(side)


def _without(batch: Batch, lettered: list[Span]) -> Batch:
    """Return a batch whose loss leaves out some documents and their images."""
    loss_mask_BS = batch.loss_mask_BS.copy()
    for document in lettered:
        loss_mask_BS[document.row, document.start : document.stop] = False
    spans = tuple(span for span in batch.embedding_spans if not any(_is_in(span, document) for document in lettered))
    images = {span.image: batch.images[span.image] for span in spans}
    return replace(batch, loss_mask_BS=loss_mask_BS, embedding_spans=spans, images=images)


def _is_in(span: EmbeddingSpan, document: Span) -> bool:
    return span.row == document.row and document.start <= span.start < document.stop
