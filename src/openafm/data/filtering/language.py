"""Language identification: the language of a document, and documents in languages that the corpus does not take."""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from openafm.core.config import Config
from openafm.data.filtering.base import DocumentFilter, FilterConfig, dropped, with_metadata
from openafm.data.filtering.seed_model import seed_model
from openafm.data.web.documents import Dropped, WebDocument

LANGUAGES = ("en", "da", "nl", "fr", "de", "it", "nb", "pt", "es", "sv", "tr", "zh-Hans", "zh-Hant", "ja", "ko", "vi")
CONFIDENCE_KEY = "language.confidence"
DECLARED_KEY = "language.declared"
"""The language tag that the page declares, if it is another one than the identified language."""

_NOT_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\(?https?://[^\s)]+\)?|[#*_|>\[\]=~\d-]+", re.DOTALL)
_SPACES = re.compile(r"\s+")
_NUM_WINDOWS = 4
_MIN_EVIDENCE = 0.05  # without any feature the best of about 100 languages has 0.01 to 0.02
_SEED_CODES = {"no": "nb", "nn": "nb"}  # the corpus has one Norwegian


class LanguageIdentifier(ABC):
    """Give the probability of each language of a text."""

    @abstractmethod
    def probabilities(self, text: str) -> Mapping[str, float]:
        """Return probabilities by language tag; they add up to 1, or the mapping is empty for a text without evidence."""


@dataclass(frozen=True, kw_only=True)
class IdentifierConfig(Config, ABC):
    """Base of the configs of language identifiers."""

    @abstractmethod
    def build(self) -> LanguageIdentifier:
        """Return the identifier."""


@dataclass(frozen=True, kw_only=True)
class Py3LangidConfig(IdentifierConfig):
    """py3langid: naive Bayes over byte n-grams, about 100 languages; its model comes with the package."""

    def build(self) -> LanguageIdentifier:
        return Py3LangidIdentifier()


class Py3LangidIdentifier(LanguageIdentifier):
    """See `Py3LangidConfig`. Chinese is divided into its two scripts."""

    def __init__(self) -> None:
        self._model = seed_model()

    def probabilities(self, text: str) -> Mapping[str, float]:
        ranking = self._model.ranking(text)
        if ranking[0][1] < _MIN_EVIDENCE:
            return {}
        merged: dict[str, float] = {}
        for code, probability in ranking:
            tag = chinese_script(text) if code == "zh" else _SEED_CODES.get(code, code)
            merged[tag] = merged.get(tag, 0.0) + probability
        return merged


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(FilterConfig):
    """Set the language of documents; drop those in a language that is not configured, or in none.

    The identifier reads about `max_bytes` of prose (UTF-8), in equal parts from four places of the text: its time grows with
    the length, its accuracy does not. A document is dropped as `other_language` if the languages that are not configured
    have more than `max_other` of the probability, otherwise the best configured language is taken; languages close to a
    configured one (Galician beside Portuguese) then do not cost documents. The confidence is the share of the best language
    among the configured ones.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("other_language", "unknown_language")

    languages: tuple[str, ...] = LANGUAGES
    identifier: IdentifierConfig = field(default_factory=Py3LangidConfig)
    max_bytes: int = 400
    max_other: float = 0.8
    min_confidence: float = 0.5

    def __post_init__(self) -> None:
        self.require(bool(self.languages), "languages is empty; name at least one")
        self.require(self.max_bytes >= 100, f"max_bytes {self.max_bytes} is below 100")
        self.require(0 < self.max_other <= 1, f"max_other {self.max_other} is not in (0, 1]")
        self.require(0 <= self.min_confidence <= 1, f"min_confidence {self.min_confidence} is not in [0, 1]")

    def build(self) -> DocumentFilter:
        return LanguageFilter(self)


class LanguageFilter(DocumentFilter):
    """See `LanguageConfig`."""

    def __init__(self, config: LanguageConfig) -> None:
        self._config = config
        self._identifier = config.identifier.build()

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        config = self._config
        found = self._identifier.probabilities(sample_of(document.text, config.max_bytes))
        if not found:
            return dropped(document, "unknown_language", "no text that shows a language")
        known = {language: found.get(language, 0.0) for language in config.languages}
        total = sum(known.values())
        if 1 - total > config.max_other:
            first = max(found, key=lambda language: (found[language], language))
            return dropped(document, "other_language", f"{first} with probability {found[first]:.2f}")
        language = max(known, key=lambda each: known[each])
        confidence = known[language] / total
        if confidence < config.min_confidence:
            return dropped(document, "unknown_language", f"{language} with confidence {confidence:.2f}")
        values = {CONFIDENCE_KEY: f"{confidence:.4f}"}
        if document.language not in ("", language):
            values[DECLARED_KEY] = document.language
        return with_metadata(dataclasses.replace(document, language=language), values)


def locale_of(document: WebDocument) -> str:
    """Return the tag that the page declares if it is a region of the document's language (`en-GB`), else the language."""
    declared = document.metadata.get(DECLARED_KEY, "")
    return declared if declared.startswith(f"{document.language}-") else document.language


def sample_of(text: str, max_bytes: int) -> str:
    """Return prose of a Markdown text without code, links and digits: about `max_bytes` in UTF-8, from four places."""
    head = text[:400]
    bytes_per_character = len(head.encode("utf-8", "replace")) / max(1, len(head))
    size = int(max_bytes / max(1.0, bytes_per_character) / _NUM_WINDOWS)
    if len(text) <= 2 * _NUM_WINDOWS * size:
        return _prose(text)[: _NUM_WINDOWS * size]
    # Twice the size is read of each place, because markup is removed from it.
    starts = [place * (len(text) - 2 * size) // (_NUM_WINDOWS - 1) for place in range(_NUM_WINDOWS)]
    return " ".join(_prose(text[start : start + 2 * size])[:size] for start in starts)


def chinese_script(text: str) -> str:
    """Return `zh-Hant` if more characters of the text are in Big5 than in GB 2312, otherwise `zh-Hans`."""
    traditional = len(text.encode("big5", "ignore"))
    return "zh-Hant" if traditional > len(text.encode("gb2312", "ignore")) else "zh-Hans"


def _prose(text: str) -> str:
    return _SPACES.sub(" ", _NOT_PROSE.sub(" ", text)).strip()
