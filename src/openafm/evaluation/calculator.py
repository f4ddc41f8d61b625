"""Held-out arithmetic: the model calls a calculator, reads its output and answers. The numbers of the answer are graded."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.tool_turns import next_turn
from openafm.tokenizer.conversation import Conversation, Instructions, ToolTurn, Turn, UserTurn

if TYPE_CHECKING:
    from openafm.framework.backends.loaded_model import LoadedModel
    from openafm.framework.backends.system_model import SystemLanguageModel

MAX_TOKENS = 128
_EXPRESSION = re.compile(r"\s*(\d{1,9})\s*([-+*/])\s*(\d{1,9})\s*")


@dataclass(frozen=True, kw_only=True)
class WordProblem:
    """A question that needs one or two calculations, and their results in order."""

    instructions: Instructions
    question: UserTurn
    results: tuple[int, ...]
    language: str


def held_out_problems(count: int, seed: int = 0, languages: dict[str, float] | None = None) -> list[WordProblem]:
    """Return the first `count` held-out examples, in the corpus's languages or in `languages` by weight."""
    config = SyntheticConfig(seed=seed, split="held_out", tasks={"arithmetic": 1.0})
    if languages is not None:
        config = replace(config, languages=languages)
    return [_problem(conversation) for conversation in generate(config, count)]


def calculate(expression: str) -> str:
    """Return the result of an expression such as `12*34`: two whole numbers and one operation.

    Any other text and a division by zero give "error", which the model reads.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return "error"
    left, right = int(match[1]), int(match[3])
    match match[2]:
        case "+":
            return str(left + right)
        case "-":
            return str(left - right)
        case "*":
            return str(left * right)
    if right == 0:
        return "error"
    return str(left // right) if left % right == 0 else f"{left / right:g}"


class Solver:
    """Solves problems with a model and the calculator, greedy, each in a new session.

    The model calls the calculator once, several times in parallel, or not at all. Calls satisfy the tool's schema.
    """

    def __init__(self, model: SystemLanguageModel) -> None:
        self._model: LoadedModel = model.load()

    def __call__(self, problem: WordProblem) -> str:
        """Return the answer; empty if a turn did not end within `MAX_TOKENS`."""
        turns: list[Turn] = [problem.instructions, problem.question]
        for _ in range(2):
            turn = next_turn(self._model, turns, problem.instructions.tools, MAX_TOKENS)
            if turn is None or not turn.tool_calls:
                return "" if turn is None else turn.text
            turns.append(turn)
            for call in turn.tool_calls:
                turns.append(ToolTurn(name=call.name, text=calculate(str(call.arguments["expression"]))))
        return ""


def grade(problem: WordProblem, answer: str) -> float:
    """Return 1 if the answer contains every result as a number, else 0."""
    numbers = {int(number) for number in re.findall(r"\d+", answer)}
    return float(set(problem.results) <= numbers)


def add_first_numbers(problem: WordProblem) -> str:
    """Baseline: return the sum of the first two numbers of the question."""
    return str(sum(int(number) for number in re.findall(r"\d+", problem.question.text)[:2]))


def _problem(conversation: Conversation) -> WordProblem:
    instructions, question = conversation.turns[:2]
    assert isinstance(instructions, Instructions)
    assert isinstance(question, UserTurn)
    results = tuple(int(turn.text) for turn in conversation.turns if isinstance(turn, ToolTurn))
    return WordProblem(instructions=instructions, question=question, results=results, language=conversation.language)
