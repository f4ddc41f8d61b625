"""Reading the images of a batch: decoding and resizing in threads, which Pillow runs in parallel.

The views of an image are a function of its bytes and its mode, so they do not depend on the number of threads.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openafm.core.executors import num_cores
from openafm.data.images.decoding import pixels
from openafm.data.images.manifest import ImageCorpusError
from openafm.data.images.resolution import MODES
from openafm.data.images.shards import ImageCorpus, open_image_corpus
from openafm.data.shards.token_shards import Shards

Views = npt.NDArray[np.uint8]


class ImageReader:
    """Reads views of images in `num_threads` threads (0: one per core). Threads start with the first image."""

    def __init__(self, num_threads: int = 0) -> None:
        self._num_threads = num_threads
        self._threads: ThreadPoolExecutor | None = None
        self._corpora: dict[Path, ImageCorpus] = {}

    def open(self, shards: Shards) -> None:
        """Open the image corpus of token shards.

        Raises:
            ImageCorpusError: it is missing, was changed, or is another one than the shards were packed from.
        """
        images = shards.manifest.images
        if images is None:
            return
        corpus = open_image_corpus(shards.path / images.path)
        if corpus.manifest.digest != images.digest:
            raise ImageCorpusError(f"{corpus.path} is not the corpus that {shards.path} was packed from; pack it again")
        self._corpora[shards.path] = corpus

    def submit(self, shards: Shards, slot: Any) -> Future[Views]:
        """Start reading the image of a slot (IMAGE_SLOTS); the result is [N, side, side, 3]."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._num_threads or num_cores(), thread_name_prefix="images")
        return self._threads.submit(self._views, shards, slot)

    def _views(self, shards: Shards, slot: Any) -> Views:
        corpus, images = self._corpora[shards.path], shards.manifest.images
        assert images is not None  # slots are of shards with images
        mode = MODES[slot["mode"]]
        image = corpus.image_at(int(slot["shard"]), int(slot["row"]))
        return images.resolution.views(pixels(image, side=images.resolution.needed_side(mode)), mode)
