"""Lists of adult and toxic terms by locale: overrides of the learned filters, as data that a person can read and change."""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from openafm.core.config import ConfigError
from openafm.data.filtering.base import DocumentFilter, FilterConfig, digests_of, dropped, with_metadata
from openafm.data.filtering.language import locale_of
from openafm.data.web.documents import Dropped, WebDocument

Terms: TypeAlias = dict[str, dict[str, tuple[str, ...]]]  # terms by category and locale

_EVERYWHERE = "all"
_REMOVE = "remove"
_WITHOUT_SPACES = ("zh", "ja")


@dataclass(frozen=True, kw_only=True)
class WordListConfig(FilterConfig):
    """Drop documents with many listed terms of one category.

    A category drops a document that holds at least `min_distinct` different terms of it and more than `max_per_1000` hits in
    1,000 words (in Chinese and Japanese, 2,000 characters). So one quoted word does not drop an article. `files` are TOML
    files of the form of `word_lists.toml`; they add terms, and take out those of their `remove` tables. A document is
    checked against the terms of all locales (`all`), of its language, and of the locale that its page declares (`en-GB`).
    """

    REASONS: ClassVar[tuple[str, ...]] = ("adult", "toxicity", "word_list")

    categories: tuple[str, ...] = ("adult", "toxicity")
    files: tuple[str, ...] = ()
    seeds: bool = True
    min_distinct: int = 2
    max_per_1000: float = 4.0

    def __post_init__(self) -> None:
        self.require(bool(self.categories), "categories is empty; name at least one")
        self.require(self.min_distinct >= 1, f"min_distinct {self.min_distinct} is below 1")

    def input_digests(self) -> tuple[str, ...]:
        return digests_of(*self.files)

    def build(self) -> DocumentFilter:
        """Return the filter.

        Raises:
            ConfigError: a file is missing or not of the expected form, or no list has a category.
        """
        terms = _read_seeds() if self.seeds else {}
        for file in self.files:
            terms = _merged(terms, _read(Path(file)), file)
        missing = [category for category in self.categories if category not in terms]
        self.require(not missing, f"no list of the category {', '.join(missing)}; the lists have: {', '.join(terms)}")
        return WordListFilter(self, terms)


class WordListFilter(DocumentFilter):
    """See `WordListConfig`. A category without an own reason drops as `word_list`."""

    def __init__(self, config: WordListConfig, terms: Terms) -> None:
        self._config = config
        self._terms = terms
        self._patterns: dict[tuple[str, str], tuple[re.Pattern[str], tuple[str, ...]]] = {}

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        lower = document.text.lower()
        found: dict[str, str] = {}
        locale = locale_of(document)
        for category in self._config.categories:
            pattern, stems = self._pattern(category, locale)
            if not any(map(lower.__contains__, stems)):  # most documents; twice as fast as the pattern
                continue
            hits = Counter(pattern.findall(lower))
            if not hits:
                continue
            rate = 1000 * hits.total() / _num_words(document)
            if len(hits) >= self._config.min_distinct and rate > self._config.max_per_1000:
                reason = category if category in WordListConfig.REASONS else "word_list"
                return dropped(document, reason, f"{category}: {hits.total()} hits, {rate:.1f} in 1,000 words")
            found[f"{category}.hits"] = str(hits.total())
        return with_metadata(document, found)

    def _pattern(self, category: str, language: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
        """Return the pattern of the terms of a category, and strings of which one is in every text that it matches."""
        if (category, language) not in self._patterns:
            lists = self._terms[category]
            tags = (_EVERYWHERE, language.partition("-")[0], language)
            terms = tuple(dict.fromkeys(term for tag in dict.fromkeys(tags) for term in lists.get(tag, ())))
            stems = tuple(term.removesuffix("*") for term in terms)
            self._patterns[category, language] = _compiled(terms, language.startswith(_WITHOUT_SPACES)), stems
        return self._patterns[category, language]


def _num_words(document: WebDocument) -> float:
    if document.language.startswith(_WITHOUT_SPACES):
        return max(1.0, len(document.text) / 2)
    return max(1.0, float(len(document.text.split())))


def _compiled(terms: Iterable[str], is_anywhere: bool) -> re.Pattern[str]:
    ordered = sorted(terms, key=lambda term: (-len(term), term))
    before, after = ("", "") if is_anywhere else (r"\b", r"\b")
    parts = [
        re.escape(term.removesuffix("*")) + (r"\w*" if term.endswith("*") and not is_anywhere else "") for term in ordered
    ]
    return re.compile(f"{before}(?:{'|'.join(parts)}){after}")


@functools.cache
def _read_seeds() -> Terms:
    text = importlib.resources.files("openafm.data.filtering").joinpath("word_lists.toml").read_text("utf-8")
    return _merged({}, tomllib.loads(text), "word_lists.toml")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the word list {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the word list {path} is not TOML in UTF-8: {error}") from error


def _merged(terms: Terms, tables: Mapping[str, Any], name: str) -> Terms:
    """Return the terms with those of a file added or removed."""
    merged = {category: dict(lists) for category, lists in terms.items()}
    for category, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"the word list {name}: expected a table of locales for '{category}', got {table!r}")
        lists = merged.setdefault(category, {})
        for locale, added in table.items():
            if locale != _REMOVE:
                lists[locale] = (*lists.get(locale, ()), *_checked(added, f"{name}: {category}.{locale}"))
        for locale, removed in table.get(_REMOVE, {}).items():
            out = _checked(removed, f"{name}: {category}.{_REMOVE}.{locale}")
            lists[locale] = tuple(term for term in lists.get(locale, ()) if term not in out)
    return merged


def _checked(terms: object, place: str) -> tuple[str, ...]:
    if not isinstance(terms, list) or not all(isinstance(term, str) and term.strip("* ") for term in terms):
        raise ConfigError(f"the word list {place}: expected a list of terms, got {terms!r}")
    return tuple(term.lower() for term in terms)
