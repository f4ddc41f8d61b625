"""Arithmetic: word problems that are answered by calling a calculator, once or twice in parallel."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from openafm.data.synthetic.languages import Split, text_folder
from openafm.data.synthetic.rendering import Piece, Pieces, render, text_of
from openafm.data.synthetic.text_files.frames import base_kind
from openafm.data.synthetic.text_files.source_text import Frame, Line, Slot, parse_frame, read_sections
from openafm.data.synthetic.words import LanguageWords, split_of, words_of
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Instructions,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)

CALCULATOR = ToolDefinition(
    name="calculator",
    description="Computes an arithmetic expression.",
    parameters={
        "title": "Calculator",
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
        "x-order": ["expression"],
    },
)

_OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_TWO_SHARE = 0.25


@dataclass(frozen=True)
class Calculation:
    """`left operation right` of whole numbers, with its result."""

    left: int
    operation: str
    right: int
    result: int

    @property
    def expression(self) -> str:
        return f"{self.left}{self.operation}{self.right}"


@dataclass(frozen=True)
class WordProblemFrame:
    """A question with its operations, and the answer."""

    operations: str
    question: Frame
    answer: Frame


@dataclass(frozen=True)
class ArithmeticFrames:
    """The word problems of a language and split."""

    instructions: tuple[str, ...]
    things: tuple[str, ...]
    problems: Mapping[str, tuple[WordProblemFrame, ...]]


def arithmetic_turns(rng: random.Random, language: str, split: Split) -> tuple[Turn, ...]:
    """Return a question, calls, results and an answer."""
    frames, words = arithmetic_frames(language, split), words_of(language, split)
    operation = "two" if rng.random() < _TWO_SHARE else rng.choice("+-*/")
    problem = rng.choice(frames.problems[operation])
    calculations = [draw_calculation(rng, each) for each in problem.operations]
    values = {"thing": rng.choice(frames.things)}
    for names, calculation in zip((("a", "b", "r"), ("c", "d", "s")), calculations, strict=False):
        numbers = calculation.left, calculation.right, calculation.result
        values.update(zip(names, map(str, numbers), strict=True))
    resolve = _Values(rng, words, values)
    question = render(problem.question, rng, resolve, language=language)
    answer = render(problem.answer, rng, resolve, language=language)
    return (
        Instructions(text=rng.choice(frames.instructions), tools=(CALCULATOR,)),
        UserTurn(text=text_of(question)),
        AssistantTurn(
            tool_calls=tuple(ToolCall(name=CALCULATOR.name, arguments={"expression": c.expression}) for c in calculations)
        ),
        *(ToolTurn(name=CALCULATOR.name, text=str(c.result)) for c in calculations),
        AssistantTurn(text=text_of(answer)),
    )


def draw_calculation(rng: random.Random, operation: str) -> Calculation:
    """Return operands of two or three digits; differences are positive and divisions come out even."""
    match operation:
        case "+":
            left, right = rng.randint(12, 999), rng.randint(12, 999)
            return Calculation(left, operation, right, left + right)
        case "-":
            left = rng.randint(40, 999)
            right = rng.randint(12, left - 12)
            return Calculation(left, operation, right, left - right)
        case "*":
            left, right = rng.randint(12, 99), rng.randint(5, 60)
            return Calculation(left, operation, right, left * right)
        case "/":
            right, result = rng.randint(5, 40), rng.randint(5, 99)
            return Calculation(right * result, operation, right, result)
    raise ValueError(f"unknown operation {operation!r}; known: + - * /")


@functools.cache
def arithmetic_frames(language: str, split: Split) -> ArithmeticFrames:
    """Return the word problems of a language and split, read once. The last quarter of each section is held out.

    Raises:
        SourceTextError: a mistake in arithmetic.txt.
    """
    sections = {section.name: section for section in read_sections(text_folder() / language / "arithmetic.txt")}
    problems = {
        operation: _part([_problem(line, operation) for line in sections[name].lines], split)
        for operation, name in _OPERATIONS.items()
    }
    problems["two"] = _part([_two_problems(line) for line in sections["two"].lines], split)
    return ArithmeticFrames(
        instructions=tuple(line.text for line in sections["instructions"].lines),
        things=split_of((line.text for line in sections["thing"].lines), split),
        problems=problems,
    )


def _part(problems: list[WordProblemFrame], split: Split) -> tuple[WordProblemFrame, ...]:
    held_out = max(1, len(problems) // 4)
    return tuple(problems[-held_out:] if split == "held_out" else problems[:-held_out])


def _problem(line: Line, operations: str, text: str | None = None) -> WordProblemFrame:
    question, arrow, answer = (line.text if text is None else text).partition(" => ")
    if not arrow:
        raise line.error("write 'question => answer'")
    return WordProblemFrame(operations, parse_frame(line, question), parse_frame(line, answer))


def _two_problems(line: Line) -> WordProblemFrame:
    match = re.fullmatch(r"([-+*/]{2}) (.*)", line.text)
    if match is None:
        raise line.error("write two operations, a space, then 'question => answer'")
    return _problem(line, match[1], match[2])


class _Values:
    """Values of the slots: numbers as given, names drawn on first use."""

    def __init__(self, rng: random.Random, words: LanguageWords, values: dict[str, str]) -> None:
        self._rng, self._words, self._values = rng, words, values

    def __call__(self, slot: Slot) -> Pieces:
        while slot.name not in self._values:
            value = self._words.draw(self._rng, base_kind(slot.name))
            if value not in self._values.values():
                self._values[slot.name] = value
        return (Piece(self._values[slot.name]),)
