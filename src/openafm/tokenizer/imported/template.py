"""Chat templates of open-weight models as data; `bundle.hugging_face` derives them from a checkpoint's Jinja template.

A row is a tuple of pieces: tokens of the tokenizer by name (those in `tokens`), fields such as "{text}", and fixed texts.
A field may have a filter: "{text|trim}" strips white space at both ends, "{text|json}" writes a JSON string.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openafm.core.config import ConfigError, from_dict
from openafm.tokenizer.bpe import Tokenizer
from openafm.tokenizer.chat_template import ChatTemplate
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ImagePart,
    Instructions,
    JsonSchema,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)
from openafm.tokenizer.imported.layouts import FIELD, Row, ToolsLayout
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
    version_of,
)

VERSION = 2


@dataclass(frozen=True, kw_only=True)
class ImportedTemplate(BaseChatTemplate):
    """Hold the layout of every kind of turn of an imported model.

    Attributes:
        tokens: pieces that are tokens; all other pieces are text.
        stop: tokens that end the assistant's turn. `assistant_closing` begins with the first of them.
        start: beginning of a conversation without instructions.
        instructions: beginning of a conversation with instructions.
        assistant_opening: the generation prompt; stays in the history unchanged.
        image: an image between the texts of a prompt; {image} is its token, repeated. Empty: the model takes no images.
        image_token: the token of {image}; the model replaces its embeddings.
    """

    version: int = VERSION
    tokens: tuple[str, ...]
    stop: tuple[str, ...]
    start: Row
    instructions: Row
    user: Row
    response_format: Row = ("\n\nAnswer with compact JSON of this form:\n", "{schema}")
    assistant_opening: Row
    assistant_closing: Row
    image: Row = ()
    image_token: str = ""
    tools: ToolsLayout | None = None

    def __post_init__(self) -> None:
        self.require(self.version == VERSION, f"version {self.version} is unknown; this openafm reads version {VERSION}")
        self._require_fields("start", self.start, ())
        self._require_fields("instructions", self.instructions, ("text",))
        self._require_fields("user", self.user, ("response_format", "text"))
        self._require_fields("response_format", self.response_format, ("schema",))
        self._require_fields("assistant_opening", self.assistant_opening, ())
        self._require_fields("assistant_closing", self.assistant_closing, ())
        for name in ("user", "assistant_opening", "assistant_closing"):
            row = getattr(self, name)
            self.require(row[:1] != () and row[0] in self.tokens, f"{name} must start with a token; got {row}")
        self.require(
            self.stop[:1] == self.assistant_closing[:1] and set(self.stop) <= set(self.tokens),
            "stop must hold tokens only, and first the one that assistant_closing starts with",
        )
        if self.image:
            self._require_fields("image", self.image, ("image",))
            self.require(self.image_token in self.tokens, f"image_token must be one of tokens, got {self.image_token!r}")
        if self.tools is not None:
            self._check_tools(self.tools)

    @property
    def can_call_tools(self) -> bool:
        return self.tools is not None

    @property
    def can_take_images(self) -> bool:
        return bool(self.image)

    def encode_turn(self, tokenizer: Tokenizer, turn: Turn) -> EncodedText:
        match turn:
            case Instructions():
                return self._context(tokenizer, self._instructions(tokenizer, turn))
            case UserTurn():
                return self._with_images(tokenizer, self._context(tokenizer, self._user(tokenizer, turn)), turn.images)
            case ToolTurn():
                return self.encode_outputs(tokenizer, (turn,))
            case AssistantTurn():
                return self._answer(tokenizer, turn)

    def encode_outputs(self, tokenizer: Tokenizer, outputs: Sequence[ToolTurn]) -> EncodedText:
        tools = self._tools()
        parts = self._fill(tokenizer, tools.output_opening)
        for position, output in enumerate(outputs):
            if output.images:
                raise ChatTemplateError(_NO_IMAGES_IN_OUTPUTS)
            parts += self._fill(tokenizer, tools.output_separator if position else ())
            parts += self._fill(tokenizer, tools.output, text=output.text, name=output.name)
        return self._context(tokenizer, parts + self._fill(tokenizer, tools.output_closing))

    def encode_tool(self, tokenizer: Tokenizer, tool: ToolDefinition) -> list[int]:
        return tokenizer.encode(self._tool_text(tool))

    def encode_response_format(self, tokenizer: Tokenizer, schema: JsonSchema) -> list[int]:
        return encode_parts(tokenizer, self._fill(tokenizer, self.response_format, schema=schema_text(schema)))

    def generation_prompt(self, tokenizer: Tokenizer) -> list[int]:
        return encode_parts(tokenizer, self._fill(tokenizer, self.assistant_opening))

    def tool_calls_prompt(self, tokenizer: Tokenizer) -> list[int]:
        return encode_parts(tokenizer, self._fill(tokenizer, self._tools().calls.opening))

    def stop_tokens(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset(map(tokenizer.special_ids.__getitem__, self.stop))

    def stop_token(self, tokenizer: Tokenizer) -> int:
        return tokenizer.special_ids[self.stop[0]]

    def calls_syntax(self, tokenizer: Tokenizer, calls_schema: JsonSchema) -> CallsSyntax:
        calls = self._tools().calls
        return CallsSyntax(
            opening=self._fill(tokenizer, calls.opening),
            schema=_one_call(calls_schema, calls.arguments_key),
            separator=None if calls.separator is None else self._fill(tokenizer, calls.separator),
            closing=self._fill(tokenizer, calls.closing),
            item_separator=calls.style.item_separator,
            key_separator=calls.style.key_separator,
        )

    def is_calls(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> bool | None:
        if self.tools is None:
            return False
        calls = self.tools.calls
        wanted = self._marked_row(calls.opening) + calls.name_opening
        begun = self._marked(tokenizer, tokens)
        if wanted.startswith(begun):
            return None if len(begun) < len(wanted) else True
        return begun.startswith(wanted)

    def parse_assistant(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> AssistantTurn:
        content = self._content(tokenizer, tokens)
        try:
            text, calls = self._parse_calls(tokenizer, content) if self.tools else (tokenizer.decode(content), ())
        except ValueError as error:
            raise MalformedAnswerError(f"tool calls are malformed: {error}", tokenizer.decode(content)) from error
        if not calls:
            check_no_special(tokenizer, content, content)
        return AssistantTurn(text=text, tool_calls=calls)

    @staticmethod
    def from_json(text: str) -> ImportedTemplate:
        """Read the output of `to_json`.

        Raises:
            ChatTemplateError: the text is not an imported chat template, or has an unknown version.
        """
        try:
            return from_dict(ImportedTemplate, json.loads(text))
        except (ValueError, RecursionError, ConfigError) as error:
            raise ChatTemplateError(f"not an imported chat template: {error}") from error

    def _counted(self, text: str) -> str:
        return text.strip()  # fields may trim white space

    def _instructions(self, tokenizer: Tokenizer, turn: Instructions) -> Parts:
        if not turn.tools:
            return self._fill(tokenizer, self.instructions if turn.text else self.start, text=turn.text)
        tools = self._tools()
        separator = "".join(tools.separator)
        listed = separator.join(map(self._tool_text, turn.tools))
        return self._fill(tokenizer, tools.instructions if turn.text else tools.start, text=turn.text, tools=listed)

    def _user(self, tokenizer: Tokenizer, turn: UserTurn) -> Parts:
        if turn.images and not self.image:
            raise ChatTemplateError(_NO_IMAGES)
        wanted: Parts = []
        if turn.response_format is not None:
            wanted = self._fill(tokenizer, self.response_format, schema=schema_text(turn.response_format))
        text = self._content_parts(tokenizer, turn) if turn.images else turn.text
        return self._fill(tokenizer, self.user, text=text, response_format=wanted)

    def _content_parts(self, tokenizer: Tokenizer, turn: UserTurn) -> Parts:
        parts: Parts = []
        for part in turn.content:
            if isinstance(part, ImagePart):
                placeholders: Parts = [tokenizer.special_ids[self.image_token]] * part.num_tokens
                parts += self._fill(tokenizer, self.image, image=placeholders)
            else:
                parts.append(part.text)
        return parts

    def _with_images(self, tokenizer: Tokenizer, encoded: EncodedText, images: Sequence[ImagePart]) -> EncodedText:
        """Add the spans of images: their tokens in order, because no text encodes to the image token."""
        if not images:
            return encoded
        placeholder, spans, first = tokenizer.special_ids[self.image_token], [], 0
        for image in images:
            start = encoded.tokens.index(placeholder, first)
            first = start + image.num_tokens
            spans.append(ImageSpan(start=start, stop=first, digest=image.digest))
        return replace(encoded, images=tuple(spans))

    def _answer(self, tokenizer: Tokenizer, turn: AssistantTurn) -> EncodedText:
        # The opening is encoded separately, because generation starts after its tokens.
        opening = self.generation_prompt(tokenizer)
        parts: Parts = [turn.text, *self._calls(tokenizer, turn)]
        answer = encode_parts(tokenizer, [*parts, self.stop_token(tokenizer)])
        after = encode_parts(tokenizer, self._fill(tokenizer, self.assistant_closing[1:]))
        return EncodedText(
            tokens=[*opening, *answer, *after],
            loss_mask=[False] * len(opening) + [True] * len(answer) + [False] * len(after),
        )

    def _calls(self, tokenizer: Tokenizer, turn: AssistantTurn) -> Parts:
        if not turn.tool_calls:
            return []
        calls = self._tools().calls
        if calls.separator is None and len(turn.tool_calls) > 1:
            raise ChatTemplateError(f"this model supports one tool call per turn; the turn has {len(turn.tool_calls)}")
        parts = self._fill(tokenizer, (*(calls.after_text if turn.text else ()), *calls.opening))
        for position, call in enumerate(turn.tool_calls):
            parts += self._fill(tokenizer, calls.separator or () if position else ())
            parts.append(calls.style.text({"name": call.name, calls.arguments_key: call.arguments}))
        return parts + self._fill(tokenizer, calls.closing)

    def _content(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
        """Tokens of an assistant's turn without its opening and closing."""
        opening = self.generation_prompt(tokenizer)
        closing = encode_parts(tokenizer, self._fill(tokenizer, self.assistant_closing))
        content = list(tokens)
        if content[: len(opening)] == opening:
            del content[: len(opening)]
        if content[-len(closing) :] == closing:
            del content[-len(closing) :]
        elif content and content[-1] in self.stop_tokens(tokenizer):
            del content[-1]
        return content

    def _parse_calls(self, tokenizer: Tokenizer, content: Sequence[int]) -> tuple[str, tuple[ToolCall, ...]]:
        """The text before the calls, and the calls."""
        calls = self._tools().calls
        opening, closing, after_text = (self._marked_row(row) for row in (calls.opening, calls.closing, calls.after_text))
        separator = None if calls.separator is None else self._marked_row(calls.separator)
        whole = self._marked(tokenizer, content)
        begins = 0 if self.is_calls(tokenizer, content) else -1
        if begins and opening and opening[0] in _MARKS:
            begins = whole.find(opening)
        if begins < 0:
            return tokenizer.decode(content), ()
        found, position = [], begins + len(opening)
        while True:
            call, position = _read_call(whole, position, calls.arguments_key)
            found.append(call)
            if separator is None or not whole.startswith(separator, position):
                break
            position += len(separator)
        if whole[position:] != closing:
            raise ValueError(f"{whole[position:]!r} follows the last call")
        return whole[:begins].removesuffix(after_text), tuple(found)

    def _tools(self) -> ToolsLayout:
        if self.tools is None:
            raise ChatTemplateError("this model's chat template does not support tools; remove them, or use another model")
        return self.tools

    def _tool_text(self, tool: ToolDefinition) -> str:
        tools = self._tools()
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return tools.style.text({"type": "function", "function": function} if tools.is_wrapped else function)

    def _context(self, tokenizer: Tokenizer, parts: Parts) -> EncodedText:
        tokens = encode_parts(tokenizer, parts)
        return EncodedText(tokens=tokens, loss_mask=[False] * len(tokens))

    def _fill(self, tokenizer: Tokenizer, row: Row, **values: str | Parts) -> Parts:
        parts: Parts = []
        for piece in row:
            field = FIELD.fullmatch(piece)
            if piece in self.tokens:
                parts.append(tokenizer.special_ids[piece])
            elif field is None:
                parts.append(piece)
            elif isinstance(value := values[field[1]], list):
                parts += value
            else:
                parts.append(_written(value, field[2]))
        return parts

    def _marked(self, tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
        """Text of tokens, with each special token replaced by half of a surrogate pair, which no text contains."""
        names = {tokenizer.special_ids[name]: name for name in self.tokens}
        marked = ""
        for is_special, run in itertools.groupby(tokens, key=lambda token: not tokenizer.token_bytes(token)):
            ids = list(run)
            if is_special:
                marked += "".join(self._mark(names.get(id)) for id in ids)
            else:
                marked += tokenizer.decode(ids)
        return marked

    def _marked_row(self, row: Row) -> str:
        return "".join(self._mark(piece) if piece in self.tokens else piece for piece in row)

    def _mark(self, name: str | None) -> str:
        return _MARKS[-1] if name is None else _MARKS[self.tokens.index(name)]

    def _require_fields(self, name: str, row: Row, fields: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        used = sorted(match[1] for piece in row if piece not in self.tokens and (match := FIELD.fullmatch(piece)))
        known = sorted({*fields, *(set(optional) & set(used))})
        self.require(used == known, f"{name} must have exactly the fields {', '.join(fields) or 'none'}; got {row}")

    def _check_tools(self, tools: ToolsLayout) -> None:
        calls = tools.calls
        self._require_fields("tools.start", tools.start, ("tools",))
        self._require_fields("tools.instructions", tools.instructions, ("text", "tools"))
        self._require_fields("tools.output", tools.output, ("text",), optional=("name",))
        plain = (calls.opening, calls.separator or (), calls.closing, calls.after_text, tools.output_opening)
        for row in (*plain, tools.output_separator, tools.output_closing, tools.separator):
            self._require_fields("tools", row, ())
        first = (*tools.output_opening, *tools.output)[:1]
        self.require(first != () and first[0] in self.tokens, "tools: an output must start with a token")


# Replacements of the template's tokens in text; the last one is for all other special tokens.
_MARKS = "".join(map(chr, range(0xD800, 0xE000)))


_NO_IMAGES = "this model's chat template has no image tokens; send text only, or use a model for images"
_NO_IMAGES_IN_OUTPUTS = (
    "this model's chat template has no images in outputs of tools; return text, or attach them to a prompt"
)


def _written(value: str, how: str | None) -> str:
    if how == "trim":
        return value.strip()
    return json.dumps(value, ensure_ascii=False) if how == "json" else value


def _one_call(calls_schema: JsonSchema, arguments_key: str) -> JsonSchema:
    """The schema of one call, from the schema of an array of calls."""
    variants = [
        variant
        | {
            "properties": {"name": variant["properties"]["name"], arguments_key: variant["properties"]["arguments"]},
            "required": ["name", arguments_key],
        }
        for variant in calls_schema["items"]["anyOf"]
    ]
    return {"anyOf": variants} | {key: value for key, value in calls_schema.items() if key == "$defs"}


def _read_call(text: str, position: int, arguments_key: str) -> tuple[ToolCall, int]:
    value, end = json.JSONDecoder().raw_decode(text, position)
    if not set(_MARKS).isdisjoint(text[position:end]):
        raise ValueError("a special token is inside a call")
    if not isinstance(value, dict) or value.keys() != {"name", arguments_key}:
        raise ValueError(f"a call needs exactly the keys name and {arguments_key}, got {value!r}")
    if not isinstance(value["name"], str) or not isinstance(value[arguments_key], dict):
        raise ValueError(f"a call needs a string as name and an object as {arguments_key}, got {value!r}")
    return ToolCall(name=value["name"], arguments=value[arguments_key]), end


def read_template(text: str) -> BaseChatTemplate:
    """Return the chat template of a bundle, openafm's own or imported.

    Raises:
        ChatTemplateError: the text is not a chat template, or has an unknown version.
    """
    return ImportedTemplate.from_json(text) if version_of(text) == VERSION else ChatTemplate.from_json(text)
