"""Image data from crawled pages as one typed config: pages, images, filters of pairs, duplicates, interleaved documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from openafm.core.config import Config
from openafm.core.executors import ExecutorConfig
from openafm.core.worker_process import LimitsConfig
from openafm.data.filtering.base import FilterConfig
from openafm.data.images.decoding import ImageLimits
from openafm.data.images.duplicates import ImageDuplicatesConfig
from openafm.data.pairs.filters import PairFilterConfig
from openafm.data.pipeline.config import LIMITS, LOCAL, StageConfig

RESOLUTION_REASONS = ("missing", "redirects", "training_opt_out", "image_opt_out", "repeated_in_page")
"""Reasons for which an image of a page is dropped before the filters: the WARC files have no response for it, its redirects
do not end, its page or the image itself must not be used for training, or the page shows it again with the same text."""
SELECTION_REASONS = ("duplicate_pair", "duplicate_image", "repeated_text")
DOCUMENT_REASONS = ("too_few_images", "too_many_images", "too_little_text")
PLACED_REASONS = ("repeated_image", "document")
"""Reasons for which an image of an interleaved document is dropped, beside those above: too many documents show it, or its
document is dropped."""


@dataclass(frozen=True, kw_only=True)
class SelectionConfig(Config):
    """Which pairs are kept among those with similar images or equal texts; the best alignment first, then the earliest id.

    One pair of each text is kept for an image and its near-duplicates, at most `max_texts_per_image` in all, and at most
    `max_images_per_text` pairs of a text, because a text of many images describes none of them. 0 is no limit.
    Memory of the reduction: `memory_mb`.
    """

    max_texts_per_image: int = 4
    max_images_per_text: int = 10
    memory_mb: int = 256

    def __post_init__(self) -> None:
        smallest = min(self.max_texts_per_image, self.max_images_per_text)
        self.require(smallest >= 0, f"limits must be 0 (none) or more, got {smallest}")
        self.require(self.memory_mb >= 1, f"memory_mb must be at least 1, got {self.memory_mb}")


@dataclass(frozen=True, kw_only=True)
class InterleavedConfig(Config):
    """Which documents keep their images in place. `stages` filter and deduplicate their texts.

    An image that `max_documents_per_image` documents show, near-duplicates included, is a logo or an advertisement and is
    taken out. A document needs `min_images` to `max_images` others, and `min_letters` of text.
    """

    stages: tuple[StageConfig, ...] = ()
    min_images: int = 1
    max_images: int = 30
    min_letters: int = 100
    max_documents_per_image: int = 10

    def __post_init__(self) -> None:
        self.require(
            1 <= self.min_images <= self.max_images,
            f"min_images {self.min_images} must be from 1 to max_images {self.max_images}",
        )


@dataclass(frozen=True, kw_only=True)
class PairsConfig(Config):
    """Image-text pairs and interleaved documents from WARC files.

    `pages` are the stages from pages to documents; their drops are those of the text pipeline. `text_filters` see the alt
    text of a pair as a document: languages, word lists, personal data. `pair_filters` see image, text and page. `duplicates`
    finds near-duplicate images for `selection` and `interleaved`; None: only equal ones. `opt_outs` "keep" keeps images that
    must not be used for training, marked in `opt_out`. `interleaved` None makes pairs only.

    Shards, limits and executor are those of `PipelineConfig`.
    """

    recipe: str = ""
    pages: tuple[StageConfig, ...]
    images: ImageLimits = field(default_factory=lambda: ImageLimits(min_side=100, max_aspect=4.0))
    text_filters: tuple[FilterConfig, ...] = ()
    pair_filters: tuple[PairFilterConfig, ...] = ()
    duplicates: ImageDuplicatesConfig | None = field(default_factory=ImageDuplicatesConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    interleaved: InterleavedConfig | None = field(default_factory=InterleavedConfig)
    opt_outs: Literal["drop", "keep"] = "drop"
    limits: LimitsConfig = LIMITS
    executor: ExecutorConfig = LOCAL
    shard_mb: int = 64
    max_quarantined: float = 0.2
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.require(len(self.pages) > 0, "pages is empty; its first stage extracts documents from pages")
        self.require(self.shard_mb >= 1, f"shard_mb must be at least 1, got {self.shard_mb}")
