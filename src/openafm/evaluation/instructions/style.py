"""Instructions about case, punctuation, and how a response starts and ends."""

from __future__ import annotations

from dataclasses import dataclass

from openafm.evaluation.instructions.base import InstructionConfig, Relation, holds, words

_QUOTES = (('"', '"'), ("“", "”"), ("„", "“"), ("«", "»"), ("「", "」"))


@dataclass(frozen=True, kw_only=True)
class CapitalWordsConfig(InstructionConfig):
    """At least, or less than, `capital_frequency` words in capital letters only."""

    ID = "change_case:capital_word_frequency"

    capital_frequency: int
    capital_relation: Relation = "at least"

    def follows(self, response: str) -> bool:
        return holds(sum(word.isupper() for word in words(response)), self.capital_relation, self.capital_frequency)


@dataclass(frozen=True, kw_only=True)
class AllCapitalConfig(InstructionConfig):
    """No lower-case letter."""

    ID = "change_case:english_capital"

    def follows(self, response: str) -> bool:
        return response.isupper()


@dataclass(frozen=True, kw_only=True)
class AllLowercaseConfig(InstructionConfig):
    """No capital letter."""

    ID = "change_case:english_lowercase"

    def follows(self, response: str) -> bool:
        return response.islower()


@dataclass(frozen=True, kw_only=True)
class NoCommaConfig(InstructionConfig):
    """No comma, in any script."""

    ID = "punctuation:no_comma"

    def follows(self, response: str) -> bool:
        return not any(comma in response for comma in ",，、،")


@dataclass(frozen=True, kw_only=True)
class EndPhraseConfig(InstructionConfig):
    """The response ends with a phrase; quotation marks after it are allowed."""

    ID = "startend:end_checker"

    end_phrase: str

    def follows(self, response: str) -> bool:
        return response.strip().rstrip("\"'”’").casefold().endswith(self.end_phrase.strip().rstrip("\"'”’").casefold())


@dataclass(frozen=True, kw_only=True)
class QuotationConfig(InstructionConfig):
    """The whole response is in double quotation marks."""

    ID = "startend:quotation"

    def follows(self, response: str) -> bool:
        text = response.strip()
        return len(text) > 1 and any(text.startswith(opening) and text.endswith(closing) for opening, closing in _QUOTES)
