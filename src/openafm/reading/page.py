"""Read a page: the text of an image, from the letters that an encoder finds in views of several sizes.

    reader = open_reader(folder)
    page = reader.read(Path("flyer.png").read_bytes())
    print(page.text)

Letters are as large in some of the views as in training, whatever their size on the page; a line is taken from the view
that is surest of it.
The report has no such reader: its models see images through embeddings (`models/vision`).

Shapes: Y and X pixels of a view, R rows and C columns of cells, P patches, N cells of a patch, D dim, K classes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openafm.bundle import Bundle
from openafm.core.config import Config, ConfigError, dump, from_dict
from openafm.core.errors import OpenAFMError
from openafm.core.libraries import needed
from openafm.core.regular_files import read_document
from openafm.models.vision.config import VisionConfig
from openafm.models.vision.image_modes import ImageModeConfig
from openafm.models.vision.image_modes import Mode as ImageDetail
from openafm.models.vision.letters import CELL, NUM_CLASSES
from openafm.reading.letters import letters_of_view
from openafm.reading.lines import TextLine, lines_of
from openafm.reading.order import in_reading_order
from openafm.reading.spelling import Spelling

SIDES = {"high": (1120, 4), "balanced": (1120, 2), "rapid": (896, 1)}
"""By resolution mode, the side of the square that has as many pixels as the sharpest view, and the number of views in which
the side halves."""
DEFAULT_DETAIL: ImageDetail = "balanced"
_SMALLEST = 0.125  # view, as a share of the side of the sharpest one
FILES = ("reader.json", "reader.safetensors")
_GRAMS, _COUNTS = "spelling.grams", "spelling.counts"
_LARGEST_SCALE = 3.0
_KEPT_PAGES = 16
_HEADING, _USUAL = 0.65, 1.25  # a heading has so much of the largest size, and of the usual size
_STEP = CELL[0]  # the sides of views are a multiple


class PageReaderError(OpenAFMError):
    """A reader is missing, or its files do not fit each other."""


@dataclass(frozen=True, kw_only=True)
class PageReaderConfig(Config):
    """A reader of pages: convolutions with a layer that classifies letters. `digest` is the SHA-256 of the weights' file."""

    vision: VisionConfig
    digest: str = ""

    def __post_init__(self) -> None:
        self.require(not self.vision.layers and bool(self.vision.stem), "the encoder of a reader has convolutions alone")
        self.require(self.vision.patch_side == CELL[0], f"patches must be {CELL[0]} pixels, got {self.vision.patch_side}")


@dataclass(frozen=True, kw_only=True)
class Page:
    """What was read, in reading order. Places are in pixels of an image of this size, set upright."""

    width: int
    height: int
    lines: tuple[TextLine, ...]

    @property
    def text(self) -> str:
        """The lines, one below the other."""
        return "\n".join(line.text for line in self.lines)

    @property
    def markdown(self) -> str:
        """The lines, those in the largest letters as headings: what a text model gets for the image."""
        sizes = sorted(line.font_size for line in self.lines for _ in line.text)
        large = max(_HEADING * sizes[-1], _USUAL * sizes[len(sizes) // 2]) if sizes else 0.0
        return "\n".join(f"{'# ' * (line.font_size >= large)}{line.text}" for line in self.lines)


class PageReader:
    """Reads images on the native kernels, without torch. Safe to share between threads.

    Args:
        weights: arrays of fp16 or fp32: `vision.stem.convolutions.*` of the encoder and `letters.weight`, `letters.bias`.
        spelling: n-grams of the language of the pages; by default none.

    Raises:
        PageReaderError: the weights do not fit the config.
    """

    def __init__(
        self,
        config: PageReaderConfig,
        weights: Mapping[str, NDArray[Any]],
        spelling: Spelling | None = None,
        *,
        num_threads: int = 1,
        kernels: str | None = None,
    ) -> None:
        from openafm.runtime.native.vision_parts import TowerParts
        from openafm.runtime.native.vision_stem import fold_normalization

        self.config, self.spelling = config, spelling
        copies = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in weights.items()}
        found = {name: tensor.shape for name, tensor in weights.items() if tensor.dtype in (np.float16, np.float32)}
        expected = _shapes(config.vision)
        if wrong := sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)):
            raise PageReaderError(
                f"the weights of the page reader do not fit its config: {wrong[0]} is {found.get(wrong[0])}, expected"
                f" {expected.get(wrong[0])}"
            )
        fold_normalization(config.vision, copies)
        self._parts = TowerParts(copies, num_threads, kernels)
        self._one_at_a_time = threading.Lock()
        self._pages: OrderedDict[tuple[str, str], Page] = OrderedDict()

    def read(self, image: bytes, detail: ImageDetail = DEFAULT_DETAIL) -> Page:
        """Return the text of an encoded image. The last few pages are kept.

        Raises:
            UnreadableImageError: the image is damaged, too small, too long, or its format is unknown.
        """
        key = hashlib.sha256(image).hexdigest(), detail
        with self._one_at_a_time:
            page = self._pages.pop(key, None)
        if page is None:
            page = self._read(image, detail)
        with self._one_at_a_time:
            self._pages[key] = page
            while len(self._pages) > _KEPT_PAGES:
                self._pages.popitem(last=False)
        return page

    def _read(self, image: bytes, detail: ImageDetail) -> Page:
        views, (width, height) = self._views(image, detail)
        letters = [letters_of_view(self.probabilities(view_YXC), (width, height)) for view_YXC in views]
        return Page(width=width, height=height, lines=tuple(in_reading_order(lines_of(letters, self.spelling))))

    def probabilities(self, view_YXC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probabilities of the classes in the cells of a view, [R, C, K]."""
        from openafm.runtime.native.vision_stem import convolved

        height, width = len(view_YXC) // CELL[0], view_YXC.shape[1] // CELL[0]
        with self._one_at_a_time:
            x_PD = convolved(self.config.vision, self._parts, view_YXC[None]).reshape(height * width, -1)
            logits_PNK = self._parts.linear("letters", x_PD).reshape(height, -1, NUM_CLASSES)
        exponentials_RCK = np.exp(logits_PNK - logits_PNK.max(-1, keepdims=True))
        probabilities_RCK: NDArray[np.float32] = exponentials_RCK / exponentials_RCK.sum(-1, keepdims=True)
        return probabilities_RCK

    def _views(self, image: bytes, detail: ImageDetail) -> tuple[list[NDArray[np.uint8]], tuple[int, int]]:
        """Return views of an image that keep its shape, the sharpest one first, and the size of the image."""
        from openafm.runtime.engines.image_cache import model_pixels

        with needed("reading an image", "Pillow", "vision"):
            from PIL import Image
            from PIL.Image import Resampling
        side, views_of_half = SIDES[detail]
        picture = Image.fromarray(model_pixels(image, ImageModeConfig(name="balanced", side=side, tokens=1)))
        largest = min(side / math.sqrt(picture.width * picture.height), _LARGEST_SCALE)
        steps = round(-math.log2(_SMALLEST) * views_of_half) + 1
        scales = [largest * 2 ** (-step / views_of_half) for step in range(steps)]
        sizes = [[max(1, round(scale * length / _STEP)) * _STEP for length in picture.size] for scale in scales]
        return [np.asarray(picture.resize(size, Resampling.BICUBIC, reducing_gap=2.0)) for size in sizes], picture.size


def _shapes(vision: VisionConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a reader by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for index, (convolution, num_inputs) in enumerate(zip(vision.stem, vision.stem_inputs, strict=True)):
        name, outputs = f"vision.stem.convolutions.{index}", (convolution.channels,)
        shapes[f"{name}.product.weight"] = (convolution.channels, num_inputs)
        shapes |= dict.fromkeys((f"{name}.product.bias", f"{name}.norm.weight", f"{name}.norm.bias"), outputs)
    num_outputs = CELL[0] // CELL[1] * NUM_CLASSES
    return shapes | {"letters.weight": (num_outputs, vision.dim), "letters.bias": (num_outputs,)}


def open_reader(folder: Path) -> PageReader:
    """Return the reader in a folder with `reader.json` and `reader.safetensors`, loaded once until the files change.

    Raises:
        PageReaderError: a file is missing or damaged.
    """
    try:
        return _loaded(folder, tuple((folder / name).stat().st_mtime_ns for name in FILES))
    except OSError as error:
        raise PageReaderError(f"{folder} has no reader of pages: it needs {' and '.join(FILES)} ({error})") from error


@functools.lru_cache(maxsize=4)
def _loaded(folder: Path, changed: tuple[int, ...]) -> PageReader:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    documents = [read_document(folder / name) for name in FILES]
    try:
        config = from_dict(PageReaderConfig, json.loads(documents[0]))
        if hashlib.sha256(documents[1]).hexdigest() != config.digest:
            raise ValueError(f"{FILES[1]} is not the file of {FILES[0]}")
        tensors = load(documents[1])
        spelling = Spelling(grams_N=tensors.pop(_GRAMS), counts_N=tensors.pop(_COUNTS)) if _GRAMS in tensors else None
        return PageReader(config, tensors, spelling)
    except (SafetensorError, ConfigError, ValueError, KeyError, RecursionError) as error:
        raise PageReaderError(f"{folder}: the reader of pages is damaged: {error}; restore it") from error


def reader_of(bundle: Bundle) -> PageReader:
    """Return the reader that a bundle of `vision.letters` has learned.

    Raises:
        PageReaderError: the bundle has no layer of letters.
    """
    config, weights = reader_parts(bundle)
    return PageReader(config, weights)


def reader_parts(bundle: Bundle) -> tuple[PageReaderConfig, dict[str, NDArray[Any]]]:
    """Return the config and the weights of the reader in a bundle of `vision.letters`."""
    from openafm.models.vision.multimodal_config import LettersModelConfig

    model = bundle.config
    if not isinstance(model, LettersModelConfig):
        raise PageReaderError(f"the bundle {bundle.name} reads no letters; train one with: openafm train vision.letters")
    return PageReaderConfig(vision=model.vision), dict(bundle.tensors())


def write_reader(bundle: Bundle, folder: Path, spelling: Spelling) -> None:
    """Write the reader of a bundle of `vision.letters` into a folder: weights in fp16, and n-grams."""
    from safetensors.numpy import save

    config, weights = reader_parts(bundle)
    tensors = {name: np.ascontiguousarray(tensor, np.float16) for name, tensor in sorted(weights.items())}
    data = save(tensors | {_GRAMS: spelling.grams_N, _COUNTS: spelling.counts_N})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILES[1]).write_bytes(data)
    text = dump(replace(config, digest=hashlib.sha256(data).hexdigest()))
    (folder / FILES[0]).write_text(text, encoding="utf-8")
