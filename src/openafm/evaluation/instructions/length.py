"""Instructions about the length of a response."""

from __future__ import annotations

import re
from dataclasses import dataclass

from openafm.evaluation.instructions.base import InstructionConfig, Relation, holds, num_sentences, words

_DIVIDER = re.compile(r"^\s*\*\*\*\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class NumWordsConfig(InstructionConfig):
    """At least, or less than, `num_words` words."""

    ID = "length_constraints:number_words"

    num_words: int
    relation: Relation = "at least"

    def follows(self, response: str) -> bool:
        return holds(len(words(response)), self.relation, self.num_words)


@dataclass(frozen=True, kw_only=True)
class NumSentencesConfig(InstructionConfig):
    """At least, or less than, `num_sentences` sentences."""

    ID = "length_constraints:number_sentences"

    num_sentences: int
    relation: Relation = "at least"

    def follows(self, response: str) -> bool:
        return holds(num_sentences(response), self.relation, self.num_sentences)


@dataclass(frozen=True, kw_only=True)
class NumParagraphsConfig(InstructionConfig):
    """Exactly `num_paragraphs` paragraphs, which the divider *** separates."""

    ID = "length_constraints:number_paragraphs"

    num_paragraphs: int

    def follows(self, response: str) -> bool:
        paragraphs = _DIVIDER.split(response)
        inner = paragraphs[bool(not paragraphs[0].strip()) : len(paragraphs) - bool(not paragraphs[-1].strip())]
        return len(inner) == self.num_paragraphs and all(paragraph.strip() for paragraph in inner)


@dataclass(frozen=True, kw_only=True)
class FirstWordOfParagraphConfig(InstructionConfig):
    """Exactly `num_paragraphs` paragraphs with empty lines between them; paragraph `nth_paragraph` starts with a word."""

    ID = "length_constraints:nth_paragraph_first_word"

    num_paragraphs: int
    nth_paragraph: int
    first_word: str

    def __post_init__(self) -> None:
        self.require(1 <= self.nth_paragraph <= self.num_paragraphs, "nth_paragraph must lie in 1..num_paragraphs")

    def follows(self, response: str) -> bool:
        paragraphs = [paragraph for paragraph in re.split(r"\n\s*\n", response) if paragraph.strip()]
        if len(paragraphs) != self.num_paragraphs:
            return False
        found = words(paragraphs[self.nth_paragraph - 1])
        return bool(found) and found[0].casefold() == self.first_word.casefold()
