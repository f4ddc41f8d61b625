"""The interface of filters: a config whose `build` returns an object that keeps, changes or drops one document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from openafm.core.config import Config
from openafm.data.web.documents import Dropped, WebDocument


class DocumentFilter(ABC):
    """Decides about one document at a time, from the document alone."""

    @abstractmethod
    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        """Return the document, a changed copy of it, or the reason for a drop."""


@dataclass(frozen=True, kw_only=True)
class FilterConfig(Config, ABC):
    """Base of the filters. `REASONS` lists every reason for which the filter drops documents.

    `VERSION` is part of the key of cached results: increase it when the results of the filter change.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[int] = 1

    @abstractmethod
    def build(self) -> DocumentFilter:
        """Return the filter."""
