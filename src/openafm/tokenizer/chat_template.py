r"""The chat template: a conversation as tokens and, for the assistant's turn, back.

Each turn is encoded by itself, between special tokens that open and close it:

    <|bos|><|instructions|>text<|tool_definition|>name: description\nparameters as schema text<|turn_end|>
    <|user|>text<|response_format|>schema text<|turn_end|>
    <|assistant|>text<|turn_end|>
    <|assistant|><|tool_calls|>[{"name":"...","arguments":{...}}]<|turn_end|>
    <|tool|>name<|content|>text<|turn_end|>

So a session only ever appends, token counts add up exactly, and no text can imitate a turn, because texts never encode to
special tokens. A structured answer is the assistant's text: compact JSON (`schema_text.compact_json`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from openafm.core.config import Config, ConfigError, dump, from_dict
from openafm.core.errors import OpenAFMError, UsageError
from openafm.tokenizer.bpe import SPECIAL_TOKEN_IDS, Tokenizer
from openafm.tokenizer.conversation import (
    AssistantTurn,
    Conversation,
    Instructions,
    JsonSchema,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.schema_text import schema_text
from openafm.tokenizer.tool_calls import MalformedToolCallsError, parse_tool_calls, tool_calls_text

VERSION = 1

# Special tokens by id and texts, in order: a turn before its texts are encoded.
_Parts: TypeAlias = list[int | str]

# The fields that each layout of `ChatTemplate` holds.
_FIELDS = {
    "instructions": ("text", "tools"),
    "tool_definition": ("name", "description", "parameters"),
    "user": ("text", "response_format"),
    "response_format": ("schema",),
    "assistant": ("text", "tool_calls"),
    "tool_calls": ("calls",),
    "tool": ("name", "text"),
}


class ChatTemplateError(UsageError):
    """A template that cannot be read, or turns in an order that it does not know."""


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
class ChatTemplate(Config):
    """The layout of every kind of turn, as data. The defaults are frozen: models are trained on them.

    A layout is a row of pieces. A piece is a special token, or a text with one `{field}`; a text whose field is empty is
    left out, and texts that touch are encoded as one.
    """

    version: int = VERSION
    instructions: tuple[str, ...] = ("<|bos|>", "<|instructions|>", "{text}", "{tools}", "<|turn_end|>")
    tool_definition: tuple[str, ...] = ("<|tool_definition|>", "{name}", ": {description}", "\n{parameters}")
    user: tuple[str, ...] = ("<|user|>", "{text}", "{response_format}", "<|turn_end|>")
    response_format: tuple[str, ...] = ("<|response_format|>", "{schema}")
    assistant: tuple[str, ...] = ("<|assistant|>", "{text}", "{tool_calls}", "<|turn_end|>")
    tool_calls: tuple[str, ...] = ("<|tool_calls|>", "{calls}")
    tool: tuple[str, ...] = ("<|tool|>", "{name}", "<|content|>", "{text}", "<|turn_end|>")

    def __post_init__(self) -> None:
        self.require(self.version == VERSION, f"version {self.version} is unknown; this openafm reads version {VERSION}")
        for name, known in _FIELDS.items():
            layout = getattr(self, name)
            used = [field for piece in layout if piece not in SPECIAL_TOKEN_IDS for field in re.findall(r"{(\w+)}", piece)]
            whole = len(used) == sum(piece not in SPECIAL_TOKEN_IDS for piece in layout)
            self.require(
                whole and sorted(used) == sorted(known) and layout[0] in SPECIAL_TOKEN_IDS,
                f"{name} must be special tokens and texts with one field each, must start with a special token "
                f"and hold exactly {', '.join(known)}; got {layout}",
            )
        self.require(
            self.assistant[1:] == ("{text}", "{tool_calls}", "<|turn_end|>") and len(self.tool_calls) == 2,
            "assistant must be one token, {text}, {tool_calls}, <|turn_end|> and tool_calls one token, {calls}: "
            "answers are parsed back",
        )

    def encode_turn(self, tokenizer: Tokenizer, turn: Turn) -> EncodedText:
        """One turn; only an assistant's turn has tokens that the model generates: all but the one that opens it.

        Raises:
            SchemaTextError: a schema in the turn has no text.
        """
        match turn:
            case Instructions():
                tools = [part for tool in turn.tools for part in self._tool_parts(tool)]
                parts = _fill(self.instructions, text=turn.text, tools=tools)
            case UserTurn():
                wanted = [] if turn.response_format is None else self._response_format_parts(turn.response_format)
                parts = _fill(self.user, text=turn.text, response_format=wanted)
            case AssistantTurn():
                calls = _fill(self.tool_calls, calls=tool_calls_text(turn.tool_calls)) if turn.tool_calls else []
                parts = _fill(self.assistant, text=turn.text, tool_calls=calls)
            case ToolTurn():
                parts = _fill(self.tool, name=turn.name, text=turn.text)
        tokens = _encode(tokenizer, parts)
        generated = isinstance(turn, AssistantTurn)
        return EncodedText(tokens=tokens, loss_mask=[generated and position > 0 for position in range(len(tokens))])

    def encode(self, tokenizer: Tokenizer, turns: Iterable[Turn]) -> EncodedText:
        """Turns in order: exactly the concatenation of what `encode_turn` gives for each. Adds no turn of its own, so it
        serves to append to a session; what starts one passes through `opened` first.

        Raises:
            ChatTemplateError: instructions that do not stand first.
        """
        turns = tuple(turns)
        for position, turn in enumerate(turns):
            if position > 0 and isinstance(turn, Instructions):
                raise ChatTemplateError(f"turn {position} holds instructions; they are the first turn or absent")
        encoded = [self.encode_turn(tokenizer, turn) for turn in turns]
        return EncodedText(
            tokens=[token for part in encoded for token in part.tokens],
            loss_mask=[flag for part in encoded for flag in part.loss_mask],
        )

    def encode_conversation(self, tokenizer: Tokenizer, conversation: Conversation) -> EncodedText:
        """A whole conversation: what a session would hold at its end, and what training reads."""
        return self.encode(tokenizer, opened(conversation.turns))

    def encode_tool(self, tokenizer: Tokenizer, tool: ToolDefinition) -> list[int]:
        """What one tool adds to the instructions, to the token."""
        return _encode(tokenizer, self._tool_parts(tool))

    def encode_response_format(self, tokenizer: Tokenizer, schema: JsonSchema) -> list[int]:
        """What a wanted response format adds to the user's turn, to the token."""
        return _encode(tokenizer, self._response_format_parts(schema))

    def generation_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Opens the assistant's turn; generation starts after it."""
        return _encode(tokenizer, [SPECIAL_TOKEN_IDS[self.assistant[0]]])

    def tool_calls_prompt(self, tokenizer: Tokenizer) -> list[int]:
        """Follows the generation prompt when the answer is tool calls; their JSON array follows it."""
        return _encode(tokenizer, [SPECIAL_TOKEN_IDS[self.tool_calls[0]]])

    def stop_tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens that end the assistant's turn."""
        return frozenset((tokenizer.special.turn_end, tokenizer.special.eos))

    def parse_assistant(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> AssistantTurn:
        """The turn that `tokens` are, with or without its generation prompt and its stop token.

        Raises:
            MalformedAnswerError: special tokens where none belong, or tool calls that are not JSON calls.
        """
        opening, calls_token = SPECIAL_TOKEN_IDS[self.assistant[0]], SPECIAL_TOKEN_IDS[self.tool_calls[0]]
        content = list(tokens)
        if content[:1] == [opening]:
            del content[0]
        if content and content[-1] in self.stop_tokens(tokenizer):
            del content[-1]
        before, called, after = _partition(content, calls_token)
        for token in (*before, *after):
            if not tokenizer.token_bytes(token):
                name = tokenizer.special_names[token]
                raise MalformedAnswerError(f"the special token {name} stands inside it", tokenizer.decode(content))
        try:
            calls = parse_tool_calls(tokenizer.decode(after)) if called else ()
        except MalformedToolCallsError as error:
            raise MalformedAnswerError(str(error), tokenizer.decode(content)) from error
        return AssistantTurn(text=tokenizer.decode(before), tool_calls=calls)

    def to_json(self) -> str:
        """`chat_template.json`."""
        return dump(self)

    @staticmethod
    def from_json(text: str) -> ChatTemplate:
        """Read what `to_json` wrote.

        Raises:
            ChatTemplateError: the text is no chat template, or one of an unknown version.
        """
        try:
            return from_dict(ChatTemplate, json.loads(text))
        except (ValueError, ConfigError) as error:
            raise ChatTemplateError(f"this is not a chat template of openafm: {error}") from error

    def _tool_parts(self, tool: ToolDefinition) -> _Parts:
        return _fill(
            self.tool_definition, name=tool.name, description=tool.description, parameters=schema_text(tool.parameters)
        )

    def _response_format_parts(self, schema: JsonSchema) -> _Parts:
        return _fill(self.response_format, schema=schema_text(schema))


def opened(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """The turns of a whole conversation: with an empty Instructions turn in front when they have none, since that turn
    carries <|bos|>."""
    turns = tuple(turns)
    return turns if turns and isinstance(turns[0], Instructions) else (Instructions(text=""), *turns)


def _fill(layout: tuple[str, ...], **values: str | _Parts) -> _Parts:
    parts: _Parts = []
    for piece in layout:
        if piece in SPECIAL_TOKEN_IDS:
            parts.append(SPECIAL_TOKEN_IDS[piece])
            continue
        field = re.findall(r"{(\w+)}", piece)[0]
        value = values[field]
        if isinstance(value, list):
            parts.extend(value)
        elif value:
            parts.append(piece.replace(f"{{{field}}}", value))
    return parts


def _encode(tokenizer: Tokenizer, parts: _Parts) -> list[int]:
    tokens: list[int] = []
    for is_text, run in itertools.groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:
            tokens.extend(tokenizer.encode("".join(map(str, run))))
        else:
            tokens.extend(map(int, run))
    return tokens


def _partition(tokens: list[int], separator: int) -> tuple[list[int], bool, list[int]]:
    if separator not in tokens:
        return tokens, False, []
    position = tokens.index(separator)
    return tokens[:position], True, tokens[position + 1 :]
