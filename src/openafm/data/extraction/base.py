"""The interface of extraction: a config whose `build` returns an object that turns a page into a document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from openafm.core.config import Config
from openafm.data.web.documents import Dropped, Page, WebDocument


class PageExtractor(ABC):
    """Turns one page into one document."""

    @abstractmethod
    def extract(self, page: Page) -> WebDocument | Dropped:
        """Return the document of a page, or the reason for a drop."""


@dataclass(frozen=True, kw_only=True)
class PageExtractorConfig(Config, ABC):
    """Base of the extractors. `REASONS` lists every reason for a drop.

    `VERSION` is part of the key of cached results: increase it when the results of the extractor change.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[int] = 1

    @abstractmethod
    def build(self) -> PageExtractor:
        """Return the extractor."""
