"""Answers to the prompts of conversations: greedy, under a grammar where the prompt has a schema or tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openafm.adapters.package import AdapterPackage
from openafm.bundle import Bundle
from openafm.tokenizer.chat_template import opened
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    JsonSchema,
    ToolDefinition,
    Turn,
    UserTurn,
)
from openafm.tokenizer.tool_calls import tool_calls_schema

if TYPE_CHECKING:
    from openafm.runtime.decoding.generation import Summary
    from openafm.runtime.decoding.sampling import SamplingConfig
    from openafm.runtime.decoding.speculation import Drafter

MAX_TOKENS = 200
"""Default token limit of an answer."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The turns before an answer, its schema and tools, and the answer in the data."""

    turns: tuple[Turn, ...]
    schema: JsonSchema | None
    tools: tuple[ToolDefinition, ...]
    reference: AssistantTurn

    @property
    def is_call(self) -> bool:
        """Return whether the reference is a tool call."""
        return bool(self.reference.tool_calls)


@dataclass(frozen=True, kw_only=True)
class DraftedAnswer:
    """The tokens of an answer, the stop token included, and the statistics of its generation."""

    tokens: tuple[int, ...]
    summary: Summary


class Answerer:
    """Generates greedy answers of a bundle with its adapter or another, with or without a draft model."""

    def __init__(self, target: Bundle, adapter: AdapterPackage | None = None) -> None:
        from openafm.runtime.decoding.grammar import GrammarCompiler
        from openafm.runtime.engines.selection import open_engine

        self.engine, self._bundle = open_engine(target, adapter), target
        self._grammars = GrammarCompiler(target.tokenizer, target.template)

    def answer(
        self,
        question: Question,
        drafter: Drafter | None,
        *,
        sampling: SamplingConfig | None = None,
        max_tokens: int = MAX_TOKENS,
        must_call: bool = False,
    ) -> DraftedAnswer:
        """Return the answer, generated in a new sequence.

        Raises:
            ContextWindowError: question and answer do not fit into the context.
        """
        from openafm.runtime.decoding.generation import generate
        from openafm.runtime.decoding.sampling import GreedyConfig

        tokenizer, template = self._bundle.tokenizer, self._bundle.template
        tools = question.tools if template.can_call_tools else ()
        generation = generate(
            self.engine,
            self.engine.new_sequence(),
            [*template.encode(tokenizer, opened(question.turns)).tokens, *template.generation_prompt(tokenizer)],
            sampling=sampling or GreedyConfig(),
            stop_tokens=template.stop_tokens(tokenizer),
            max_tokens=max_tokens,
            grammar=self._grammars.answer(question.schema, tool_calls_schema(tools) if tools else None, must_call=must_call),
            drafter=drafter,
        )
        tokens = tuple(event.token for event in generation)
        return DraftedAnswer(tokens=tokens, summary=generation.summary)


def questions(conversation: Conversation) -> Iterator[Question]:
    """Yield a question for each of the assistant's turns."""
    turns = conversation.turns
    tools = tuple(tool for turn in turns[:1] if isinstance(turn, Instructions) for tool in turn.tools)
    schema: JsonSchema | None = None
    for index, turn in enumerate(turns):
        if isinstance(turn, UserTurn):
            schema = turn.response_format
        elif isinstance(turn, AssistantTurn) and index:
            yield Question(turns=turns[:index], schema=schema, tools=tools, reference=turn)
