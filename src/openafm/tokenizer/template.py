"""Base of the chat templates: turns to tokens and, for answers, back.

A template is data: rows of special tokens and texts. Each turn, or run of tool outputs, is encoded by itself. So sessions
only append, token counts add up exactly, and no text can imitate a turn, because text never encodes to special tokens.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from openafm.core.config import Config, dump
from openafm.core.errors import OpenAFMError, UsageError
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ContentTurn,
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
    """A template cannot be read, or has no place for a turn: tools, images, late instructions."""


class MalformedAnswerError(OpenAFMError):
    """Generated tokens are not an assistant turn. `text` is their text."""

    def __init__(self, problem: str, text: str) -> None:
        super().__init__(f"the model's answer is malformed: {problem}; it reads {text!r}")
        self.text = text


@dataclass(frozen=True, kw_only=True)
class ImageSpan:
    """Positions `start` to `stop` (exclusive) of the placeholder tokens of one image, and the image's digest."""

    start: int
    stop: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """Tokens; for each of them whether the model generates it, and so is trained on it; where images are inserted."""

    tokens: list[int]
    loss_mask: list[bool]
    images: tuple[ImageSpan, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class CallsSyntax:
    """Syntax of tool calls: `opening`, JSON that fits `schema`, `separator` and JSON again for more calls, `closing`.

    Special tokens are given as ids. Without `separator` there is one JSON value only, which may itself be an array of calls.
    `item_separator` and `key_separator` are the white space of the JSON.
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
        """Whether the template has a place for tools, their calls and their outputs."""

    @property
    @abstractmethod
    def can_take_images(self) -> bool:
        """Whether the template has tokens for images inside a user's turn."""

    @abstractmethod
    def encode_turn(self, tokenizer: Tokenizer, turn: Turn) -> EncodedText:
        """Encode one turn. In an assistant's turn, everything between its opening and the text after its stop token carries
        loss; other turns carry none.

        Raises:
            SchemaTextError: a schema in the turn has no text.
            ChatTemplateError: the turn has tools or images, and the template has no place for them.
        """

    def encode_outputs(self, tokenizer: Tokenizer, outputs: Sequence[ToolTurn]) -> EncodedText:
        """Encode the outputs of calls that were made in parallel."""
        return concatenated(self.encode_turn(tokenizer, output) for output in outputs)

    def encode(self, tokenizer: Tokenizer, turns: Iterable[Turn]) -> EncodedText:
        """Encode turns in order: the concatenation of `encode_turn`, and of `encode_outputs` for runs of tool outputs.

        Adds no turn, so it also encodes what a session appends. `opened` prepares the start of a conversation.

        Raises:
            ChatTemplateError: a turn after the first holds instructions.
        """
        turns = tuple(turns)
        for position, turn in enumerate(turns):
            if position > 0 and isinstance(turn, Instructions):
                raise ChatTemplateError(f"turn {position} holds instructions; only the first turn may hold them")
        return concatenated(self._encoded(tokenizer, turns))

    def encode_conversation(self, tokenizer: Tokenizer, conversation: Conversation) -> EncodedText:
        """Encode a whole conversation: the content of a session at its end, and a document of training data."""
        return self.encode(tokenizer, opened(conversation.turns))

    def fewest_tokens(self, tokenizer: Tokenizer, turns: Iterable[Turn]) -> int:
        """Return a lower bound of the tokens of `turns`, without encoding them; callers reject oversized texts with it."""
        turns = tuple(turns)
        num_image_tokens = sum(image.num_tokens for turn in turns if isinstance(turn, ContentTurn) for image in turn.images)
        return num_image_tokens + sum(tokenizer.fewest_tokens(self._counted(turn.text)) for turn in turns)

    def _counted(self, text: str) -> str:
        """The part of a text that is certainly encoded."""
        return text

    @abstractmethod
    def encode_tool(self, tokenizer: Tokenizer, tool: ToolDefinition) -> list[int]:
        """Return the tokens that one tool adds to the instructions. Exact where special tokens separate it from the rest."""

    @abstractmethod
    def encode_response_format(self, tokenizer: Tokenizer, schema: JsonSchema) -> list[int]:
        """Return the tokens that a response format adds to a user's turn; as exact as `encode_tool`."""

    @abstractmethod
    def generation_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens that open the assistant's turn; generation starts after them."""

    @abstractmethod
    def tool_calls_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens between the generation prompt and the JSON of tool calls."""

    @abstractmethod
    def stop_tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the tokens that end the assistant's turn."""

    @abstractmethod
    def stop_token(self, tokenizer: Tokenizer) -> int:
        """Return the stop token that the template itself writes: the only one that a grammar allows."""

    @abstractmethod
    def calls_syntax(self, tokenizer: Tokenizer, calls_schema: JsonSchema) -> CallsSyntax:
        """Return the syntax of calls that fit `calls_schema` (`tool_calls.tool_calls_schema`).

        Raises:
            ChatTemplateError: the template has no place for tools.
        """

    @abstractmethod
    def is_calls(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> bool | None:
        """Whether an answer that begins with `tokens` is tool calls rather than text; None while it can become either."""

    @abstractmethod
    def parse_assistant(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> AssistantTurn:
        """Return the turn of `tokens`, with or without its generation prompt and its stop token.

        Raises:
            MalformedAnswerError: a special token is inside the text, or tool calls cannot be parsed.
        """

    def to_json(self) -> str:
        """Return the text of `chat_template.json`."""
        return dump(self)

    def _encoded(self, tokenizer: Tokenizer, turns: Iterable[Turn]) -> Iterator[EncodedText]:
        for is_output, run in itertools.groupby(turns, key=lambda turn: isinstance(turn, ToolTurn)):
            if is_output:
                yield self.encode_outputs(tokenizer, [turn for turn in run if isinstance(turn, ToolTurn)])
            else:
                yield from (self.encode_turn(tokenizer, turn) for turn in run)


def opened(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return the turns of a whole conversation, with an empty Instructions turn first if they have none.

    That turn carries the tokens that begin every conversation.
    """
    turns = tuple(turns)
    return turns if turns and isinstance(turns[0], Instructions) else (Instructions(text=""), *turns)


def encode_parts(tokenizer: Tokenizer, parts: Parts) -> list[int]:
    """Return the special tokens of `parts` unchanged and encode its texts; adjacent texts are encoded as one."""
    tokens: list[int] = []
    for is_text, run in itertools.groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:
            tokens.extend(tokenizer.encode("".join(map(str, run))))
        else:
            tokens.extend(map(int, run))
    return tokens


def check_no_special(tokenizer: Tokenizer, tokens: Iterable[int], answer: Sequence[int]) -> None:
    """Check that an answer's text holds no special token.

    Raises:
        MalformedAnswerError: it holds one.
    """
    names = {id: name for name, id in tokenizer.special_ids.items()}
    for token in tokens:
        if not tokenizer.token_bytes(token):
            name = names.get(token, token)
            raise MalformedAnswerError(f"it contains the special token {name}", tokenizer.decode(answer))


def concatenated(parts: Iterable[EncodedText]) -> EncodedText:
    """Return texts as one; the spans of images are shifted to their place in it."""
    tokens: list[int] = []
    loss_mask: list[bool] = []
    images: list[ImageSpan] = []
    for part in parts:
        first = len(tokens)
        images += [replace(span, start=first + span.start, stop=first + span.stop) for span in part.images]
        tokens += part.tokens
        loss_mask += part.loss_mask
    return EncodedText(tokens=tokens, loss_mask=loss_mask, images=tuple(images))


def version_of(text: str) -> Any:
    """Return the version stated in a `chat_template.json`, or None."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return values.get("version") if isinstance(values, dict) else None
