"""Letters and texts of a few images, and a reader; as a program: one process of a step over several."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any, cast

import numpy as np
from tiny_contrastive import clip_config, one_step

from openafm.data.loading.batch import Batch, Origin
from openafm.models.attention.spans import EmbeddingSpan, Span
from openafm.models.config import DecoderConfig
from openafm.models.vision.config import ConvolutionConfig, VisionConfig
from openafm.models.vision.letters_adapter_config import LettersAdapterConfig
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.training.objectives.config import ReadingConfig

LETTERS = [[(0, 0, 5), (1, 7, 95), (3, 3, 0)], [(2, 5, 12)]]
"""Row, column and class of the letters of two images of 4 x 8 cells."""
TEXT = (3, 9, 14, 2)
IMAGE_TOKENS = 4


STEM = (ConvolutionConfig(channels=8, stride=4), ConvolutionConfig(channels=12, stride=2))


def reader_config(stem: tuple[ConvolutionConfig, ...] = STEM) -> MultimodalConfig:
    """Return a reader with convolutions alone, or with transformer layers on the pixels of patches."""
    towers = clip_config()
    decoder = DecoderConfig(vocab_size=200, dim=towers.dim, layers=towers.layers, context_length=64)
    vision = replace(towers.vision, image_side=32, patch_side=8)
    if stem:
        vision = VisionConfig(
            image_side=32, patch_side=8, dim=stem[-1].channels, layers=(), num_registers=0, final_norm=False, stem=stem
        )
    return MultimodalConfig.of(decoder, vision, LettersAdapterConfig(factor=2))


def batch_of(letters: list[list[tuple[int, int, int]]], with_text: bool) -> Batch:
    """Return a row with a document of letters for each list, and one of an image and a text."""
    numbers = [[value for each in places for value in each] for places in letters]
    documents: list[tuple[str, list[int]]] = [("letters", each) for each in numbers]
    documents += [("texts", list(TEXT))] if with_text else []
    tokens, targets, mask, spans, places, images = [], [], [], [], [], {}
    for index, (_, found) in enumerate(documents):
        start = len(tokens)
        span = EmbeddingSpan(0, start, start + IMAGE_TOKENS, f"{len(found):02}{index}")
        row = [0] * IMAGE_TOKENS + found
        tokens += row
        targets += [*row[1:], 0]
        mask += [False] * (IMAGE_TOKENS - 1) + [True] * len(found) + [False]
        spans.append(span)
        places.append(Span(0, start, len(tokens)))
        images[span.image] = np.random.default_rng(len(found)).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    return Batch(
        tokens_BS=np.array([tokens]),
        targets_BS=np.array([targets]),
        loss_mask_BS=np.array([mask]),
        documents=tuple(places),
        origins=tuple(Origin(name, 0, 0, 1) for name, _ in documents),
        embedding_spans=tuple(spans),
        images=images,
    )


def main(arguments: str) -> None:
    """`arguments` has the letters and texts of each process and, after a colon, what letters learn from, as in
    `letters,texts:everything` or `both,empty:everything`."""
    parts, _, learns = arguments.partition(":")
    part = parts.split(",")[int(os.environ.get("RANK", "0"))]
    if part == "empty":
        batch = replace(batch_of([], with_text=True), origins=(), loss_mask_BS=np.zeros((1, 8), bool))
    else:
        batch = batch_of([] if part == "texts" else LETTERS, with_text=part != "letters")
    print(json.dumps(one_step(reader_config(), ReadingConfig(letters_learn_from=cast("Any", learns)), batch)))


if __name__ == "__main__":
    main(sys.argv[1])
