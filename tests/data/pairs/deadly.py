"""A method of matching that ends its worker at one image."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from crawled import picture

from openafm.data.images.decoding import stored_image
from openafm.data.images.documents import StoredImage
from openafm.data.pairs.matching import ExactMatcher, ImageMatchConfig, ImageMatcher


@dataclass(frozen=True, kw_only=True)
class DeadlyMatchConfig(ImageMatchConfig):
    """Ends the process at `picture(666)`."""

    def build(self) -> ImageMatcher:
        return DeadlyMatcher()


class DeadlyMatcher(ExactMatcher):
    """See `DeadlyMatchConfig`."""

    def signature(self, digest: str, pixels: npt.NDArray[np.uint8]) -> Any:
        poison = stored_image(picture(666))
        if isinstance(poison, StoredImage) and digest == poison.digest:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().signature(digest, pixels)
