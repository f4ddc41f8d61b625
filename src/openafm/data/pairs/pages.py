"""Documents of pages with the facts about their images that extraction leaves out: opt-outs of images, and adult labels."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from openafm.data.extraction.base import PageExtractor, PageExtractorConfig
from openafm.data.extraction.extractor import DROP_REASONS, ExtractionConfig
from openafm.data.web.documents import Dropped, Page, WebDocument
from openafm.data.web.permissions.opt_out import image_opt_out, meta_elements

IMAGES_OPT_OUT = "images.opt_out"
"""Key in a document's metadata: why the images of its page must not be used for training."""
_RTA = "rta-5042-1996-1400-1577-rta"  # the label of the Association of Sites Advocating Child Protection
_ADULT_RATINGS = frozenset({"adult", "mature", "restricted", _RTA})


@dataclass(frozen=True, kw_only=True)
class ImagePageConfig(PageExtractorConfig):
    """An extractor that also reads what a page declares about its images.

    Opt-outs of images (noimageai, noai, noimageindex) go into the document's metadata. Pages that label themselves adult
    (the header or meta element `rating`) are dropped.
    """

    REASONS: ClassVar[tuple[str, ...]] = (*DROP_REASONS, "adult_page")

    extraction: PageExtractorConfig = field(default_factory=ExtractionConfig)

    def build(self) -> PageExtractor:
        return _ImagePageExtractor(self.extraction.build())


class _ImagePageExtractor(PageExtractor):
    def __init__(self, extractor: PageExtractor) -> None:
        self._extractor = extractor

    def extract(self, page: Page) -> WebDocument | Dropped:
        ratings = {page.headers.get("rating", "").strip().lower()}
        ratings |= {content.strip() for name, content in meta_elements(page.body) if name == "rating"}
        if found := ratings & _ADULT_RATINGS:
            return Dropped(reason="adult_page", detail=f"rating {min(found)}", url=page.url)
        document = self._extractor.extract(page)
        reason = image_opt_out(page.headers, page.body)
        if isinstance(document, Dropped) or not reason:
            return document
        return dataclasses.replace(document, metadata={**document.metadata, IMAGES_OPT_OUT: reason})
