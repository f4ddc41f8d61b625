"""Held-out tool calling: the first answer to a request, which is tool calls or, if no call is needed, text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from openafm.data.synthetic import SyntheticConfig, generate
from openafm.evaluation.guesses import guess
from openafm.evaluation.tool_turns import next_turn
from openafm.tokenizer.conversation import AssistantTurn, Conversation, Instructions, ToolCall, UserTurn

if TYPE_CHECKING:
    from openafm.framework.backends.system_model import SystemLanguageModel

MAX_TOKENS = 160
"""Token limit of an answer; the longest reference calls have about 140 tokens."""


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """Instructions with up to four tools, a request, and its reference answer."""

    instructions: Instructions
    request: UserTurn
    gold: AssistantTurn
    language: str


def held_out_requests(count: int, seed: int = 0, languages: dict[str, float] | None = None) -> list[ToolRequest]:
    """Return the first `count` held-out examples, with names of the corpus's languages or of `languages` by weight."""
    config = SyntheticConfig(seed=seed, split="held_out", tasks={"tool": 1.0})
    if languages is not None:
        config = replace(config, languages=languages)
    return [_request(conversation) for conversation in generate(config, count)]


def solver(model: SystemLanguageModel) -> Callable[[ToolRequest], AssistantTurn | None]:
    """Return a function that gives a model's first answer, greedy; None if it does not end within `MAX_TOKENS`."""
    loaded = model.load()

    def solve(example: ToolRequest) -> AssistantTurn | None:
        return next_turn(loaded, (example.instructions, example.request), example.instructions.tools, MAX_TOKENS)

    return solve


def grade(example: ToolRequest, answer: AssistantTurn | None) -> float:
    """Return 1 for the reference calls in any order, or for any text if the reference has no call; else 0."""
    if answer is None:
        return 0.0
    expected = example.gold.tool_calls
    if not expected:
        return float(bool(answer.text) and not answer.tool_calls)
    return float(len(answer.tool_calls) == len(expected) and all(call in answer.tool_calls for call in expected))


def first_tool(example: ToolRequest) -> AssistantTurn:
    """Baseline: call the first tool, with arguments from the request's words and numbers."""
    tool = example.instructions.tools[0]
    return AssistantTurn(tool_calls=(ToolCall(name=tool.name, arguments=guess(tool.parameters, example.request.text)),))


def _request(conversation: Conversation) -> ToolRequest:
    instructions, request, answer = conversation.turns[:3]
    assert isinstance(instructions, Instructions)
    assert isinstance(request, UserTurn)
    assert isinstance(answer, AssistantTurn)
    return ToolRequest(instructions=instructions, request=request, gold=answer, language=conversation.language)
