"""Arithmetic: word problems that are answered by calling a calculator, once or twice in parallel."""

from __future__ import annotations

import random
from dataclasses import dataclass

from openafm.data.synthetic.lexicons import Lexicon
from openafm.data.synthetic.slots import Slots
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


def arithmetic_turns(rng: random.Random, words: Lexicon) -> tuple[Turn, ...]:
    """Question, calls, results, answer."""
    if rng.random() < _TWO_SHARE:
        two = rng.choice(words.arithmetic.two)
        calculations = [draw_calculation(rng, operation) for operation in two.operations]
        question, answer = two.question, two.answer
    else:
        operation = rng.choice("+-*/")
        problems = {
            "+": words.arithmetic.add,
            "-": words.arithmetic.subtract,
            "*": words.arithmetic.multiply,
            "/": words.arithmetic.divide,
        }[operation]
        problem = rng.choice(problems)
        calculations = [draw_calculation(rng, operation)]
        question, answer = problem.question, problem.answer

    slots = Slots(rng, words, thing=rng.choice(words.arithmetic.things))
    for names, calculation in zip((("a", "b", "r"), ("c", "d", "s")), calculations, strict=False):
        values = calculation.left, calculation.right, calculation.result
        slots.update(zip(names, map(str, values), strict=True))
    return (
        Instructions(text=rng.choice(words.arithmetic.instructions), tools=(CALCULATOR,)),
        UserTurn(text=slots.fill(question)),
        AssistantTurn(
            tool_calls=tuple(ToolCall(name=CALCULATOR.name, arguments={"expression": c.expression}) for c in calculations)
        ),
        *(ToolTurn(name=CALCULATOR.name, text=str(c.result)) for c in calculations),
        AssistantTurn(text=slots.fill(answer)),
    )


def draw_calculation(rng: random.Random, operation: str) -> Calculation:
    """Operands too large for the head; differences are positive and divisions come out even."""
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
