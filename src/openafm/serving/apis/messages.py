"""Messages, tools and response formats of chat requests as turns, tool definitions and schemas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from pydantic import Field

from openafm.framework.backends.loaded_model import MAX_CALLS
from openafm.framework.options import ImageDetail
from openafm.framework.session.formats import read_json_schema
from openafm.serving.apis.wire import Wire, compact
from openafm.serving.errors import bad_request, unsupported
from openafm.serving.inputs import ChatInput, ImageInput
from openafm.tokenizer.conversation import (
    AssistantTurn,
    ImagePart,
    Instructions,
    JsonSchema,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolTurn,
    Turn,
    UserTurn,
)

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "summary_text")
_MOST_CACHED = 1 << 16  # characters of a schema that is stored
_DETAILS: dict[str, ImageDetail] = {"low": "rapid", "high": "high", "balanced": "balanced", "rapid": "rapid"}


class ImageUrl(Wire):
    """A data URL in OpenAI's chat form."""

    url: str
    detail: str | None = None


class Base64Source(Wire):
    """The bytes of an image in Anthropic's form."""

    type: Literal["base64"]
    data: str


class ContentPart(Wire):
    """A part of a message's content: text, or an image in the form of one of the APIs."""

    type: str = "text"
    text: str = ""
    image_url: ImageUrl | str | None = None
    detail: str | None = None
    source: Base64Source | None = None

    def image(self) -> ImageInput | None:
        """Return the image; None for other parts.

        Raises:
            ApiError: the image is not part of the request; images are never fetched.
        """
        match self.image_url, self.source:
            case None, None:
                return None
            case ImageUrl(url=url, detail=detail), _:
                pass
            case str(url), _:
                detail = self.detail
            case _, Base64Source(data=data):
                return ImageInput(f"data:image/any;base64,{data}")
        if not url.startswith("data:"):
            raise bad_request("images are not fetched; send a data URL: data:image/png;base64,...", param="messages")
        return ImageInput(url, _DETAILS.get(detail or ""))


Content: TypeAlias = str | list[ContentPart] | None


class FunctionCall(Wire):
    """Name and arguments of a call; arguments are JSON text."""

    name: str
    arguments: str = "{}"


class ToolCallItem(Wire):
    """A tool call of an assistant message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Wire):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content = None
    name: str | None = None
    tool_calls: list[ToolCallItem] | None = None
    tool_call_id: str | None = None


class Function(Wire):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Wire):
    """A tool of a chat request."""

    type: Literal["function"] = "function"
    function: Function


class SchemaFormat(Wire):
    """A named JSON Schema."""

    name: str = "response"
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(Wire):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


def text_of(content: Content, param: str = "messages") -> str:
    """Return the text of a content.

    Raises:
        ApiError: it has a part that is not text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.image() is not None:
            raise unsupported(param, "images are read in messages of users only; send text here")
        if part.type not in _TEXT_PARTS:
            raise unsupported(param, f"content parts of type '{part.type[:40]}' are not supported; send text")
    return "".join(part.text for part in content)


@dataclass(frozen=True)
class Prompt:
    """Turns, and the images that they name by the digests of their data URLs."""

    turns: tuple[Turn, ...]
    images: dict[str, ImageInput]


def prompt_of(messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> Prompt:
    """Return the prompt of messages. All system and developer messages form the instructions, in order.

    Raises:
        ApiError: the messages cannot be answered.
    """
    instructions = [text_of(each.content) for each in messages if each.role in ("system", "developer")]
    turns: list[Turn] = [Instructions(text="\n\n".join(filter(None, instructions)), tools=tuple(tools))]
    names: dict[str, str] = {}  # of the tools, by id of the call
    images: dict[str, ImageInput] = {}
    for index, message in enumerate(messages):
        match message.role:
            case "user":
                turns.append(_user_turn(message.content, images))
            case "assistant":
                calls = message.tool_calls or ()
                names |= {call.id: call.function.name for call in calls}
                tool_calls = tuple(_call(call.function, index) for call in calls)
                turns.append(AssistantTurn(text=text_of(message.content), tool_calls=tool_calls))
            case "tool" | "function":
                name = names.get(message.tool_call_id or "", message.name)
                if name is None:
                    raise bad_request(
                        f"messages[{index}] is the output of the call '{(message.tool_call_id or '')[:80]}', which no"
                        " message before it makes",
                        param=f"messages[{index}].tool_call_id",
                    )
                turns.append(ToolTurn(name=name, text=text_of(message.content)))
    if len(turns) == 1:
        raise bad_request("messages has no message of a user; send at least one", param="messages")
    return Prompt(tuple(turns), images)


def tools_of(tools: Sequence[Function]) -> tuple[ToolDefinition, ...]:
    """Return tool definitions with closed parameters.

    Raises:
        ApiError: two tools have the same name.
        SchemaFormatError: the parameters are not a JSON Schema.
    """
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_request("two tools have the same name; rename one", param="tools")
    return tuple(
        ToolDefinition(
            name=tool.name,
            description=tool.description or "",
            parameters=read_json_schema({"type": "object", "properties": {}} | (tool.parameters or {})),
        )
        for tool in tools
    )


def chosen_tools(choice: Any, tools: Sequence[ToolDefinition]) -> tuple[tuple[ToolDefinition, ...], bool]:
    """Return the tools that `tool_choice` allows, and whether one must be called.

    Raises:
        ApiError: the choice is not valid, or names an unknown tool.
    """
    match choice:
        case None | "auto":
            return tuple(tools), False
        case "none":
            return (), False
        case "required" | "any":
            names = {tool.name for tool in tools}
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function" | "tool", "name": str(name)}:
            names = {name}
        case {"type": "allowed_tools", "allowed_tools": {"tools": list(allowed)} as listed} | (
            {"type": "allowed_tools", "tools": list(allowed)} as listed
        ):
            return _listed(allowed, tools), listed.get("mode") == "required"
        case _:
            raise bad_request("tool_choice is 'none', 'auto', 'required' or the name of a function", param="tool_choice")
    chosen = tuple(tool for tool in tools if tool.name in names)
    if not chosen:
        raise bad_request("tool_choice needs a tool of this request; list it in 'tools'", param="tool_choice")
    return chosen, True


def response_schema(response_format: ResponseFormat | None) -> JsonSchema | None:
    """Return the JSON Schema of an answer; None for text.

    Raises:
        ApiError: the schema is missing.
        SchemaFormatError: it is not a JSON Schema.
    """
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return {"type": "object"}
    if response_format.json_schema is None or response_format.json_schema.json_schema is None:
        raise bad_request("response_format needs json_schema.schema", param="response_format.json_schema.schema")
    schema = response_format.json_schema.json_schema
    try:
        text = compact(schema)
    except RecursionError:
        return read_json_schema(schema)
    return _cached_schema(text) if len(text) <= _MOST_CACHED else read_json_schema(text)


@lru_cache(maxsize=128)
def _cached_schema(text: str) -> JsonSchema:
    """Return the schema of a text. Clients send the same few schemas; nothing changes the result."""
    return read_json_schema(text)


def chat_input(
    prompt: Prompt,
    *,
    schema: JsonSchema | None = None,
    tools: Sequence[ToolDefinition] = (),
    tool_choice: Any = None,
    max_calls: int = MAX_CALLS,
) -> ChatInput:
    """Return the input of a chat. The last user turn shows the schema, as models are trained on it.

    Raises:
        ApiError: `tool_choice` does not fit the tools.
    """
    chosen, must_call = (
        chosen_tools(tool_choice, tools) if tools or tool_choice not in (None, "auto", "none") else ((), False)
    )
    turns, last = prompt.turns, prompt.turns[-1]
    if schema is not None and isinstance(last, UserTurn):
        turns = (*turns[:-1], UserTurn(content=last.content, response_format=schema))
    return ChatInput(
        turns=turns, images=prompt.images, schema=schema, tools=chosen, must_call=must_call, max_calls=max_calls
    )


def _user_turn(content: Content, images: dict[str, ImageInput]) -> UserTurn:
    """Return a turn of text and images, and add the images."""
    if content is None or isinstance(content, str):
        return UserTurn(text=content or "")
    parts: list[TextPart | ImagePart] = []
    for part in content:
        if (image := part.image()) is None:
            parts.append(TextPart(text=text_of([part])))
        else:
            digest = hashlib.sha256(f"{image.detail} {image.url}".encode()).hexdigest()
            images[digest] = image
            parts.append(ImagePart(digest=digest, num_tokens=1))  # counted once the model is known
    return UserTurn(content=parts)


def _listed(allowed: Sequence[Any], tools: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    names = {each.get("name") or (each.get("function") or {}).get("name") for each in allowed if isinstance(each, dict)}
    chosen = tuple(tool for tool in tools if tool.name in names)
    if not chosen:
        raise bad_request("tool_choice allows none of the tools of this request", param="tool_choice")
    return chosen


def _call(call: FunctionCall, index: int) -> ToolCall:
    try:
        arguments = json.loads(call.arguments or "{}")
        json.dumps(arguments, allow_nan=False)  # NaN is not JSON
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_request(
            f"messages[{index}] has a tool call whose arguments are not a JSON object", param=f"messages[{index}].tool_calls"
        )
    return ToolCall(name=call.name, arguments=arguments)
