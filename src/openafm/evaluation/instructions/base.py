"""The base of instructions, and how their words, sentences and paragraphs are counted."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from openafm.core.config import Config
from openafm.core.errors import OpenAFMError

Relation: TypeAlias = Literal["less than", "at least"]

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORDS = re.compile(rf"[^\W_{_CJK}]+(?:['’][^\W_{_CJK}]+)*|[{_CJK}]")
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]*_]*(?=\s+|\Z)|[。！？]+[」』”]*")
_ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "etc", "e.g", "i.e", "cf", "vol", "fig", "approx", "inc",
     "ltd", "co", "u.s", "u.k", "a.m", "p.m")
)  # fmt: skip


class InstructionError(OpenAFMError):
    """A line has an unknown instruction, or an instruction has arguments that it does not take."""


@dataclass(frozen=True, kw_only=True)
class InstructionConfig(Config, ABC):
    """Base of instructions. The fields have the names of IFEval's arguments.

    `ID` is IFEval's name of the kind, such as "keywords:existence".
    """

    ID: ClassVar[str]

    @abstractmethod
    def follows(self, response: str) -> bool:
        """Return whether a response, which is not empty, follows the instruction."""


def holds(count: int, relation: Relation, limit: int) -> bool:
    """Compare a count with a limit."""
    return count < limit if relation == "less than" else count >= limit


def words(text: str) -> list[str]:
    """Return the words of a text; each Chinese or Japanese character is a word."""
    return _WORDS.findall(text)


def num_sentences(text: str) -> int:
    """Return the number of sentences; a line break after a paragraph, a title or a list item ends one, too."""
    count = 0
    for line in text.splitlines():
        rest = 0
        for match in _SENTENCE_END.finditer(line):
            word = line[rest : match.start()].split()[-1:]
            if (
                match[0].startswith(".")
                and word
                and word[0].lstrip("(\"'“").lower() in _ABBREVIATIONS
                and match.end() < len(line)
            ):
                continue
            count += bool(words(line[rest : match.start()]))
            rest = match.end()
        count += bool(words(line[rest:]))
    return count


def occurrences(phrase: str, text: str) -> int:
    """Return how often a phrase occurs as whole words, in any case."""
    start = r"(?<!\w)" if phrase[:1].isalnum() else ""
    end = r"(?!\w)" if phrase[-1:].isalnum() else ""
    if re.search(rf"[{_CJK}]", phrase):
        start = end = ""  # words are not separated
    return len(re.findall(f"{start}{re.escape(phrase)}{end}", text, re.IGNORECASE))
