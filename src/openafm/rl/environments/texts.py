"""Prompts of generated word lists: copying with edits, and answers in a requested format."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openafm.data.synthetic.words import words_of
from openafm.rl.prompt_sources import PromptSource, PromptSourceConfig
from openafm.rl.prompts import RLPrompt
from openafm.tokenizer.conversation import Conversation, UserTurn


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig(PromptSourceConfig):
    """Base of prompts whose difficulty rises by one level every `prompts_per_level` prompts, up to `levels` levels.

    The difficulty depends on the number of the prompt alone, so that a resumed run gets the same prompts.
    """

    seed: int = 0
    levels: int = 4
    prompts_per_level: int = 200

    def __post_init__(self) -> None:
        self.require(self.levels > 0 and self.prompts_per_level > 0, "levels and prompts_per_level must be at least 1")

    def level(self, number: int) -> int:
        """Return the level of a prompt, from 1."""
        return min(self.levels, 1 + number // self.prompts_per_level)


@dataclass(frozen=True, kw_only=True)
class CopyEditConfig(CurriculumConfig):
    """Copy words with one edit: as they are, reversed, without a word, or with a word replaced.

    Prompts of level n have up to n + 1 words and one of the first n edits. The truth is `answer`.
    """

    def build(self) -> PromptSource:
        return _Texts(self, "copy_edit", _copy_edit)


@dataclass(frozen=True, kw_only=True)
class FormatConfig(CurriculumConfig):
    """Repeat a word in a requested format; the truth has IFEval's instructions.

    Prompts of level n have one of the first n formats: no capital letter, capitals only, in double quotation marks, ending
    with a phrase.
    """

    def build(self) -> PromptSource:
        return _Texts(self, "format", _format)


class _Texts(PromptSource):
    def __init__(
        self,
        config: CurriculumConfig,
        kind: str,
        draw: Callable[[random.Random, list[str], int], tuple[str, dict[str, Any]]],
    ) -> None:
        self._config, self._kind, self._draw = config, kind, draw

    def prompt(self, number: int) -> RLPrompt:
        rng = random.Random(f"{self._kind} {self._config.seed} {number}")
        level = self._config.level(number)
        words = words_of("en", "train")
        names = [words.draw(rng, "person").split()[0] for _ in range(level + 1)]
        text, truth = self._draw(rng, names[: rng.randint(1 if level < 3 else 2, len(names))], level)
        return RLPrompt(conversation=Conversation(turns=(UserTurn(text=text),)), kind=self._kind, truth=truth)


def _copy_edit(rng: random.Random, names: list[str], level: int) -> tuple[str, dict[str, Any]]:
    listed = " ".join(names)
    match rng.randrange(min(level, 4)):
        case 0:
            return f"Copy: {listed}", {"answer": listed}
        case 1:
            return f"Copy in reverse: {listed}", {"answer": " ".join(reversed(names))}
        case 2:
            dropped = rng.choice(names)
            return f"Copy without {dropped}: {listed}", {"answer": " ".join(name for name in names if name != dropped)}
    old = rng.choice(names)
    return f"Copy with Ada for {old}: {listed}", {"answer": " ".join("Ada" if name == old else name for name in names)}


_FORMATS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("in small letters", "change_case:english_lowercase", {}),
    ("in capital letters", "change_case:english_capital", {}),
    ("in double quotation marks", "startend:quotation", {}),
    ("and end with: Done.", "startend:end_checker", {"end_phrase": "Done."}),
)


def _format(rng: random.Random, names: list[str], level: int) -> tuple[str, dict[str, Any]]:
    wording, instruction, arguments = _FORMATS[rng.randrange(min(level, len(_FORMATS)))]
    keyword = {"keywords": [names[0]]}
    return f"Write {names[0]} {wording}", {
        "instruction_id_list": ["keywords:existence", instruction],
        "kwargs": [keyword, arguments],
    }
