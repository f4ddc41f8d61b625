"""Few, soft heuristics: each measures a text and adds to a penalty; only the sum drops a document.

Every heuristic is a config with a bound for each language. Further heuristics are classes below `HeuristicConfig`.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
import tomllib
import unicodedata
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from openafm.core.config import Config
from openafm.data.filtering.base import (
    DocumentFilter,
    FilterConfig,
    alphabet,
    by_language,
    count_characters,
    dropped,
    with_metadata,
)
from openafm.data.web.documents import Dropped, WebDocument

PENALTY_KEY = "heuristics.penalty"
MAX_CHARACTERS = 20_000
"""Only so many characters of a document are measured, so that the time of a page of any size is bounded."""

_SENTENCE_ENDS = frozenset('.!?:;…。！？：；」』”"»)）')
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


class TextFeatures:
    """Parts of a text that several heuristics read, computed once on demand. Code blocks are left out."""

    def __init__(self, text: str, language: str) -> None:
        self.text = unicodedata.normalize("NFC", _CODE.sub("", text[:MAX_CHARACTERS]))
        self.language = language

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines that hold anything, stripped."""
        return [stripped for line in self.text.split("\n") if (stripped := line.strip())]

    @functools.cached_property
    def lower(self) -> str:
        """The text in lower case."""
        return self.text.lower()

    @functools.cached_property
    def words(self) -> list[str]:
        """The words in lower case: runs of letters, digits and underscores."""
        text = self.lower
        for character in set("".join(alphabet(self.text)).lower()):  # faster than a regular expression
            if not character.isalnum() and character != "_":
                text = text.replace(character, " ")
        return text.split()

    @functools.cached_property
    def num_visible(self) -> int:
        """The number of characters that are not white space."""
        return len(self.text) - sum(self.text.count(each) for each in alphabet(self.text) if each.isspace())


@dataclass(frozen=True, kw_only=True)
class HeuristicConfig(Config, ABC):
    """One measure of a text and the bounds of its penalty.

    The penalty is 0 up to `good`, `weight` from `bad` on, and linear between them; `good` may be above `bad`.
    `bounds_by_language` holds (good, bad) of languages that differ. With `drops`, the full penalty alone drops a document.
    """

    NAME: ClassVar[str]

    good: float
    bad: float
    bounds_by_language: dict[str, tuple[float, float]] = field(default_factory=dict)
    weight: float = 0.5
    drops: bool = False

    def __post_init__(self) -> None:
        bounds = [(self.good, self.bad), *self.bounds_by_language.values()]
        self.require(all(good != bad for good, bad in bounds), "good and bad are equal; a soft bound needs two values")
        self.require(self.weight > 0, f"weight {self.weight} is not above 0")

    @abstractmethod
    def measure(self, features: TextFeatures) -> float | None:
        """Return the measure; None if it does not apply to the text or its language."""

    def penalty(self, features: TextFeatures) -> float:
        """Return the penalty of a text, from 0 to `weight`."""
        value = self.measure(features)
        if value is None:
            return 0.0
        good, bad = by_language(self.bounds_by_language, features.language, (self.good, self.bad))
        return self.weight * min(1.0, max(0.0, (value - good) / (bad - good)))


@dataclass(frozen=True, kw_only=True)
class RepetitionConfig(HeuristicConfig):
    """The compressed size as a share of the size. Repeated phrases compress well; short texts are not measured."""

    NAME: ClassVar[str] = "repetition"

    good: float = 0.30
    bad: float = 0.12
    min_bytes: int = 1000

    def measure(self, features: TextFeatures) -> float | None:
        data = features.text.encode("utf-8", "replace")
        return len(zlib.compress(data, 1)) / len(data) if len(data) >= self.min_bytes else None


@dataclass(frozen=True, kw_only=True)
class RepeatedLinesConfig(HeuristicConfig):
    """The share of characters in lines that occurred before in the text."""

    NAME: ClassVar[str] = "repeated_lines"

    good: float = 0.1
    bad: float = 0.5

    def measure(self, features: TextFeatures) -> float | None:
        seen: set[str] = set()
        repeated = total = 0
        for line in features.lines:
            total += len(line)
            repeated += len(line) if line in seen else 0
            seen.add(line)
        return repeated / total if total else None


@dataclass(frozen=True, kw_only=True)
class LettersConfig(HeuristicConfig):
    """The share of letters among the characters that are not white space; low in tables of numbers, menus and debris."""

    NAME: ClassVar[str] = "letters"

    good: float = 0.75
    bad: float = 0.45

    def measure(self, features: TextFeatures) -> float | None:
        return count_characters(features.text, str.isalpha) / features.num_visible if features.num_visible else None


@dataclass(frozen=True, kw_only=True)
class SentencesConfig(HeuristicConfig):
    """The share of characters in lines that end like a sentence; low in menus and lists of links."""

    NAME: ClassVar[str] = "sentences"

    good: float = 0.5
    bad: float = 0.1

    def measure(self, features: TextFeatures) -> float | None:
        total = sum(map(len, features.lines))
        return sum(len(line) for line in features.lines if line[-1] in _SENTENCE_ENDS) / total if total else None


@dataclass(frozen=True, kw_only=True)
class FunctionWordsConfig(HeuristicConfig):
    """The share of function words; low in lists of keywords and products.

    `function_words.toml` has words by language, endings of words for Korean, characters for Chinese and Japanese.
    """

    NAME: ClassVar[str] = "function_words"

    good: float = 0.20
    bad: float = 0.05
    bounds_by_language: dict[str, tuple[float, float]] = field(
        default_factory=lambda: {
            "tr": (0.05, 0.01),
            "vi": (0.06, 0.01),
            "ko": (0.25, 0.10),
            "zh": (0.08, 0.02),
            "ja": (0.25, 0.08),
        }
    )

    def measure(self, features: TextFeatures) -> float | None:
        known = _function_words().get(features.language, {})
        if "characters" in known:
            return sum(map(known["characters"].__contains__, features.text)) / max(1, features.num_visible)
        if not known or not features.words:
            return None
        if "endings" in known:
            return sum(word[-1] in known["endings"] for word in features.words) / len(features.words)
        return sum(map(known["words"].__contains__, features.words)) / len(features.words)


@dataclass(frozen=True, kw_only=True)
class BoilerplateConfig(HeuristicConfig):
    """The share of characters in lines with phrases of notices, placeholders and error pages (`boilerplate.toml`)."""

    NAME: ClassVar[str] = "boilerplate"

    good: float = 0.1
    bad: float = 0.5

    def measure(self, features: TextFeatures) -> float | None:
        found = [phrase for phrase in _boilerplate(features.language) if phrase in features.lower]
        if not features.lines or not found:
            return 0.0
        hits = sum(len(line) for line in features.lines if any(map(line.lower().__contains__, found)))
        return hits / sum(map(len, features.lines))


@dataclass(frozen=True, kw_only=True)
class HeuristicsConfig(FilterConfig):
    """Add up the penalties of all heuristics and drop documents above `max_penalty`.

    With the default weights two full penalties, or several partial ones, drop a document.
    """

    REASONS: ClassVar[tuple[str, ...]] = ("heuristics", "heuristic_alone")

    heuristics: tuple[HeuristicConfig, ...] = field(
        default_factory=lambda: (
            RepetitionConfig(),
            RepeatedLinesConfig(),
            LettersConfig(),
            SentencesConfig(),
            FunctionWordsConfig(),
            BoilerplateConfig(),
        )
    )
    max_penalty: float = 0.9

    def __post_init__(self) -> None:
        alone = [each.NAME for each in self.heuristics if each.weight > self.max_penalty and not each.drops]
        self.require(
            not alone, f"the weight of {', '.join(alone)} is above max_penalty {self.max_penalty}; set drops to allow that"
        )

    def build(self) -> DocumentFilter:
        return HeuristicsFilter(self)


class HeuristicsFilter(DocumentFilter):
    """See `HeuristicsConfig`."""

    def __init__(self, config: HeuristicsConfig) -> None:
        self._config = config

    def apply(self, document: WebDocument) -> WebDocument | Dropped:
        features = TextFeatures(document.text, document.language)
        penalties = [(each, each.penalty(features)) for each in self._config.heuristics]
        total = sum(penalty for _, penalty in penalties)
        detail = ", ".join(f"{each.NAME} {penalty:.2f}" for each, penalty in penalties if penalty)
        if any(each.drops and penalty >= each.weight for each, penalty in penalties):
            return dropped(document, "heuristic_alone", detail)
        if total > self._config.max_penalty:
            return dropped(document, "heuristics", detail)
        return with_metadata(document, {PENALTY_KEY: f"{total:.3f}"})


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(importlib.resources.files("openafm.data.filtering").joinpath(name).read_text("utf-8"))


@functools.cache
def _function_words() -> dict[str, dict[str, frozenset[str]]]:
    tables = _read_toml("function_words.toml")
    return {
        language: {kind: frozenset(text if kind == "characters" else text.split()) for kind, text in table.items()}
        for language, table in tables.items()
    }


@functools.cache
def _boilerplate(language: str) -> tuple[str, ...]:
    phrases = _read_toml("boilerplate.toml")
    return (*phrases["all"], *phrases.get(language, []))
