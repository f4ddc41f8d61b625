"""The interface of filters, and two that need no model: training opt-outs and length."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from openafm.core.config import Config
from openafm.core.files import file_digest
from openafm.data.web.documents import Dropped, WebDocument

ValueT = TypeVar("ValueT")

_MAX_COUNTED = 256  # different characters that are counted one by one


class DocumentFilter(ABC):
    """Keep, change or drop one document at a time. A filter keeps no state between documents, so that order never matters.

    What a filter measures goes into the document's metadata below the filter's name, such as `language.confidence` or
    `privacy.email`; reports add up these values.
    """

    @abstractmethod
    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        """Return the document, changed or not, or why it is dropped."""


@dataclass(frozen=True, kw_only=True)
class FilterConfig(Config, ABC):
    """Base of the configs of filters. `REASONS` lists every reason for which the filter drops documents.

    `VERSION` is part of the key of cached results: increase it when the results of the filter change.
    """

    REASONS: ClassVar[tuple[str, ...]] = ()
    VERSION: ClassVar[int] = 1

    @abstractmethod
    def build(self) -> DocumentFilter:
        """Return the filter."""

    def input_digests(self) -> tuple[str, ...]:
        """Return the digests of the files that the filter reads; they are part of the key of cached results."""
        return ()


@dataclass(frozen=True, kw_only=True)
class OptOutConfig(FilterConfig):
    """Drop documents whose publisher opted out of training."""

    REASONS: ClassVar[tuple[str, ...]] = ("training_opt_out",)

    def build(self) -> DocumentFilter:
        return OptOutFilter()


class OptOutFilter(DocumentFilter):
    """See `OptOutConfig`."""

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        return dropped(document, "training_opt_out", document.opt_out) if document.opt_out else document


@dataclass(frozen=True, kw_only=True)
class LengthConfig(FilterConfig):
    """Drop documents with fewer or more letters than the limits.

    Letters and digits count, so that markup and separators do not. Chinese, Japanese and Korean write more in a character;
    `min_by_language` has their lower limits.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("too_short", "too_long")

    min_letters: int = 200
    max_letters: int = 1_000_000
    min_by_language: dict[str, int] = field(
        default_factory=lambda: {"zh-Hans": 60, "zh-Hant": 60, "zh": 60, "ja": 80, "ko": 100}
    )

    def __post_init__(self) -> None:
        limits = [self.min_letters, *self.min_by_language.values()]
        self.require(
            all(0 <= limit < self.max_letters for limit in limits), "the minimum must be >= 0 and below max_letters"
        )

    def build(self) -> DocumentFilter:
        return LengthFilter(self)


class LengthFilter(DocumentFilter):
    """See `LengthConfig`."""

    def __init__(self, config: LengthConfig) -> None:
        self._config = config

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        count = count_characters(document.text, str.isalnum)
        minimum = by_language(self._config.min_by_language, document.language, self._config.min_letters)
        if count < minimum:
            return dropped(document, "too_short", f"{count:,} letters, the minimum is {minimum:,}")
        if count > self._config.max_letters:
            return dropped(document, "too_long", f"{count:,} letters, the maximum is {self._config.max_letters:,}")
        return document


@functools.lru_cache(maxsize=4)
def alphabet(text: str) -> frozenset[str]:
    """Return the different characters of a text. The last texts are remembered, because several filters ask for one text."""
    return frozenset(text)


def count_characters(text: str, is_counted: Callable[[str], bool]) -> int:
    """Return the number of characters of a kind.

    The other kinds have few different characters, and `str.count` is several times as fast as a test of each character.
    """
    others = [character for character in alphabet(text) if not is_counted(character)]
    if len(others) > _MAX_COUNTED:
        return sum(map(is_counted, text))
    return len(text) - sum(map(text.count, others))


def digests_of(*files: str) -> tuple[str, ...]:
    """Return the digests of the files that exist; `build` reports the missing ones."""
    return tuple(file_digest(Path(file)) for file in files if Path(file).is_file())


def dropped(document: WebDocument, reason: str, detail: str) -> Dropped:
    """Return the drop of a document."""
    return Dropped(reason=reason, detail=detail, url=document.url)


def with_metadata(document: WebDocument, values: Mapping[str, str]) -> WebDocument:
    """Return the document with these values added to its metadata."""
    return dataclasses.replace(document, metadata={**document.metadata, **values}) if values else document


def by_language(values: Mapping[str, ValueT], language: str, default: ValueT) -> ValueT:
    """Return the value of a language tag; without one that of its prefix (`zh` for `zh-Hans`), then the default."""
    return values.get(language, values.get(language.partition("-")[0], default))
