"""Instructions about what a response contains: keywords, letters, languages, placeholders, a postscript."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from openafm.evaluation.instructions.base import InstructionConfig, Relation, holds, occurrences

if TYPE_CHECKING:
    from openafm.data.filtering.language import LanguageIdentifier

_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")


@dataclass(frozen=True, kw_only=True)
class KeywordsConfig(InstructionConfig):
    """All keywords occur."""

    ID = "keywords:existence"

    keywords: tuple[str, ...]

    def follows(self, response: str) -> bool:
        return all(occurrences(keyword, response) for keyword in self.keywords)


@dataclass(frozen=True, kw_only=True)
class KeywordFrequencyConfig(InstructionConfig):
    """A keyword occurs at least, or less than, `frequency` times."""

    ID = "keywords:frequency"

    keyword: str
    frequency: int
    relation: Relation = "at least"

    def follows(self, response: str) -> bool:
        return holds(occurrences(self.keyword, response), self.relation, self.frequency)


@dataclass(frozen=True, kw_only=True)
class ForbiddenWordsConfig(InstructionConfig):
    """No forbidden word occurs."""

    ID = "keywords:forbidden_words"

    forbidden_words: tuple[str, ...]

    def follows(self, response: str) -> bool:
        return not any(occurrences(word, response) for word in self.forbidden_words)


@dataclass(frozen=True, kw_only=True)
class LetterFrequencyConfig(InstructionConfig):
    """A character occurs at least, or less than, `let_frequency` times, in any case."""

    ID = "keywords:letter_frequency"

    letter: str
    let_frequency: int
    let_relation: Relation = "at least"

    def __post_init__(self) -> None:
        self.require(len(self.letter) == 1, f"letter is one character, got {self.letter!r}")

    def follows(self, response: str) -> bool:
        return holds(response.casefold().count(self.letter.casefold()), self.let_relation, self.let_frequency)


@dataclass(frozen=True, kw_only=True)
class ResponseLanguageConfig(InstructionConfig):
    """The response is in one language, given by its code."""

    ID = "language:response_language"

    language: str

    def follows(self, response: str) -> bool:
        found = _identifier().probabilities(response[:5000])
        if not found:
            return True  # a text without letters
        best = max(found, key=lambda tag: found[tag])
        return _language(best) == _language(self.language)


@dataclass(frozen=True, kw_only=True)
class PlaceholdersConfig(InstructionConfig):
    """At least `num_placeholders` placeholders in square brackets, such as [address]."""

    ID = "detectable_content:number_placeholders"

    num_placeholders: int

    def follows(self, response: str) -> bool:
        return len(_PLACEHOLDER.findall(response)) >= self.num_placeholders


@dataclass(frozen=True, kw_only=True)
class PostscriptConfig(InstructionConfig):
    """A postscript that starts with `postscript_marker`, such as P.S. or P.P.S, at the start of a line."""

    ID = "detectable_content:postscript"

    postscript_marker: str

    def follows(self, response: str) -> bool:
        letters = [re.escape(letter) for letter in self.postscript_marker if letter.isalnum()]
        marker = r"\.?\s?".join(letters) if letters else re.escape(self.postscript_marker)
        return re.search(rf"^[\s*_]*{marker}\b.*\S", response, re.IGNORECASE | re.MULTILINE) is not None


@cache
def _identifier() -> LanguageIdentifier:
    from openafm.data.filtering.language import Py3LangidConfig

    return Py3LangidConfig().build()


def _language(tag: str) -> str:
    code = tag.partition("-")[0].lower()
    return "nb" if code in ("no", "nn") else code
