"""Embeddings of images, computed once for all sequences of an engine.

Shapes: L tokens of an image, D model dim.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from openafm.core.errors import OpenAFMError
from openafm.data.images.decoding import pixels, stored_image
from openafm.data.images.resolution import image_views
from openafm.data.web.documents import Dropped
from openafm.models.vision.image_modes import ImageModeConfig, modes_by_tokens
from openafm.runtime.engines.base import Engine, InsertedEmbeddings
from openafm.runtime.engines.cache_limits import cache_limit
from openafm.runtime.engines.sequence import Insertion, PromptTokens
from openafm.tokenizer.template import EncodedText

LIMIT = "OPENAFM_IMAGE_CACHE_MB"
DEFAULT_MB = 128  # at the size of on_device.base, 100 images in balanced mode
_ADVICE = {
    "too_small": "pass a larger image",
    "aspect_ratio": "crop it, or pass parts of it as several images",
    "too_many_pixels": "make it smaller",
    "too_many_bytes": "make it smaller",
    "damaged": "restore the file",
}


class UnreadableImageError(OpenAFMError):
    """The bytes of an image are missing, or the model cannot take the image: damaged, too small, too long, unknown."""


def prompt_tokens(encoded: EncodedText) -> PromptTokens:
    """Return the tokens of a prompt; the digest of an insertion names the image and its number of tokens."""
    spans = (Insertion(each.start, each.stop, f"{each.digest}:{each.stop - each.start}") for each in encoded.images)
    return PromptTokens(encoded.tokens, tuple(spans))


class ImageCache:
    """Embeddings of images by digest, number of tokens and version of the weights; the least recently used are dropped.

    Safe to share between threads.

    Args:
        engine: encodes the images.
        modes: the resolution modes of the model; an image has the mode with its number of tokens.
        most_bytes: limit for all embeddings; 0 disables the cache.
    """

    def __init__(self, engine: Engine, modes: Sequence[ImageModeConfig], most_bytes: int) -> None:
        self._engine, self._most_bytes = engine, most_bytes
        self._modes = modes_by_tokens(modes)
        self._lock = threading.Lock()  # never held during a call of the engine
        self._embeddings: OrderedDict[tuple[str, int], NDArray[np.float32]] = OrderedDict()
        self.num_bytes = 0

    def inserted(self, prompt: PromptTokens, images: Mapping[str, bytes]) -> list[InsertedEmbeddings]:
        """Return the embeddings of the images of a prompt. `images` are their bytes by SHA-256 in hex.

        Raises:
            UnreadableImageError: the bytes of an image are missing, or cannot be decoded.
        """
        version = self._engine.weights_version  # before they are computed: an update meanwhile makes them stale
        return [
            InsertedEmbeddings(start, self._embedded(digest, images), digest, weights_version=version)
            for start, _, digest in prompt.insertions
        ]

    def _embedded(self, digest: str, images: Mapping[str, bytes]) -> NDArray[np.float32]:
        key = digest, self._engine.weights_version
        with self._lock:
            if key in self._embeddings:
                self._embeddings.move_to_end(key)
                return self._embeddings[key]
        image, _, num_tokens = digest.partition(":")
        vectors_LD = self._computed(image, int(num_tokens), images.get(image))
        with self._lock:
            if key not in self._embeddings and vectors_LD.nbytes <= self._most_bytes:
                self._embeddings[key] = vectors_LD
                self.num_bytes += vectors_LD.nbytes
            self._evict(self.num_bytes - self._most_bytes)
        return vectors_LD

    def free(self, num_bytes: int) -> int:
        """Evict embeddings until `num_bytes` are free or none is left. Return the bytes freed."""
        with self._lock:
            return self._evict(num_bytes)

    def _evict(self, num_bytes: int) -> int:
        before = self.num_bytes
        while self._embeddings and before - self.num_bytes < num_bytes:
            self.num_bytes -= self._embeddings.popitem(last=False)[1].nbytes
        return before - self.num_bytes

    def _computed(self, digest: str, num_tokens: int, data: bytes | None) -> NDArray[np.float32]:
        # A wrong image under this digest would be seen by other sessions.
        if data is None or hashlib.sha256(data).hexdigest() != digest:
            raise UnreadableImageError(
                f"the bytes of the image {digest[:12]} are missing; pass images= to Transcript.from_dict, or attach it to a"
                " new prompt"
            )
        mode = self._modes[num_tokens]
        views_VYXC = image_views(model_pixels(data, mode), mode)
        if len(views_VYXC) * mode.tokens != num_tokens:
            raise UnreadableImageError(
                f"the transcript counts {num_tokens} tokens for the image {digest[:12]}, this model needs"
                f" {len(views_VYXC) * mode.tokens}: another model wrote the transcript; attach the image to a new prompt"
            )
        vectors_LD = self._engine.encode_views(views_VYXC, mode.tokens)
        vectors_LD.flags.writeable = False
        return vectors_LD


def model_pixels(data: bytes, mode: ImageModeConfig) -> NDArray[np.uint8]:
    """Return the pixels of an image as in training: upright, on white, 8-bit RGB, [H, W, 3].

    Raises:
        UnreadableImageError: the image is damaged, of an unknown format, or has sides that training images do not have.
    """
    stored = stored_image(data)
    if isinstance(stored, Dropped):
        problem, advice = stored.reason.replace("_", " "), _ADVICE.get(stored.reason, "convert it to PNG or JPEG")
        raise UnreadableImageError(f"the model cannot take the image ({problem}): {stored.detail}; {advice}")
    return pixels(stored, side=mode.needed_side)


def image_cache_bytes() -> int:
    """Return OPENAFM_IMAGE_CACHE_MB in bytes, or the default.

    Raises:
        CacheLimitError: the variable is not a number of megabytes.
    """
    return cache_limit(LIMIT, DEFAULT_MB)
