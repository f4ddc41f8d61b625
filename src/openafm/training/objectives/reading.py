"""Reading: which letter is where in an image, beside the next token of texts.

The loss of a letter has a gradient at one place of the image. The report has no such loss.

Shapes: I images, L letters of all images or of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import EmbeddingSpan, ImageKey, Span
from openafm.models.decoder import Decoder
from openafm.models.transfer import to_device
from openafm.models.vision.letters import CELL, NUM_CLASSES
from openafm.models.vision.letters_adapter import LettersAdapter
from openafm.models.vision.multimodal import MultimodalDecoder
from openafm.training.objectives.base import Losses, NextToken, zero_losses
from openafm.training.objectives.config import ReadingConfig


class LettersError(UsageError):
    """A document of letters has no image, or a place or class out of range."""


class Reading:
    """See `ReadingConfig`. The part `letters` is the share of the items that are cells whose class is right."""

    def __init__(self, config: ReadingConfig) -> None:
        self._config, self._next_token = config, NextToken()

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        reader, is_frozen = cast("MultimodalDecoder", model), self._config.letters_learn_from != "everything"
        lettered = self._lettered(batch)
        other = _without(batch, lettered)
        with _frozen(reader.vision, _adapter_of(reader).letters) if is_frozen else nullcontext():
            texts = self._next_token(model, other)
        letters = _letter_losses(reader, batch, lettered)
        parts = letters.parts if self._config.letters_learn_from != "nothing" else {}
        # A batch without texts or letters gives zero gradients, not none: processes may have different ones.
        unused = 0 * sum(weight.sum() for weight in model.parameters()) if torch.is_grad_enabled() else 0
        return Losses(
            total=texts.total + letters.total + unused,
            count=texts.count + letters.count,
            parts={**texts.parts, **parts},
            flops=texts.flops + letters.flops - (_skipped_flops(reader, other) if is_frozen else 0),
            expert_tokens=texts.expert_tokens,
        )

    def _lettered(self, batch: Batch) -> list[Span]:
        """Return the documents of letters. Parts of a source are `source/part`; a batch without targets has no origins."""
        return [
            document
            for document, origin in zip(batch.documents, batch.origins, strict=bool(batch.origins))
            if origin.source.partition("/")[0] in self._config.sources
        ]


@contextmanager
def _frozen(*modules: nn.Module) -> Iterator[None]:
    """Compute without gradients of the weights of modules."""
    learned = [weight for module in modules for weight in module.parameters() if weight.requires_grad]
    for weight in learned:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learned:
            weight.requires_grad_(True)


def _letter_losses(model: MultimodalDecoder, batch: Batch, lettered: list[Span]) -> Losses:
    views: dict[int, list[tuple[ImageKey, npt.NDArray[np.int64]]]] = defaultdict(list)
    for document in lettered:
        image, letters_L3 = _letters_of(batch, document)
        if len(letters_L3):
            views[batch.images[image].shape[1]].append((image, letters_L3))
    if not views:
        return replace(zero_losses(model), parts={"letters": torch.zeros((), device=model.device)})
    logits, labels = zip(*(_logits_of_side(model, batch, found) for found in views.values()), strict=True)
    logits_LK, letter_L = torch.cat(logits), torch.cat(labels)
    with torch.no_grad():
        num_right = (logits_LK.argmax(-1) == letter_L).sum().float()
    return Losses(
        total=F.cross_entropy(logits_LK, letter_L, reduction="sum"),
        count=len(letter_L),
        parts={"letters": num_right},
        flops=round(sum(3 * len(found) * model.config.vision.flops(side) for side, found in views.items())),
    )


def _letters_of(batch: Batch, document: Span) -> tuple[ImageKey, npt.NDArray[np.int64]]:
    """Return the image of a document of letters, and their rows, columns and classes."""
    places = slice(document.start, document.stop)
    spans = [span for span in batch.embedding_spans if _is_in(span, document)]
    found = batch.targets_BS[document.row, places][batch.loss_mask_BS[document.row, places]]
    if len(spans) != 1 or len(found) % 3:
        raise LettersError(
            f"a document of letters has {len(spans)} images and {len(found)} numbers in a row; expected one image and "
            "three numbers a letter; use rows that hold whole documents"
        )
    letters_L3 = found.reshape(-1, 3)
    if len(letters_L3):
        _check_range(letters_L3, batch.images[spans[0].image].shape[1])
    return spans[0].image, letters_L3


def _logits_of_side(
    model: MultimodalDecoder, batch: Batch, found: list[tuple[ImageKey, npt.NDArray[np.int64]]]
) -> tuple[Tensor, Tensor]:
    """Return the logits [L, K] and the classes [L] of the letters of images that have the same side."""
    pixels_IYXC = torch.stack([torch.tensor(batch.images[key][0]) for key, _ in found])
    numbers_L4 = np.concatenate([np.insert(letters_L3, 0, image, axis=1) for image, (_, letters_L3) in enumerate(found)])
    image_L, row_L, column_L, letter_L = to_device(torch.from_numpy(numbers_L4), model.device).unbind(1)
    model.vision.compute_dtype = model.compute_dtype
    states = model.vision(to_device(pixels_IYXC, model.device))
    return _adapter_of(model).letter_logits(states, image_L, row_L, column_L).float(), letter_L


def _adapter_of(model: MultimodalDecoder) -> LettersAdapter:
    return cast("LettersAdapter", model.adapter)


def _check_range(letters_L3: npt.NDArray[np.int64], side: int) -> None:
    limits = (side // CELL[0], side // CELL[1], NUM_CLASSES)
    highest = letters_L3.max(0)
    if (highest >= limits).any():
        raise LettersError(
            "the highest row, column and class of letters are {}, {} and {}; a view of {} pixels has {} rows, {} columns "
            "and {} classes; pack the images at the model's resolution".format(*highest.tolist(), side, *limits)
        )


def _skipped_flops(model: MultimodalDecoder, batch: Batch) -> int:
    """Return the operations of a backward pass that frozen letters skip for the images of a batch.

    These are the two products of the encoder and of the layer of letters, and of the products after that layer the one that
    gives the gradients of probabilities.
    """
    config, adapter, total = model.config, _adapter_of(model).config, 0.0
    for (_, num_tokens), views in batch.images.items():
        side, tokens = views.shape[1], num_tokens // len(views)
        layer = adapter.layer_flops(config.vision, tokens)
        after = adapter.flops(config.vision, config.dim, side, tokens) - layer
        total += len(views) * (2 * config.vision.flops(side) + 2 * layer + after)
    return round(total)


def _without(batch: Batch, lettered: list[Span]) -> Batch:
    """Return the rows of a batch that have other targets than letters, without the images of letters."""
    loss_mask_BS = batch.loss_mask_BS.copy()
    for document in lettered:
        loss_mask_BS[document.row, document.start : document.stop] = False
    spans = tuple(span for span in batch.embedding_spans if not any(_is_in(span, document) for document in lettered))
    return replace(batch, loss_mask_BS=loss_mask_BS, embedding_spans=spans).select(np.flatnonzero(loss_mask_BS.any(1)))


def _is_in(span: EmbeddingSpan, document: Span) -> bool:
    return span.row == document.row and document.start <= span.start < document.stop
