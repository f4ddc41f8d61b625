r"""The chat template of openafm: a conversation to tokens and, for the assistant's turn, back.

Each turn is encoded by itself, between special tokens that open and close it:

    <|bos|><|instructions|>text<|tool_definition|>name: description\nparameters as schema text<|turn_end|>
    <|user|>text<|response_format|>schema text<|turn_end|>
    <|assistant|>text<|turn_end|>
    <|assistant|><|tool_calls|>[{"name":"...","arguments":{...}}]<|turn_end|>
    <|tool|>name<|content|>text<|turn_end|>

An image inside a prompt or a tool's output is <|image_start|>, as many <|image|> as the image takes tokens, <|image_end|>;
`EncodedText.images` holds the positions of the <|image|> tokens, whose embeddings the model replaces. A structured answer is
the assistant's text: compact JSON (`schema_text.compact_json`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from openafm.core.config import ConfigError, from_dict
from openafm.tokenizer.bpe import SPECIAL_TOKEN_IDS, SPECIAL_TOKENS, Tokenizer
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ContentTurn,
    ConversationError,
    ImagePart,
    Instructions,
    JsonSchema,
    TextPart,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.schema_text import schema_text
from openafm.tokenizer.template import (
    BaseChatTemplate,
    CallsSyntax,
    ChatTemplateError,
    EncodedText,
    ImageSpan,
    MalformedAnswerError,
    Parts,
    check_no_special,
    encode_parts,
    opened,
)
from openafm.tokenizer.tool_calls import parse_tool_calls, tool_calls_text

__all__ = ["ChatTemplate", "ChatTemplateError", "EncodedText", "ImageSpan", "MalformedAnswerError", "opened"]

VERSION = 1

# The fields of each layout of `ChatTemplate`.
_FIELDS = {
    "instructions": ("text", "tools"),
    "tool_definition": ("name", "description", "parameters"),
    "user": ("text", "response_format"),
    "response_format": ("schema",),
    "assistant": ("text", "tool_calls"),
    "tool_calls": ("calls",),
    "tool": ("name", "text"),
}


@dataclass(frozen=True, kw_only=True)
class ChatTemplate(BaseChatTemplate):
    """Hold the layout of every kind of turn as data. The defaults are frozen: models are trained on them.

    A layout is a row of pieces. A piece is a special token, or a text with one `{field}`. A text whose field is empty is
    left out; adjacent texts are encoded as one.
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
            has_one_field_each = len(used) == sum(piece not in SPECIAL_TOKEN_IDS for piece in layout)
            self.require(
                has_one_field_each and sorted(used) == sorted(known) and layout[0] in SPECIAL_TOKEN_IDS,
                f"{name} must be special tokens and texts with one field each, start with a special token and "
                f"hold exactly the fields {', '.join(known)}; got {layout}",
            )
        self.require(
            self.assistant[1:] == ("{text}", "{tool_calls}", "<|turn_end|>") and len(self.tool_calls) == 2,
            "assistant must be one token, {text}, {tool_calls}, <|turn_end|>, and tool_calls one token, {calls}, "
            "because answers are parsed",
        )

    @property
    def can_call_tools(self) -> bool:
        return True

    @property
    def can_take_images(self) -> bool:
        return True

    def encode_turn(self, tokenizer: Tokenizer, turn: Turn) -> EncodedText:
        images: tuple[ImagePart, ...] = ()
        match turn:
            case Instructions():
                tools = [part for tool in turn.tools for part in self._tool_parts(tool)]
                parts = _fill(self.instructions, text=turn.text, tools=tools)
            case UserTurn():
                images = turn.images
                content = _content_parts(turn) if images else turn.text
                response_format = None if turn.response_format is None else self._response_format_parts(turn.response_format)
                parts = _fill(self.user, text=content, response_format=response_format or [])
            case AssistantTurn():
                calls = _fill(self.tool_calls, calls=tool_calls_text(turn.tool_calls)) if turn.tool_calls else []
                parts = _fill(self.assistant, text=turn.text, tool_calls=calls)
            case ToolTurn():
                images = turn.images
                parts = _fill(self.tool, name=turn.name, text=_content_parts(turn) if images else turn.text)
        tokens = encode_parts(tokenizer, parts)
        is_generated = isinstance(turn, AssistantTurn)
        return EncodedText(
            tokens=tokens,
            loss_mask=[is_generated and position > 0 for position in range(len(tokens))],
            images=_image_spans(tokens, images),
        )

    def encode_tool(self, tokenizer: Tokenizer, tool: ToolDefinition) -> list[int]:
        return encode_parts(tokenizer, self._tool_parts(tool))

    def encode_response_format(self, tokenizer: Tokenizer, schema: JsonSchema) -> list[int]:
        return encode_parts(tokenizer, self._response_format_parts(schema))

    def generation_prompt(self, tokenizer: Tokenizer) -> list[int]:
        return [SPECIAL_TOKEN_IDS[self.assistant[0]]]

    def tool_calls_prompt(self, tokenizer: Tokenizer) -> list[int]:
        return [SPECIAL_TOKEN_IDS[self.tool_calls[0]]]

    def stop_tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset((SPECIAL_TOKENS.turn_end, SPECIAL_TOKENS.eos))

    def stop_token(self, tokenizer: Tokenizer) -> int:
        return SPECIAL_TOKENS.turn_end

    def calls_syntax(self, tokenizer: Tokenizer, calls_schema: JsonSchema) -> CallsSyntax:
        opening: Parts = [*self.tool_calls_prompt(tokenizer)]
        return CallsSyntax(opening=opening, schema=calls_schema, separator=None, closing=[])

    def is_calls(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> bool | None:
        return list(tokens[:1]) == self.tool_calls_prompt(tokenizer) if tokens else None

    def parse_assistant(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> AssistantTurn:
        opening, calls_token = SPECIAL_TOKEN_IDS[self.assistant[0]], SPECIAL_TOKEN_IDS[self.tool_calls[0]]
        content = list(tokens)
        if content[:1] == [opening]:
            del content[0]
        if content and content[-1] in self.stop_tokens(tokenizer):
            del content[-1]
        before, called, after = _partition(content, calls_token)
        check_no_special(tokenizer, (*before, *after), content)
        try:
            calls = parse_tool_calls(tokenizer.decode(after)) if called else ()
        except ConversationError as error:
            raise MalformedAnswerError(str(error), tokenizer.decode(content)) from error
        return AssistantTurn(text=tokenizer.decode(before), tool_calls=calls)

    @staticmethod
    def from_json(text: str) -> ChatTemplate:
        """Read the output of `to_json`.

        Raises:
            ChatTemplateError: the text is not a chat template, or has an unknown version.
        """
        try:
            return from_dict(ChatTemplate, json.loads(text))
        except (ValueError, RecursionError, ConfigError) as error:
            raise ChatTemplateError(f"not a chat template of openafm: {error}") from error

    def _tool_parts(self, tool: ToolDefinition) -> Parts:
        return _fill(
            self.tool_definition, name=tool.name, description=tool.description, parameters=schema_text(tool.parameters)
        )

    def _response_format_parts(self, schema: JsonSchema) -> Parts:
        return _fill(self.response_format, schema=schema_text(schema))


def _fill(layout: tuple[str, ...], **values: str | Parts) -> Parts:
    parts: Parts = []
    for piece in layout:
        if piece in SPECIAL_TOKEN_IDS:
            parts.append(SPECIAL_TOKEN_IDS[piece])
            continue
        field = re.findall(r"{(\w+)}", piece)[0]
        value = values[field]
        if isinstance(value, str):
            parts += [piece.replace(f"{{{field}}}", value)] if value else []
        elif value:
            before, _, after = piece.partition(f"{{{field}}}")
            parts += [before] * bool(before) + value + [after] * bool(after)
    return parts


def _content_parts(turn: ContentTurn) -> Parts:
    parts: Parts = []
    for part in turn.content:
        if isinstance(part, TextPart):
            parts.append(part.text)
        else:
            parts += [SPECIAL_TOKENS.image_start, *[SPECIAL_TOKENS.image] * part.num_tokens, SPECIAL_TOKENS.image_end]
    return parts


def _image_spans(tokens: list[int], images: Sequence[ImagePart]) -> tuple[ImageSpan, ...]:
    """Where the placeholders of images are: text never encodes to <|image_start|>, so each one opens an image."""
    starts = (position + 1 for position, token in enumerate(tokens) if token == SPECIAL_TOKENS.image_start)
    return tuple(
        ImageSpan(start=start, stop=start + image.num_tokens, digest=image.digest)
        for start, image in zip(starts, images, strict=False)
    )


def _partition(tokens: list[int], separator: int) -> tuple[list[int], bool, list[int]]:
    if separator not in tokens:
        return tokens, False, []
    position = tokens.index(separator)
    return tokens[:position], True, tokens[position + 1 :]
