"""What every chat template gives, the frozen one of this house and imported ones: turns as tokens and, for answers, back.

A template is data: rows of special tokens and texts. Each turn, or run of tool outputs, is encoded by itself, so a session
only ever appends and token counts add up exactly; and no text can imitate a turn, because texts never encode to special
tokens.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from openafm.core.config import Config, dump
from openafm.core.errors import OpenAFMError, UsageError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    JsonSchema,
    ToolDefinition,
    ToolTurn,
    Turn,
)

# Special tokens by id and texts, in order: a turn before its texts are encoded.
Parts: TypeAlias = list[int | str]


class ChatTemplateError(UsageError):
    """A template that cannot be read, or turns that it has no place for."""


class MalformedAnswerError(OpenAFMError):
    """Generated tokens that are no assistant turn. `text` is what they say."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(f"the model's answer is malformed: {problem}; it reads {text!r}")
        self.text = text


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """Tokens, and for each of them whether the model generates it, and so learns to."""

    tokens: list[int]
    loss_mask: list[bool]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class CallsSyntax:
    """How tool calls are written: `opening`, JSON that fits `schema`, `separator` and JSON again for more, `closing`.

    Special tokens stand as ids. No `separator`: one JSON only, which may itself be an array of calls. `item_separator` and
    `key_separator` are the white space of the JSON.
    """

    opening: Parts
    schema: JsonSchema
    separator: Parts | None
    closing: Parts
    item_separator: str = ","
    key_separator: str = ":"


@dataclass(frozen=True, kw_only=True)
class BaseChatTemplate(Config, ABC):
    """Base of the chat templates."""

    @property
    @abstractmethod
    def can_call_tools(self) -> bool:
        """Whether it has a place for tools, their calls and their outputs."""

    @abstractmethod
    def encode_turn(self, tokenizer: Tokenizer, turn: Turn) -> EncodedText:
        """One turn; only an assistant's turn has tokens that the model generates: all between what opens it and what
        follows its stop token.

        Raises:
            SchemaTextError: a schema in the turn has no text.
            ChatTemplateError: tools, and no place for them.
        """

    def encode_outputs(self, tokenizer: Tokenizer, outputs: Sequence[ToolTurn]) -> EncodedText:
        """The outputs of calls that were made in parallel."""
        return concatenated(self.encode_turn(tokenizer, output) for output in outputs)

    def encode(self, tokenizer: Tokenizer, turns: Iterable[Turn]) -> EncodedText:
        """Turns in order: exactly the concatenation of what `encode_turn`, or `encode_outputs` of a run of outputs, gives.
        Adds no turn of its own, so it serves to append to a session; what starts one passes through `opened` first.

        Raises:
            ChatTemplateError: instructions that do not stand first.
        """
        turns = tuple(turns)
        for position, turn in enumerate(turns):
            if position > 0 and isinstance(turn, Instructions):
                raise ChatTemplateError(f"turn {position} holds instructions; they are the first turn or absent")
        return concatenated(self._encoded(tokenizer, turns))

    def encode_conversation(self, tokenizer: Tokenizer, conversation: Conversation) -> EncodedText:
        """A whole conversation: what a session would hold at its end, and what training reads."""
        return self.encode(tokenizer, opened(conversation.turns))

    @abstractmethod
    def encode_tool(self, tokenizer: Tokenizer, tool: ToolDefinition) -> list[int]:
        """What one tool adds to the instructions; to the token, where special tokens divide it from what is around it."""

    @abstractmethod
    def encode_response_format(self, tokenizer: Tokenizer, schema: JsonSchema) -> list[int]:
        """What a wanted response format adds to the user's turn; to the token, as with `encode_tool`."""

    @abstractmethod
    def generation_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Opens the assistant's turn; generation starts after it."""

    @abstractmethod
    def tool_calls_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Follows the generation prompt when the answer is tool calls; their JSON follows it."""

    @abstractmethod
    def stop_tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens that end the assistant's turn."""

    @abstractmethod
    def stop_token(self, tokenizer: Tokenizer) -> int:
        """The one of them that the template itself puts there: the only one that a grammar allows."""

    @abstractmethod
    def calls_syntax(self, tokenizer: Tokenizer, calls_schema: JsonSchema) -> CallsSyntax:
        """How calls that fit `calls_schema` (`tool_calls.tool_calls_schema`) are written.

        Raises:
            ChatTemplateError: it has no place for tools.
        """

    @abstractmethod
    def is_calls(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> bool | None:
        """Whether an answer that begins with `tokens` is tool calls rather than text; None when it may become either."""

    @abstractmethod
    def parse_assistant(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> AssistantTurn:
        """The turn that `tokens` are, with or without its generation prompt and its stop token.

        Raises:
            MalformedAnswerError: special tokens where none belong, or tool calls that are not calls.
        """

    def to_json(self) -> str:
        """`chat_template.json`."""
        return dump(self)

    def _encoded(self, tokenizer: Tokenizer, turns: Iterable[Turn]) -> Iterator[EncodedText]:
        for is_output, run in itertools.groupby(turns, key=lambda turn: isinstance(turn, ToolTurn)):
            if is_output:
                yield self.encode_outputs(tokenizer, [turn for turn in run if isinstance(turn, ToolTurn)])
            else:
                yield from (self.encode_turn(tokenizer, turn) for turn in run)


def opened(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """The turns of a whole conversation: with an empty Instructions turn in front when they have none, since that turn
    carries what begins every conversation."""
    turns = tuple(turns)
    return turns if turns and isinstance(turns[0], Instructions) else (Instructions(text=""), *turns)


def encode_parts(tokenizer: Tokenizer, parts: Parts) -> list[int]:
    """Special tokens as they are; texts that touch are encoded as one."""
    tokens: list[int] = []
    for is_text, run in itertools.groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:
            tokens.extend(tokenizer.encode("".join(map(str, run))))
        else:
            tokens.extend(map(int, run))
    return tokens


def check_no_special(tokenizer: Tokenizer, tokens: Iterable[int], answer: Sequence[int]) -> None:
    """Refuse special tokens inside an answer's text.

    Raises:
        MalformedAnswerError: there is one.
    """
    names = {id: name for name, id in tokenizer.special_ids.items()}
    for token in tokens:
        if not tokenizer.token_bytes(token):
            name = names.get(token, token)
            raise MalformedAnswerError(f"the special token {name} stands inside it", tokenizer.decode(answer))


def concatenated(parts: Iterable[EncodedText]) -> EncodedText:
    encoded = list(parts)
    return EncodedText(
        tokens=[token for part in encoded for token in part.tokens],
        loss_mask=[flag for part in encoded for flag in part.loss_mask],
    )


def version_of(text: str) -> Any:
    """The version that a `chat_template.json` says it has; None where it says none."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return values.get("version") if isinstance(values, dict) else None
