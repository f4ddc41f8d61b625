"""The images of prompts: embeddings for the engine that samples, views for the batches that train the vision encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from openafm.data.images.resolution import image_views
from openafm.models.attention.spans import ImageKey
from openafm.models.config import DecoderConfig
from openafm.models.vision.image_modes import modes_by_tokens
from openafm.models.vision.multimodal_config import MultimodalConfig
from openafm.rl.prompt_sources import PromptSource
from openafm.runtime.engines.base import Engine, InsertedEmbeddings, InsertedEmbeddingsError
from openafm.runtime.engines.image_cache import (
    ImageCache,
    UnreadableImageError,
    image_cache_bytes,
    model_pixels,
    prompt_tokens,
)
from openafm.tokenizer.conversation import ConversationError
from openafm.tokenizer.template import EncodedText, ImageSpan

_KEPT_IMAGES = 256
"""Images whose views are kept: those of a step, which several processes and the reference read again."""


class PromptImages:
    """Reads the images of a source's prompts for a model. Safe to share between threads.

    Args:
        source: returns the bytes of an image by digest.
        model: its resolution modes give the number of tokens of an image.
    """

    def __init__(self, source: PromptSource, model: DecoderConfig) -> None:
        self._source = source
        self._modes = model.image_modes if isinstance(model, MultimodalConfig) else ()
        self._by_tokens = modes_by_tokens(self._modes)
        self.views = lru_cache(_KEPT_IMAGES)(self._views)

    def check(self, images: Sequence[ImageSpan]) -> None:
        """Check that the model takes the images of a prompt.

        Raises:
            InsertedEmbeddingsError: the model reads no images.
            UnreadableImageError: no resolution mode has an image's number of tokens.
        """
        if images and not self._modes:
            raise InsertedEmbeddingsError(
                "prompts have images, and the policy has no vision encoder; start from a multimodal bundle"
            )
        for each in images:
            if each.stop - each.start not in self._by_tokens:
                raise UnreadableImageError(
                    f"an image takes {each.stop - each.start} tokens; the model's resolution modes take"
                    f" {', '.join(map(str, sorted(self._by_tokens)))}"
                )

    def cache(self, engine: Engine) -> ImageCache:
        """Return the embeddings of images under the present weights of an engine."""
        return ImageCache(engine, self._modes, image_cache_bytes())

    def inserted(self, cache: ImageCache, encoded: EncodedText) -> list[InsertedEmbeddings]:
        """Return the embeddings of the images of a prompt.

        Raises:
            UnreadableImageError: the bytes of an image are missing, or cannot be decoded.
        """
        images = {each.digest: self._bytes(each.digest) for each in encoded.images}
        return cache.inserted(prompt_tokens(encoded), images)

    def _views(self, key: ImageKey) -> npt.NDArray[np.uint8]:
        """Return the views of an image, [V, side, side, 3]."""
        mode = self._by_tokens[key.num_tokens]
        return image_views(model_pixels(self._bytes(key.digest), mode), mode)

    def _bytes(self, digest: str) -> bytes:
        try:
            data = self._source.image(digest)
        except (OSError, ConversationError) as error:
            raise UnreadableImageError(f"an image of the prompts is missing ({error}); restore the file") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise UnreadableImageError(f"the image {digest[:12]} of the prompts changed during the run; restore the file")
        return data
