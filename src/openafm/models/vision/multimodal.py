"""A decoder that sees images: embeddings of images replace those of the image tokens (report 2.3, 4.4).

Shapes: V views of images, Y and X pixels, L tokens of an image, D decoder dim, B rows, S tokens of a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from openafm.models.attention.spans import EmbeddingSpan, ImageKey, SpanError
from openafm.models.decoder import Decoder, InsertedEmbedding
from openafm.models.vision.multimodal_config import MultimodalConfig


def with_eyes(decoder: Decoder, config: MultimodalConfig, seed: int) -> MultimodalDecoder:
    """Return a decoder's weights with a fresh vision encoder and adapter."""
    model = config.build(seed)
    missing, unexpected = model.load_state_dict(decoder.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith(("vision.", "adapter.")) for name in missing)
    model.compute_dtype = decoder.compute_dtype
    return model


class MultimodalDecoder(Decoder):
    """A decoder with a vision encoder and an adapter. Only the input embeddings of image tokens differ from a decoder's."""

    config: MultimodalConfig

    def __init__(self, config: MultimodalConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.vision = config.vision.build(seed + 1)
        self.adapter = config.adapter.build(config.vision.dim, config.dim, seed + 2)

    def embed(self, tokens_BS: Tensor, inserted: Sequence[InsertedEmbedding] = ()) -> Tensor:
        x_BSD = super().embed(tokens_BS, inserted)
        if torch.is_grad_enabled() and not inserted:
            # A batch without images gives zero gradients, not none: an optimizer step does not depend on which process has
            # the images.
            x_BSD = x_BSD + 0 * sum(weight.sum() for weight in self._vision_parameters() if weight.requires_grad)
        return x_BSD

    def encode_images(self, views_VYXC: Tensor, num_tokens: int) -> Tensor:
        """Return the embeddings of an image's views, [V * num_tokens, D], `num_tokens` of each view.

        Raises:
            SpanError: `num_tokens` is not a square.
        """
        side = math.isqrt(num_tokens)
        if side * side != num_tokens:
            raise SpanError(f"a view of an image takes a square number of tokens, got {num_tokens}")
        self.vision.compute_dtype = self.compute_dtype
        tokens_VLD: Tensor = self.adapter(self.vision(views_VYXC.to(self.device)), side)
        return tokens_VLD.flatten(0, 1)

    def embed_images(self, spans: Sequence[EmbeddingSpan], images: Mapping[ImageKey, Tensor]) -> list[InsertedEmbedding]:
        """Return the embeddings of spans. Views of equal size are encoded together; an image of several spans once.

        `images` are the views_VYXC of each image, uint8; a span is divided evenly among them.

        Raises:
            SpanError: an image of a span is missing, or its views do not divide the span.
        """
        wanted = dict.fromkeys(span.image for span in spans)
        missing = [digest for digest, num_tokens in wanted if (digest, num_tokens) not in images]
        if missing:
            raise SpanError(f"the pixels of image {missing[0][:12]} are missing")
        embeddings: dict[ImageKey, Tensor] = {}
        shape_of = {key: (images[key].shape[1], key[1] / len(images[key])) for key in wanted}
        for (_, tokens_per_view), group in groupby(sorted(wanted, key=shape_of.__getitem__), key=shape_of.__getitem__):
            keys = list(group)
            views_VYXC = torch.cat([images[key] for key in keys])
            if not tokens_per_view.is_integer():
                raise SpanError(f"{len(images[keys[0]])} views do not divide a span of {keys[0][1]} tokens")
            embedded = self.encode_images(views_VYXC, int(tokens_per_view)).split([key[1] for key in keys])
            embeddings.update(zip(keys, embedded, strict=True))
        return [(span, embeddings[span.image]) for span in spans]

    def _vision_parameters(self) -> Iterator[nn.Parameter]:
        return itertools.chain(self.vision.parameters(), self.adapter.parameters())
