"""Documents of letters, and a model of them; as a program: one process of a step over several."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import numpy as np
from tiny_contrastive import one_step

from openafm.data.loading.batch import Batch, Origin
from openafm.models.attention.spans import EmbeddingSpan, Span
from openafm.models.vision.multimodal_config import LettersModelConfig
from openafm.models.vision.sizes import convolutions, stem_of
from openafm.training.objectives.config import LettersConfig

Document = tuple[int, list[tuple[int, int, int]]]
"""Side of an image; row, column and class of its letters."""
DOCUMENTS: list[Document] = [(32, [(0, 0, 5), (1, 7, 96), (3, 3, 1)]), (64, [(6, 15, 12)]), (32, []), (32, [(2, 5, 12)])]
CONFIG = LettersModelConfig(vocab_size=320, vision=convolutions(32, stem_of(8, 12)))
ROW_TOKENS = 16


def batch_of(documents: Sequence[Document]) -> Batch:
    """Return a batch with a row for each document: an image of four tokens, and three numbers a letter."""
    tokens_BS, mask_BS = np.zeros((len(documents), ROW_TOKENS), np.int64), np.zeros((len(documents), ROW_TOKENS), bool)
    spans, places, images = [], [], {}
    for row, (side, letters) in enumerate(documents):
        numbers = [value for each in letters for value in each]
        stop = 4 + len(numbers)
        tokens_BS[row, 4:stop], mask_BS[row, 3 : stop - 1] = numbers, True
        span = EmbeddingSpan(row, 0, 4, f"{side}{len(numbers):02}")
        spans.append(span)
        places.append(Span(row, 0, stop + 1))
        images[span.image] = np.random.default_rng(stop).integers(0, 256, (1, side, side, 3), dtype=np.uint8)
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=np.roll(tokens_BS, -1, axis=1),
        loss_mask_BS=mask_BS,
        documents=tuple(places),
        origins=tuple(Origin("letters", 0, 0, 1) for _ in documents),
        embedding_spans=tuple(spans),
        images=images,
    )


def main(shares: str) -> None:
    """`shares` has the number of documents of each process, as in `3,1`."""
    counts = [int(share) for share in shares.split(",")]
    rank = int(os.environ.get("RANK", "0"))
    first = sum(counts[:rank])
    batch = batch_of(DOCUMENTS[first : first + counts[rank]])
    print(json.dumps(one_step(CONFIG, LettersConfig(), batch)))


if __name__ == "__main__":
    main(sys.argv[1])
