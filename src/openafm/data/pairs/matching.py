"""Groups of near-duplicate images: the interface, and the method without similarity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from openafm.core.config import Config

Groups = npt.NDArray[np.uint64]


class ImageMatcher(ABC):
    """Finds groups of images that show the same.

    A signature is a fixed number of bytes for each image. Groups depend on the set of signatures alone, not on their order.
    """

    signature_bytes: int

    @abstractmethod
    def signature(self, digest: str, pixels: npt.NDArray[np.uint8]) -> bytes:
        """Return the signature of an image with this SHA-256 in hex and these pixels [H, W, 3]."""

    @abstractmethod
    def groups(self, signatures: npt.NDArray[Any], out: Groups, folder: Path) -> None:
        """Write the group of each image to `out`.

        `signatures` are the rows of all images, in a file (`S` dtype of `signature_bytes`). Working files are in `folder`.
        """


@dataclass(frozen=True, kw_only=True)
class ImageMatchConfig(Config, ABC):
    """Base of the methods. `VERSION` is part of the key of cached results."""

    VERSION: ClassVar[int] = 1

    @abstractmethod
    def build(self) -> ImageMatcher:
        """Return the method."""


@dataclass(frozen=True, kw_only=True)
class ExactMatchConfig(ImageMatchConfig):
    """Images are equal if their stored bytes are."""

    def build(self) -> ImageMatcher:
        return ExactMatcher()


class ExactMatcher(ImageMatcher):
    """See `ExactMatchConfig`. The group is a part of the digest."""

    signature_bytes = 8

    def signature(self, digest: str, pixels: npt.NDArray[np.uint8]) -> bytes:
        return bytes.fromhex(digest[:16])

    def groups(self, signatures: npt.NDArray[Any], out: Groups, folder: Path) -> None:
        out[:] = np.asarray(signatures).view(np.uint8).reshape(-1, 8).view("<u8")[:, 0]
