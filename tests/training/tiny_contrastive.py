"""Pairs and towers of a few thousand weights; as a program: one process of a contrastive step over several."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable

import numpy as np
import torch

from openafm.data.loading.batch import Batch
from openafm.models.attention.spans import EmbeddingSpan, Span
from openafm.models.config import (
    AttentionConfig,
    DecoderConfig,
    DenseFeedForwardConfig,
    LayerConfig,
    OwnKeysValuesConfig,
)
from openafm.models.vision.config import VisionConfig, VisionLayerConfig
from openafm.models.vision.multimodal_config import ClipConfig
from openafm.training.distributed.config import ParallelConfig
from openafm.training.distributed.parallel import Parallelism
from openafm.training.distributed.processes import open_processes
from openafm.training.objectives.config import ContrastiveConfig, ObjectiveConfig

IMAGE_TOKENS, TEXT_TOKENS = 1, 4
LENGTH = IMAGE_TOKENS + TEXT_TOKENS


def clip_config() -> ClipConfig:
    attention = AttentionConfig(num_heads=2, head_dim=8, keys_values=OwnKeysValuesConfig(num_heads=2))
    layers = (LayerConfig(attention=attention, feed_forward=DenseFeedForwardConfig(hidden_dim=32)),) * 2
    text = DecoderConfig(vocab_size=40, dim=16, layers=layers, context_length=64)
    vision = VisionConfig(image_side=8, patch_side=2, dim=16, layers=(VisionLayerConfig(num_heads=2, mlp_dim=32),))
    return ClipConfig.of(text, vision, shared_dim=12)


def batch_of(pairs: Iterable[int]) -> Batch:
    """Return one row with a document for each pair: an image and four tokens, both drawn from the pair's number."""
    numbers = list(pairs)
    length = max(1, LENGTH * len(numbers))
    tokens_BS = np.zeros((1, length), dtype=np.int64)
    documents, spans, images = [], [], {}
    for position, number in enumerate(numbers):
        random = np.random.default_rng(number)
        start = position * LENGTH
        span = EmbeddingSpan(0, start, start + IMAGE_TOKENS, f"{number:02}")
        tokens_BS[0, span.stop : start + LENGTH] = random.integers(1, 40, TEXT_TOKENS)
        images[span.image] = random.integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
        documents.append(Span(0, start, start + LENGTH))
        spans.append(span)
    return Batch(
        tokens_BS=tokens_BS,
        targets_BS=tokens_BS,
        loss_mask_BS=np.full(tokens_BS.shape, bool(numbers)),
        documents=tuple(documents),
        embedding_spans=tuple(spans),
        images=images,
    )


def one_step(config: DecoderConfig, objective: ObjectiveConfig, batch: Batch) -> dict[str, object]:
    """Return the loss and the norms of the gradients of a step over all processes, of which this one has `batch`."""
    torch.set_num_threads(1)
    with open_processes() as processes:
        parallelism = Parallelism(ParallelConfig(), config, processes)
        model = config.build(seed=0)
        parallelism.apply(model, "cpu")
        losses = parallelism.losses(objective.build(), model, batch)
        losses.total.backward()
        parallelism.reduce_gradients()
        total = parallelism.sum_over_data(losses.total.detach())
    gradients = {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": float(total), "gradients": gradients}


def main(shares: str) -> None:
    counts = [int(share) for share in shares.split(",")]
    rank = int(os.environ.get("RANK", "0"))
    first = sum(counts[:rank])
    print(json.dumps(one_step(clip_config(), ContrastiveConfig(), batch_of(range(first, first + counts[rank])))))


if __name__ == "__main__":
    main(sys.argv[1])
