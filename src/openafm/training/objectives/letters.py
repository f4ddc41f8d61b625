"""Letters: which letter is in each cell of an image. The report has no such loss.

Shapes: I images, Y and X pixels, R rows and C columns of cells, L letters of an image, K classes.
"""

from __future__ import annotations

from collections import defaultdict
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from openafm.core.errors import UsageError
from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import ImageKey, Span
from openafm.models.decoder import Decoder
from openafm.models.transfer import to_device
from openafm.models.vision.letters import CELL, NO_LETTER, NUM_CLASSES
from openafm.models.vision.letters_model import LettersModel
from openafm.training.objectives.base import Losses


class LettersError(UsageError):
    """A document of letters has no image, or a place or class out of range."""


class Letters:
    """See `LettersConfig`. The part `letters` is the share of the letters and spaces whose class is right."""

    def __call__(self, model: Decoder, batch: Batch) -> Losses:
        images = defaultdict[int, list[ImageKey]](list)
        classes = defaultdict[int, list[npt.NDArray[np.int64]]](list)
        # A batch without documents of a source gives zero gradients, not none: other processes may have letters.
        total = torch.stack([0 * weight.sum() for weight in model.parameters()]).sum()
        num_right = torch.zeros_like(total, requires_grad=False)
        for document in batch.documents if batch.origins else ():
            image, class_RC = _classes_of(batch, document)
            side = batch.images[image].shape[1]
            images[side].append(image)
            classes[side].append(class_RC)
        flops = 0.0
        for side, keys in images.items():
            pixels_IYXC = torch.from_numpy(np.stack([batch.images[key][0] for key in keys]))
            logits_IRCK = cast("LettersModel", model).letter_logits(pixels_IYXC).float()
            class_IRC = to_device(torch.from_numpy(np.stack(classes[side])), model.device)
            total = total + F.cross_entropy(logits_IRCK.flatten(0, 2), class_IRC.flatten(), reduction="sum")
            num_right += ((logits_IRCK.detach().argmax(-1) == class_IRC) & (class_IRC != NO_LETTER)).sum()
            flops += 3 * len(keys) * cast("LettersModel", model).config.view_flops(side)
        count = sum(int(np.count_nonzero(class_RC)) for found in classes.values() for class_RC in found)
        return Losses(total=total, count=count, parts={"letters": num_right}, flops=round(flops))


def _classes_of(batch: Batch, document: Span) -> tuple[ImageKey, npt.NDArray[np.int64]]:
    """Return the image of a document and the classes of its cells, [R, C]."""
    spans = [
        span for span in batch.embedding_spans if span.row == document.row and document.start <= span.start < document.stop
    ]
    places = slice(document.start, document.stop)
    found = batch.targets_BS[document.row, places][batch.loss_mask_BS[document.row, places]]
    if len(spans) != 1 or len(found) % 3:
        raise LettersError(
            f"a document of letters has {len(spans)} images and {len(found)} numbers in a row; expected one image and "
            "three numbers a letter; use rows that hold whole documents"
        )
    letters_L3, side = found.reshape(-1, 3), batch.images[spans[0].image].shape[1]
    limits = (side // CELL[0], side // CELL[1], NUM_CLASSES)
    highest = letters_L3.max(0, initial=0)
    if (highest >= limits).any():
        raise LettersError(
            "the highest row, column and class of letters are {}, {} and {}; a view of {} pixels has {} rows, {} columns "
            "and {} classes; pack the images at the model's resolution".format(*highest.tolist(), side, *limits)
        )
    class_RC = np.full(limits[:2], NO_LETTER)
    class_RC[letters_L3[:, 0], letters_L3[:, 1]] = letters_L3[:, 2]
    return spans[0].image, class_RC
