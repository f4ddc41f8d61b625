"""Conversations in two languages: a question in one, the answer in another that the instructions name (report 5.4).

By default the language of the output follows the input. A small share of such examples (0.4 % of the multilingual mixture in
the report) keeps the exception possible.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from openafm.core.config import Config, nearest
from openafm.data.synthetic.languages import LANGUAGES, locale_of
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.tasks.arithmetic import CALCULATOR, WordProblemFrame, arithmetic_frames, draw_calculation
from openafm.data.synthetic.text_files.source_text import Slot
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, ToolCall, ToolTurn, UserTurn

_PLAIN_SLOTS = frozenset(("a", "b", "r"))
_REQUESTS = ("Answer in {language}.", "Always reply in {language}.", "Use the calculator and answer in {language}.")


@dataclass(frozen=True, kw_only=True)
class MixedLanguagesConfig(Config):
    """Examples in pairs of different `languages`, each pair as often as any other."""

    languages: tuple[str, ...] = field(default_factory=lambda: LANGUAGES)
    seed: int = 0

    def __post_init__(self) -> None:
        for language in self.languages:
            self.require(language in LANGUAGES, f"unknown language '{language}'{nearest(language, list(LANGUAGES))}")
        self.require(len(set(self.languages)) >= 2, "languages must name at least two")


def mixed_conversations(config: MixedLanguagesConfig, count: int) -> Iterator[Conversation]:
    """Yield `count` calculations: asked in one language, answered in another. `language` is that of the answer."""
    rng = random.Random(config.seed)
    for _ in range(count):
        asked, answered = rng.sample(config.languages, 2)
        operation = rng.choice("+-*/")
        calculation = draw_calculation(rng, operation)
        values = {"a": str(calculation.left), "b": str(calculation.right), "r": str(calculation.result)}

        def resolve(slot: Slot, values: dict[str, str] = values) -> Pieces:
            return (Piece(values[slot.name]),)

        question = render(_plain_problem(asked, operation).question, rng, resolve, language=asked)
        answer = render(_plain_problem(answered, operation).answer, rng, resolve, language=answered)
        request = rng.choice(_REQUESTS).format(language=locale_of(answered).get_display_name("en"))
        yield Conversation(
            turns=(
                Instructions(text=request, tools=(CALCULATOR,)),
                UserTurn(text=text_of(question)),
                AssistantTurn(
                    tool_calls=(ToolCall(name=CALCULATOR.name, arguments={"expression": calculation.expression}),)
                ),
                ToolTurn(name=CALCULATOR.name, text=str(calculation.result)),
                AssistantTurn(text=text_of(answer)),
            ),
            task="mixed_languages",
            language=answered,
        )


@functools.cache
def _plain_problem(language: str, operation: str) -> WordProblemFrame:
    """Return the word problem of a language that has nothing but numbers, so that it means the same in all languages."""
    problems = arithmetic_frames(language, "train").problems[operation]
    return next(each for each in problems if each.question.names | each.answer.names <= _PLAIN_SLOTS)
